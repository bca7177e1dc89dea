"""`mlpswap sequences`: how many facts each method or toy model stores, beside the published figures."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlpswap.config import to_plain, to_yaml
from mlpswap.run_folder import alone, default_folder, run_folder
from mlpswap.runs import require_same_config, results, write_csv, write_json, write_text
from mlpswap.sequences.board.config import SequencesConfig

logger = logging.getLogger(__name__)

# Keys that may differ when a run is resumed: probes that are done stay what they are.
FREE_ON_RESUME = (
    "output_dir", "workers", "probe_seconds", "methods", "d", "large", "sizes", "thresholds", "ablation.",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What a run does: its searches, how a probe is measured, kept and read, and what is made of all of them.

    keep: writes what else the report needs into the run folder.
    """

    kind: str
    searches: Sequence[tuple[Any, Any]]
    measure: Callable[..., Any]
    cell: type
    require_complete: Callable[..., None]
    rows: Callable[[dict[int, Any]], list[dict[str, Any]]]
    markdown: Callable[[list[dict[str, Any]]], str]
    keep: Callable[[Path, list[dict[str, Any]]], None] = lambda folder, rows: None


def board_plan(config: SequencesConfig) -> Plan:
    """The leader board of methods."""
    from mlpswap.sequences.board.pictured import FILE, build_pictured, pictured_rows, save_pictured
    from mlpswap.sequences.board.probe import Cell, measure, require_complete
    from mlpswap.sequences.board.run import check_methods, rows_of, search_of, tasks_of
    from mlpswap.sequences.board.tables import markdown

    check_methods(config)
    tasks = tasks_of(config)
    searches = [(task.cell, search_of(config, task)) for task in tasks if task.cell is not None]
    return Plan(
        "sequences", searches, measure, Cell, require_complete,
        lambda found: rows_of(tasks, found), lambda rows: markdown(rows, to_plain(config)),
        lambda folder, rows: save_pictured(
            folder / FILE, [build_pictured(config, row) for row in pictured_rows(rows)]
        ),
    )  # fmt: skip


def ablation_plan(config: SequencesConfig) -> Plan:
    """The toy models with and without each of their parts."""
    from mlpswap.sequences.ablation.run import Cell, cells_of, measure, require_complete, rows_of, search_of
    from mlpswap.sequences.ablation.tables import markdown

    assert config.ablation is not None
    cells = cells_of(config.ablation, trials=config.trials, seed=config.seed, facts_seed=config.facts_seed)
    searches = [(cell, search_of(cell, config.ablation.precision)) for cell in cells]
    return Plan(
        "ablation", searches, measure, Cell, require_complete, lambda found: rows_of(cells, found), markdown
    )


@alone
def sequences(
    config: SequencesConfig, *, config_name: str | None = None, resume: bool = False, overwrite: bool = False
) -> Path:
    """Run all searches, two or more side by side, and write the tables. Returns the run folder."""
    from mlpswap.cost.records import read_probes, run_recorded
    from mlpswap.report import write_report

    began = time.perf_counter()
    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, "sequences")
    plan = board_plan(config) if config.ablation is None else ablation_plan(config)
    with run_folder(folder, resume=resume, overwrite=overwrite):
        if resume:
            require_same_config(folder, to_plain(config), free=FREE_ON_RESUME)
        write_text(folder / "config.yaml", to_yaml(config))
    log = folder / "probes.jsonl"
    known = read_probes(log, config.probe_seconds, plan.cell, plan.require_complete) if resume else {}
    if known:
        logger.warning("resuming %s: %d probes are done", folder, len(known))
    found = run_recorded(
        log, plan.searches, known, measure=plan.measure, workers=config.workers, seconds=config.probe_seconds,
        size_of=lambda cell: cell.d,
    )  # fmt: skip
    rows = plan.rows(found)
    table = plan.markdown(rows)
    metrics = {
        "rows": len(rows),
        "found": sum(bool(row.get("any")) for row in rows),
        "probes": len(known),
    }
    content = results(plan.kind, to_plain(config), metrics, rows, time.perf_counter() - began)
    flat = [
        {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}
        for row in rows
    ]
    write_csv(folder / f"{plan.kind}.csv", flat)
    write_text(folder / f"{plan.kind}.md", table)
    plan.keep(folder, rows)
    write_json(folder / "results.json", content)
    write_report(folder)
    print(table)
    print(f"run folder: {folder}")
    print(f"report: {folder / 'report.html'}")
    return folder
