"""One editor on a sequence of batches: edited, measured after each batch, and taken off again.

As in the contest, an editor may be anybody's code: whatever it does wrong ends its own sequence and no one else's.
"""

import logging
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from mlpswap.benchmark.contest import (
    PROTOCOL,
    Row,
    checked_result,
    plain_setting,
    remarks,
    save_patch,
    with_ridge,
)
from mlpswap.benchmark.entries import Contender
from mlpswap.benchmark.halfway import Halfway
from mlpswap.benchmark.retention import collapse
from mlpswap.benchmark.sequence import Course
from mlpswap.benchmark.splits import requests_of
from mlpswap.editing import EditorState
from mlpswap.editing.evaluation import SCORER
from mlpswap.errors import RegistryError
from mlpswap.facts import printable
from mlpswap.model import Patch
from mlpswap.progress_bar import ProgressBar
from mlpswap.randomness import generator
from mlpswap.registry import plug_in
from mlpswap.runs import finite_or_null

logger = logging.getLogger(__name__)

SCORES = (
    "immediate_efficacy", "immediate_paraphrase", "retained_efficacy", "retained_paraphrase", "specificity",
    "nonfact_ce_ratio", "nonfact_word_ce_ratio", "nonfact_ppl_ratio", "agreement", "kl", "agreement_language",
    "kl_language", "specificity_change_by_distance", "weight_change",
)  # fmt: skip


def follow(course: Course, contender: Contender, file: Path, halfway: Halfway, bar: ProgressBar) -> list[Row]:
    """A row for each step, up to the first that fails. The model is afterwards as it was, to the last bit.

    Where batches build on each other, `file` gets the patch from the unedited model to the last one. Steps that `halfway`
    knows are not done again.
    """
    base, label = course.base, contender.label
    (config,) = contender.settings
    config = with_ridge(config, course.statistics)
    rows = halfway.rows()
    patches: list[Patch] = []
    state: EditorState | None = None
    if rows and course.carry:
        patches, state = list(halfway.patches()), halfway.state()
        for patch in patches:
            patch.apply(base.model)
        mlp = deepcopy(base.model.fact_mlp)
    bar.skip(len(rows))
    collapsed = any(row["collapsed"] for row in rows)
    for number in range(len(rows), len(course.steps)):
        start = time.perf_counter()
        row = blank_row(course, label, config, number)
        rows.append(row)
        try:
            with plug_in(f"{label} failed"):
                requests = requests_of(base.adapter, base.task, course.steps[number])
                began = time.perf_counter()
                result: Any = contender.editor.edit(
                    base.adapter, requests, config,
                    statistics=course.statistics, state=state, generator=generator(course.seed, "edit"),
                )  # fmt: skip
                row["seconds"] = time.perf_counter() - began
                mlp = checked_result(base.model, result)
                row["notes"] = remarks(label, result, len(requests))
                row["null_dimension"] = result.diagnostics.get("null_dimension")
                row["cache_rank"] = cache_rank(result.state)
                if course.carry:
                    result.patch.apply(base.model)
                    patches.append(result.patch)
                    state = result.state
        except RegistryError as error:
            row["error"] = printable(str(error))
            logger.warning("%s", row["error"])
            break
        measured = course.measure(number, mlp)
        row |= {name: measured[name] for name in SCORES}
        if why := collapse(row):
            if not (collapsed and course.carry):
                row["notes"].append(f"{label}: collapsed after batch {number + 1}: {why}")
            row["collapsed"] = collapsed = True
        halfway.add(row, patches[-1] if course.carry else None, state, time.perf_counter() - start)
        bar.update()
    facts = base.model.known_facts()
    try:
        with plug_in(f"{label} failed"):
            for patch in reversed(patches):
                patch.undo(base.model)
            base.require_unchanged()
    except RegistryError as error:
        base.reopen()
        return [blank_row(course, label, config, 0) | {"error": printable(str(error))}]
    if patches:
        save_patch(Patch.between_mlps(base.model, mlp, editor=label, facts=facts), file)
    return finite_or_null(rows)


def blank_row(course: Course, label: str, config: Any, number: int) -> Row:
    """The row of a step in which nothing is measured yet."""
    step, before = course.steps[number], course.base.task.facts
    if number and course.carry:
        before = course.steps[number - 1].after
    edited = course.facts_until(number)
    steps = course.steps[: number + 1] if course.carry else [step]
    kept = before.targets()[step.altered] == step.after.targets()[step.altered]
    return {
        "editor": label,
        "setting": plain_setting(config),
        "mode": course.mode,
        "protocol": PROTOCOL,
        "scorer": SCORER,
        "seed": course.seed,
        "batch": number + 1,
        "edits": sum(len(each.altered) for each in steps),
        "altered": len(edited),
        "preserved": len(step.preserved),
        "unchanged": int(kept.sum()),
        **dict.fromkeys(SCORES),
        "null_dimension": None,
        "cache_rank": None,
        "seconds": None,
        "collapsed": False,
        "notes": [],
        "error": None,
    }


def cache_rank(state: EditorState | None) -> int | None:
    """Largest rank among the sites' caches; None for an editor that carries none."""
    if state is None or not state.caches:
        return None
    return max(int(torch.linalg.matrix_rank(cache, hermitian=True)) for cache in state.caches.values())
