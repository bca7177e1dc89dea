"""`mlpswap sequences`: how many facts each method stores, as a leader board beside the published figures."""

import json
import logging
import time
from pathlib import Path

from mlpswap.config import to_plain, to_yaml
from mlpswap.runs import (
    default_folder,
    require_same_config,
    results,
    run_folder,
    write_csv,
    write_json,
    write_text,
)
from mlpswap.sequences.config import SequencesConfig

logger = logging.getLogger(__name__)

# Keys that may differ when a run is resumed: probes that are done stay what they are.
FREE_ON_RESUME = ("output_dir", "workers", "probe_seconds", "methods", "d", "large", "sizes", "thresholds")


def sequences(
    config: SequencesConfig, *, config_name: str | None = None, resume: bool = False, overwrite: bool = False
) -> Path:
    """Run all searches, two or more side by side, and write the board. Returns the run folder."""
    from mlpswap.cost.records import read_probes, run_recorded
    from mlpswap.sequences.board import check_methods, rows_of, search_of, tasks_of
    from mlpswap.sequences.probe import Cell, measure, require_complete
    from mlpswap.sequences.tables import markdown

    began = time.perf_counter()
    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, "sequences")
    check_methods(config)
    with run_folder(folder, resume=resume, overwrite=overwrite):
        if resume:
            require_same_config(folder, to_plain(config), free=FREE_ON_RESUME)
        write_text(folder / "config.yaml", to_yaml(config))
    log = folder / "probes.jsonl"
    known = read_probes(log, config.probe_seconds, Cell, require_complete) if resume else {}
    if known:
        logger.warning("resuming %s: %d probes are done", folder, len(known))
    tasks = tasks_of(config)
    searches = [(task.cell, search_of(config, task)) for task in tasks if task.cell is not None]
    found = run_recorded(
        log, searches, known, measure=measure, workers=config.workers, seconds=config.probe_seconds
    )
    rows = rows_of(tasks, found)
    table = markdown(rows, to_plain(config))
    metrics = {
        "rows": len(rows),
        "found": sum(bool(row.get("any")) for row in rows),
        "probes": len(known),
    }
    content = results("sequences", to_plain(config), metrics, rows, time.perf_counter() - began)
    flat = [
        {name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()}
        for row in rows
    ]
    write_csv(folder / "sequences.csv", flat)
    write_text(folder / "sequences.md", table)
    write_json(folder / "results.json", content)
    print(table)
    print(f"run folder: {folder}")
    return folder
