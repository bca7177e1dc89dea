"""Run every editor on every setting, score each on the same prompts, and say which setting was best.

Two rows sum up a grid: `oracle`, the best setting chosen and reported on the same facts, as the sources do; and `selected`,
chosen on one half of the facts and reported on the other.
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mlpswap.benchmark.base import base_run, language_cache, read_base, regime, the_task
from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.benchmark.show import headline, print_table, show_answers
from mlpswap.benchmark.splits import Split, make_split, requests_of
from mlpswap.config import build_options, to_plain, to_yaml
from mlpswap.constructions.base import FactMLP
from mlpswap.editing import EditRequest, EditResult, HostAdapter, Prompts, Statistics, statistics_of
from mlpswap.editing.evaluation import (
    PROBES,
    SCORER,
    LanguageCache,
    Probes,
    nonfact_change,
    outcomes,
    patched_fact_mlp,
    scores,
)
from mlpswap.errors import ConfigError, SingularMomentError
from mlpswap.model import Patch
from mlpswap.model.find import load_host, model_folder
from mlpswap.randomness import generator
from mlpswap.registry import EDITORS, get, labels_of
from mlpswap.runs import (
    default_folder,
    progress_interval,
    require_same_config,
    results,
    run_folder,
    write_json,
    write_text,
)
from mlpswap.tasks import Task
from mlpswap.tasks.books import TRAINED

logger = logging.getLogger(__name__)

PROTOCOL = "single_layer"


@dataclass
class Run:
    """Everything that the editors have in common."""

    config: BenchmarkConfig
    folder: Path
    model: Any
    task: Task
    adapter: HostAdapter
    language: LanguageCache
    seconds: dict[str, float] = field(default_factory=dict)

    def clock(self, name: str, began: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def benchmark(
    config: BenchmarkConfig, *, config_name: str | None = None, resume: bool = False, overwrite: bool = False
) -> Path:
    """Train the base if none is given, run all editors, and write rows, predictions, patches and the report."""
    began = time.perf_counter()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    labels = labels_of([str(entry["name"]) for entry in config.editors])
    editors = [(label, *settings_of(entry)) for label, entry in zip(labels, config.editors, strict=True)]
    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, "benchmark")
    if config.model is not None:
        model_folder(config.model)
    with run_folder(folder, resume=resume, overwrite=overwrite, inputs=(config.model,)):
        if resume:
            require_same_config(folder, to_plain(config), free=("output_dir", "threads", "report"))
        if resume and (folder / "results.json").exists():
            logger.warning("%s is finished; nothing to resume", folder)
            return folder
        write_text(folder / "config.yaml", to_yaml(config))
        base = base_run(config, folder)
        trained = time.perf_counter()
        model = load_host(base)
        task = the_task(model)
        adapter = HostAdapter(model)
        splits = [  # fails before any editor runs
            make_split(task, each["altered"], each.get("preserved"), config.seed, derange=config.derange)
            for each in config.splits
        ]
    run = Run(config, folder, model, task, adapter, language_cache(model, task, config.seed))
    run.seconds |= {"base": trained - began, "collect": time.perf_counter() - trained}
    rows: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    with (folder / "predictions.jsonl").open("w", encoding="utf-8") as predictions:
        total = len(config.splits) * sum(len(settings) for _, _, settings in editors)
        with tqdm(
            total=total, unit="setting", desc="editing", dynamic_ncols=True, mininterval=progress_interval()
        ) as bar:
            for split in splits:
                found, answers = run_split(run, split, editors, predictions, bar)
                rows += found
    content = results(
        "benchmark", to_plain(config), headline(rows), rows, time.perf_counter() - began,
        **read_base(base),
        regime=regime(model),
        answers=answers,
        notes=sorted({note for row in rows for note in row["notes"]}),
        stages=run.seconds,
    )  # fmt: skip
    write_json(folder / "results.json", content)
    print_table(rows)
    print(f"run folder: {folder}")
    if config.report:
        from mlpswap.report import write_report

        write_report(folder)
        print(f"report: {folder / 'report.html'}")
    return folder


def settings_of(entry: dict[str, Any]) -> tuple[Any, list[Any]]:
    """(editor, its settings): one from the options in the configuration, or the published grid."""
    name = str(entry["name"])
    editor = get(EDITORS, name)
    where = f"editor {name}"
    if "grid" in entry:
        if not hasattr(editor, "grid"):
            raise ConfigError(f"{where} has no grid; give its options instead")
        return editor, [
            build_options(editor.Config, point, where) for point in editor.grid(str(entry["grid"]))
        ]
    options = {key: value for key, value in entry.items() if key != "name"}
    return editor, [build_options(editor.Config, options, where)]


def run_split(
    run: Run, split: Split, editors: Sequence[tuple[str, Any, list[Any]]], predictions: Any, bar: tqdm
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All editors on one split: rows of the grid with oracle and selected rows, and answers of the best settings."""
    began = time.perf_counter()
    model, task, adapter = run.model, run.task, run.adapter
    groups = {
        "altered": split.altered,
        "preserved": split.preserved,
        "edit_template": split.edit_template,
    }
    probes = Probes.of(model, task, split.after, **groups, names=PROBES)
    requests = requests_of(adapter, task, split, [text.rsplit(" ", 1)[0] for text in TRAINED])
    statistics = statistics_of(adapter, preserved_prompts(task, split)) if len(split.preserved) else None
    run.clock("collect", began)
    rows: list[dict[str, Any]] = []
    best_mlps: dict[str, FactMLP] = {}
    for name, editor, settings in editors:
        began = time.perf_counter()
        best: dict[str, tuple[float, dict[str, Any], Patch]] = {}
        settings = [with_ridge(config, statistics) for config in settings]
        for config, result, seconds in edits(run, editor, settings, requests, statistics, split):
            row, half = score(run, split, probes, name, config, result, seconds)
            rows.append(row)
            for kind, value in (("oracle", row["score_harmonic"]), ("selected", half)):
                value = -1.0 if math.isnan(value) else value
                if kind not in best or value > best[kind][0]:
                    best[kind] = (value, row, result.patch)
            bar.update()
        for kind, (_, row, patch) in best.items():
            mlp = patched_fact_mlp(model, patch)
            among = split.reported if kind == "selected" else None
            rows.append(close_up(run, probes, row, mlp, kind, among))
            if kind == "oracle":
                best_mlps[name] = mlp
        save_patch(run, split, name, best["oracle"][2])
        run.clock(name, began)
    count = run.config.predictions
    return rows, show_answers(model, task, split, probes, best_mlps, count, predictions)


def with_ridge(config: Any, statistics: Statistics | None) -> Any:
    """The same setting with a ridge where it would refuse a singular second moment; the row's setting shows it."""
    if getattr(config, "on_singular", None) != "error" or statistics is None:
        return config
    try:
        for moment in statistics.values():
            moment.factor("error")
    except SingularMomentError:
        return replace(config, on_singular="ridge")
    return config


def preserved_prompts(task: Task, split: Split) -> Prompts:
    """The preserved facts' edit prompts, whose keys make the second moment."""
    facts = split.preserved
    batch = task.batch(facts, split.edit_template[facts], targets=task.target_ids(task.facts))
    return Prompts(batch.input_ids, batch.attention_mask)


def edit_generator(run: Run, split: Split) -> torch.Generator:
    """The same draws for every editor and setting."""
    return generator(run.config.seed, "edit", len(split.altered))


def edits(
    run: Run,
    editor: Any,
    settings: Sequence[Any],
    requests: Sequence[EditRequest],
    statistics: Statistics | None,
    split: Split,
) -> Iterator[tuple[Any, EditResult, float]]:
    """(setting, result, seconds) one by one; editors that can share work between settings do."""
    if hasattr(editor, "edit_grid"):
        stream = editor.edit_grid(
            run.adapter, requests, settings, statistics=statistics, generator=edit_generator(run, split)
        )
    else:
        stream = (
            editor.edit(
                run.adapter, requests, config, statistics=statistics, generator=edit_generator(run, split)
            )
            for config in settings
        )
    for config in settings:
        began = time.perf_counter()
        result = next(stream)
        yield config, result, time.perf_counter() - began


def score(
    run: Run, split: Split, probes: Probes, name: str, config: Any, result: EditResult, seconds: float
) -> tuple[dict[str, Any], float]:
    """The row of one setting, and its score on the half of the facts that settings are selected on."""
    found = outcomes(run.model, patched_fact_mlp(run.model, result.patch), probes)
    every = scores(probes, found)
    row = {
        "editor": name,
        "setting": to_plain(config),
        "protocol": PROTOCOL,
        "scorer": SCORER,
        "seed": run.config.seed,
        "altered": len(split.altered),
        "preserved": len(split.preserved),
        "unchanged": split.unchanged,
        **dict.fromkeys(PROBES),
        **every,
        **dict.fromkeys(("nonfact_ce_ratio", "nonfact_word_ce_ratio", "nonfact_ppl_ratio")),
        "seconds": seconds,
        "selection": "grid",
        "notes": list(result.diagnostics.get("notes", [])),
    }
    return row, scores(probes, found, split.chosen)["score_harmonic"]


def close_up(
    run: Run,
    probes: Probes,
    row: dict[str, Any],
    mlp: FactMLP,
    selection: str,
    among: torch.Tensor | None,
) -> dict[str, Any]:
    """The row of the best setting with everything measured; on the facts `among` only, if given."""
    measured = scores(probes, outcomes(run.model, mlp, probes, PROBES), among)
    change = nonfact_change(run.model, run.model.fact_mlp, mlp, run.language)
    return row | measured | change | {"selection": selection}


def save_patch(run: Run, split: Split, name: str, patch: Patch) -> None:
    folder = run.folder / "patches"
    folder.mkdir(exist_ok=True)
    if not patch.is_empty:
        patch.save(folder / f"{name}_{len(split.altered)}.safetensors")
