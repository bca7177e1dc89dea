"""Run every editor on every setting, score each on the same prompts, and say which setting was best.

Two rows sum up a grid: `oracle`, the best setting chosen and reported on the same facts, as the sources do; and `selected`,
chosen on one half of the facts and reported on the other.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from mlpswap.benchmark.base import Base, open_run, read_base, regime
from mlpswap.benchmark.compete import compete
from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.benchmark.contest import SAMPLE, Exam, Row
from mlpswap.benchmark.entries import Contender, contenders
from mlpswap.benchmark.progress import Progress
from mlpswap.benchmark.show import headline, print_table, show_answers
from mlpswap.benchmark.splits import Split, make_splits, split_labels
from mlpswap.benchmark.trials import KEPT, steps_of
from mlpswap.config import to_plain
from mlpswap.constructions.base import FactMLP
from mlpswap.editing.evaluation import patched_fact_mlp
from mlpswap.model import Patch
from mlpswap.progress_bar import ProgressBar
from mlpswap.run_folder import alone
from mlpswap.runs import results, write_json

SCREENED = (
    f"grids of more than {KEPT} settings were ranked on a sample of the prompts (at most {SAMPLE} preserved facts, one "
    f"paraphrase of each altered one); the best {KEPT} of each are scored on all prompts, and only those are in the figures"
)


@dataclass
class Run:
    """A benchmark under way. `seconds` are those of its stages and its editors."""

    config: BenchmarkConfig
    folder: Path
    base: Base
    entered: Sequence[Contender]
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    def clock(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


@alone
def benchmark(
    config: BenchmarkConfig, *, config_name: str | None = None, resume: bool = False, overwrite: bool = False
) -> Path:
    """Train the base if none is given, run all editors, and write rows, predictions, patches and the report.

    What can be refused is refused before the run folder is touched. An editor that fails costs its own rows only.
    """
    began = time.perf_counter()
    entered = contenders(config.editors)
    folder, path, model = open_run(
        config,
        "benchmark",
        lambda task: make_splits(task, config.splits, config.seed, derange=config.derange),
        config_name=config_name,
        resume=resume,
        overwrite=overwrite,
    )
    if path is None:
        return folder
    trained = time.perf_counter()
    base = Base(path, model, config.seed)
    run = Run(config, folder, base, entered, Progress(folder, base.fingerprint))
    run.clock("base", trained - began)
    run.clock("collect", time.perf_counter() - trained)
    rows, answers = run_editors(run)
    content = results(
        "benchmark", to_plain(config), headline(rows), rows, time.perf_counter() - began,
        **read_base(path),
        regime=regime(base.model),
        answers=answers,
        notes=[
            *([SCREENED] if config.screen else []),
            *sorted({note for row in rows for note in [*row["notes"], row["error"]] if note}),
        ],
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


def run_editors(run: Run) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows of all splits, and the answers on the last one."""
    config, base = run.config, run.base
    splits = make_splits(base.task, config.splits, config.seed, derange=config.derange)
    labels = split_labels(split.size for split in splits)
    rows: list[Row] = []
    answers: list[dict[str, Any]] = []
    total = len(splits) * sum(steps_of(len(each.settings), config.screen) for each in run.entered)
    with (
        (run.folder / "predictions.jsonl").open("w", encoding="utf-8") as predictions,
        ProgressBar(total=total, unit="setting", desc="editing") as bar,
    ):
        for split in splits:
            found, answers = run_split(run, split, labels[split.size], predictions, bar)
            rows += found
    return rows, answers


def run_split(
    run: Run, split: Split, label: str, predictions: TextIO, bar: ProgressBar
) -> tuple[list[Row], list[dict[str, Any]]]:
    """All editors on one split: their rows, and the answers of their best settings. Finished ones are not run again."""
    began, base = time.perf_counter(), run.base
    bar.name(f"collecting prompts, {label} altered")
    exam = Exam.of(base, split, run.config.seed, screen=run.config.screen)
    run.clock("collect", time.perf_counter() - began)
    rows: list[Row] = []
    best: dict[str, FactMLP | None] = {}
    for contender in run.entered:
        name, began = contender.label, time.perf_counter()
        bar.name(f"{name}, {label} altered")
        file = run.folder / "patches" / f"{name}_{label}.safetensors"
        if done := run.progress.find(label, name):
            found, seconds = done["rows"], done["seconds"]
            best[name] = (
                patched_fact_mlp(base.model, Patch.load(file)) if done["patch"] else base.model.fact_mlp
            )
            bar.skip(steps_of(len(contender.settings), run.config.screen))
        else:
            earlier = run.progress.spent(label, name)
            found, best[name] = compete(base, exam, contender, file, run.progress, label, bar)
            seconds = earlier + time.perf_counter() - began
            run.progress.add(label, name, rows=found, seconds=seconds, patch=file.is_file())
        run.clock(name, seconds)
        rows += found
    mlps = {name: mlp for name, mlp in best.items() if mlp is not None}
    count = run.config.predictions
    return rows, show_answers(base.model, base.task, split, exam.probes, mlps, count, predictions)
