"""Editing: batched residuals and scoring against one prompt at a time through the whole model.

    python -m tests.benchmarks.editing                       # 10 % of 256 facts, a host made here
    python -m tests.benchmarks.editing RUN_FOLDER            # 10 % of the facts of a trained host

The references are those of `tests/reference.py`, which the tests hold equal to the fast path. They are timed on a part of the
prompts, and seconds per prompt are compared.
"""

import sys
import time
from collections import Counter
from typing import Any

import torch

from mlpswap.benchmark.base import the_task
from mlpswap.benchmark.entries import settings_of
from mlpswap.benchmark.splits import make_split, requests_of
from mlpswap.editing import EditRequest, HostAdapter, ResidualOptions
from mlpswap.editing.evaluation import Probes, correct
from mlpswap.model.find import load_host
from tests.reference import answers_one_by_one, books_host, residuals_one_by_one

REQUESTS, PROMPTS = 3, 200  # of the references
GRID_REQUESTS = 256  # for which whole grids are optimised


def main(folder: str | None = None) -> dict[str, float]:
    if folder is None:
        task, model = books_host(256, d=128, h=40, dtype=torch.float32)
    else:
        model = load_host(folder)
        task = the_task(model)
    split = make_split(task, len(task.facts) // 10, None, seed=0)
    adapter = HostAdapter(model)
    requests = requests_of(adapter, task, split)
    options = ResidualOptions(steps=100, lr=0.5)

    began = time.perf_counter()
    fast = adapter.residuals(requests, adapter.sites()[0], [options])[0].residuals
    ours = (time.perf_counter() - began) / len(requests)
    began = time.perf_counter()
    slow = residuals_one_by_one(model, requests[:REQUESTS], options)
    theirs = (time.perf_counter() - began) / REQUESTS
    print(f"residuals: {ours:.2e} s per edit, one by one {theirs:.2e}, largest difference "
          f"{float((fast[:REQUESTS] - slow).abs().max()):.1e}")  # fmt: skip

    ratios = {"residuals": theirs / ours} | grid_ratios(model, requests[:GRID_REQUESTS])

    groups = {"altered": split.altered, "preserved": split.preserved, "edit_template": split.edit_template}
    began = time.perf_counter()
    probes = Probes.of(model, task, split.after, **groups)
    collected = time.perf_counter() - began
    prompts = sum(map(len, probes.caches.values()))
    for cache in probes.caches.values():
        correct(model, model.fact_mlp, cache)  # warm
    began = time.perf_counter()
    found = {name: correct(model, model.fact_mlp, cache) for name, cache in probes.caches.items()}
    scored = (time.perf_counter() - began) / prompts
    fact = probes.caches["specificity"].facts[:PROMPTS]
    targets = task.target_ids(split.after)
    began = time.perf_counter()
    slow_found = answers_one_by_one(model, task, fact, split.edit_template[fact], targets)
    one = (time.perf_counter() - began) / len(fact)
    assert found["specificity"][:PROMPTS].tolist() == slow_found
    print(
        f"scoring: {scored:.2e} s per prompt, one by one {one:.2e}; rows collected once in {collected:.2f} s"
    )
    ratios["scoring"] = one / scored
    print({name: round(value) for name, value in ratios.items()})
    return ratios


def grid_ratios(model: Any, requests: list[EditRequest]) -> dict[str, float]:
    """The residuals of whole published grids, of one editor and of all: settings share trajectories here, and each stands
    alone there. Settings that differ in nothing that a residual depends on are timed once there, and counted as often as they
    occur.
    """
    grids = {
        name: Counter(setting.residual_options for setting in settings_of({"name": name, "grid": "paper"})[1])
        for name in ("rome", "memit", "alphaedit")
    }
    grids["all three"] = sum(grids.values(), Counter())
    alone: dict[ResidualOptions, float] = {}
    for options in grids["all three"]:
        began = time.perf_counter()
        residuals_one_by_one(model, requests[:1], options)
        alone[options] = time.perf_counter() - began
    ratios = {}
    for name, times in grids.items():
        adapter = HostAdapter(model)  # which remembers nothing yet
        began = time.perf_counter()
        adapter.residuals(requests, adapter.sites()[0], list(times))
        ours = (time.perf_counter() - began) / len(requests)
        theirs = sum(count * alone[options] for options, count in times.items())
        print(
            f"residuals of {name}, {times.total()} settings: {ours:.2e} s per edit, one by one {theirs:.2e}"
        )
        ratios[f"residuals of {name}"] = theirs / ours
    return ratios


if __name__ == "__main__":
    torch.set_num_threads(1)  # two threads beside other load wait for each other, and distort the ratio
    main(*sys.argv[1:])
