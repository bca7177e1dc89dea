"""`mlpswap sequential`: edit a host batch after batch with every editor, and see what remains of the earlier edits."""

import time
from pathlib import Path
from typing import Any

from mlpswap.benchmark.config import SequentialConfig
from mlpswap.config import to_plain
from mlpswap.run_folder import alone
from mlpswap.runs import results, write_json

COLUMNS = {
    "immediate_efficacy": "immediate", "retained_efficacy": "retained", "retained_paraphrase": "paraphr.",
    "specificity": "specific.", "nonfact_ce_ratio": "non-fact", "agreement": "agreement", "kl": "KL",
    "weight_change": "|dW|/|W|", "seconds": "seconds",
}  # fmt: skip


@alone
def sequential(
    config: SequentialConfig,
    *,
    config_name: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> Path:
    """Train the base if none is given, follow each editor through all batches, and write rows, patches and the report."""
    from mlpswap.benchmark.base import Base, open_run, read_base, regime
    from mlpswap.benchmark.entries import contenders
    from mlpswap.benchmark.halfway import Halfway
    from mlpswap.benchmark.progress import Progress
    from mlpswap.benchmark.retention import finals
    from mlpswap.benchmark.sequence import Course, make_steps
    from mlpswap.benchmark.sequential import follow
    from mlpswap.progress_bar import ProgressBar

    began = time.perf_counter()
    entered = contenders(config.editors)
    folder, path, model = open_run(
        config,
        "sequential",
        lambda task: make_steps(task, config),
        config_name=config_name,
        resume=resume,
        overwrite=overwrite,
    )
    if path is None:
        return folder
    stages = {"base": time.perf_counter() - began}
    base = Base(path, model, config.seed)
    course, progress = Course.of(base, config), Progress(folder, base.fingerprint)
    stages["collect"] = time.perf_counter() - began - stages["base"]
    rows: list[dict[str, Any]] = []
    total = len(course.steps) * len(entered)
    with ProgressBar(total=total, unit="batch", desc="editing") as bar:
        for contender in entered:
            name, start = contender.label, time.perf_counter()
            bar.name(name)
            if done := progress.find(config.mode, name):
                found, stages[name] = done["rows"], done["seconds"]
                bar.skip(len(course.steps))
            else:
                file = folder / "patches" / f"{name}.safetensors"
                halfway = Halfway(progress, config.mode, name, file.with_suffix(""))
                earlier = progress.spent(config.mode, name)
                found = follow(course, contender, file, halfway, bar)
                stages[name] = earlier + time.perf_counter() - start
                progress.add(config.mode, name, rows=found, seconds=stages[name], patch=file.is_file())
                halfway.clear()
            rows += found
    metrics = {
        f"{row['editor']}_{name}": row[name]
        for row in finals(rows)
        for name in ("retained_efficacy", "retained_paraphrase", "specificity")
    }
    content = results(
        "sequential", to_plain(config), metrics, rows, time.perf_counter() - began,
        **read_base(path),
        regime=regime(base.model),
        unedited={"specificity": float(course.right.double().mean()) if len(course.right) else None},
        notes=list(dict.fromkeys(note for row in rows for note in [*row["notes"], row["error"]] if note)),
        stages=stages,
    )  # fmt: skip
    write_json(folder / "results.json", content)
    tell(content["notes"], finals(rows))
    print(f"run folder: {folder}")
    if config.report:
        from mlpswap.report import write_report

        write_report(folder)
        print(f"report: {folder / 'report.html'}")
    return folder


def tell(notes: list[str], rows: list[dict[str, Any]]) -> None:
    """Each editor after its last batch, and what there is to remark."""
    wide = max([10, *(len(row["editor"]) for row in rows)])
    print(
        f"{'editor':{wide}} {'batch':>6} {'edits':>6} " + " ".join(f"{text:>9}" for text in COLUMNS.values())
    )
    for row in rows:
        numbers = ("-" if row[name] is None else f"{row[name]:.3f}" for name in COLUMNS)
        print(
            f"{row['editor']:{wide}} {row['batch']:6} {row['edits']:6} "
            + " ".join(f"{n:>9}" for n in numbers)
        )
    print(
        "immediate: the last batch alone; retained: all edits so far, scored now; seconds: for the last batch"
    )
    for note in notes:
        print(f"note: {note}")
