"""`mlpswap cost`: the smallest size of each construction, as a table, a picture and the list of all builds."""

import logging
import time
from pathlib import Path
from typing import Any

from mlpswap.config import build_options, to_plain, to_yaml
from mlpswap.cost.config import CostConfig, Entry
from mlpswap.cost.probe import Cell, build_and_measure
from mlpswap.cost.records import read_probes, run_recorded
from mlpswap.cost.search import Found, Outcome, smallest_size, verify
from mlpswap.cost.tables import markdown, row_of
from mlpswap.registry import CONSTRUCTIONS, get
from mlpswap.run_folder import alone, default_folder, run_folder
from mlpswap.runs import require_same_config, results, write_csv, write_json, write_text

logger = logging.getLogger(__name__)

# Keys that may differ when a run is resumed: builds that are done stay what they are.
FREE_ON_RESUME = (
    "output_dir",
    "workers",
    "probe_seconds",
    "constructions",
    "facts",
    "d",
    "kappa",
    "alpha",
    "search",
)


@alone
def cost(
    config: CostConfig, *, config_name: str | None = None, resume: bool = False, overwrite: bool = False
) -> Path:
    """Run all searches, two or more side by side, and write what they found. Returns the run folder."""
    from mlpswap.report import write_report

    began = time.perf_counter()
    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, "cost")
    check_options(config)
    with run_folder(folder, resume=resume, overwrite=overwrite):
        if resume:
            require_same_config(folder, to_plain(config), free=FREE_ON_RESUME)
        write_text(folder / "config.yaml", to_yaml(config))
    log = folder / "probes.jsonl"
    known = read_probes(log, config.probe_seconds, Cell, require_complete) if resume else {}
    if known:
        logger.warning("resuming %s: %d builds are done", folder, len(known))
    tasks = list(searches(config))
    pairs = [(cell, probes) for _, cell, probes, _ in tasks]
    found = run_recorded(
        log, pairs, known, measure=build_and_measure, workers=config.workers, seconds=config.probe_seconds
    )
    rows = rows_of(config, tasks, found)
    metrics = {"rows": len(rows), "found": sum(row["size"] is not None for row in rows), "builds": len(known)}
    seconds = time.perf_counter() - began
    write_csv(folder / "cost.csv", rows)
    write_text(folder / "cost.md", markdown(rows))
    write_json(folder / "results.json", results("cost", to_plain(config), metrics, rows, seconds))
    write_report(folder)
    print(markdown(rows))
    print(f"run folder: {folder}")
    print(f"report: {folder / 'report.html'}")
    return folder


def check_options(config: CostConfig) -> None:
    """Raise `ConfigError` or `RegistryError` for a construction or an option that does not exist."""
    for entry in config.constructions:
        schema = get(CONSTRUCTIONS, entry.construction).Config
        size = {entry.varies: entry.size or 1} if entry.varies else {}
        build_options(schema, entry.options | size, f"constructions: {entry.name}")


Task = tuple[Entry, Cell, Any, bool]  # with the search, and whether it verifies a published size


def searches(config: CostConfig) -> list[Task]:
    """Every construction at every point of the table; where a published size is known, that as well."""
    tasks: list[Task] = []
    for facts in config.facts:
        for d in config.d:
            for kappa in config.kappa:
                for alpha in config.alpha:
                    for entry in config.constructions:
                        cell = Cell(
                            entry.name, entry.construction, dict(entry.options), entry.varies, facts, d,
                            config.embeddings, kappa, alpha,
                        )  # fmt: skip
                        tasks.append((entry, cell, search_of(config, entry, cell), False))
                        if entry.published and not config.search:
                            published = verify(
                                entry.published, entry.published_seeds, error=config.error, smaller=False
                            )
                            tasks.append((entry, cell, published, True))
    return tasks


def search_of(config: CostConfig, entry: Entry, cell: Cell) -> Any:
    common: dict[str, Any] = {"error": config.error, "precision": config.precision}
    if entry.varies is None:
        return verify(1, config.seeds, error=config.error, smaller=False)
    if not config.search:
        assert entry.size is not None  # checked by the configuration
        return verify(entry.size, config.seeds, **common)
    guess = entry.size or cell.facts // 2
    return smallest_size(guess, config.seeds, largest=config.largest, **common)


def rows_of(config: CostConfig, tasks: list[Task], found: dict[int, Found]) -> list[dict[str, Any]]:
    """One row for each search; a published size that was verified stands in the same row."""
    rows: list[dict[str, Any]] = []
    for number, (entry, cell, _, published) in enumerate(tasks):
        if published:
            rows[-1] |= {
                "published": entry.published,
                "published_seeds": entry.published_seeds,
                "published_holds": found[number].size is not None,
            }
        else:
            rows.append(row_of(cell, found[number], config.seeds))
    return rows


def require_complete(outcome: Outcome) -> None:
    """Raise `ValueError` for a build that lacks what the table shows of it."""
    accuracy = outcome.accuracy
    if accuracy is None or (accuracy == 0 and "infeasible" in outcome.figures):
        return
    if isinstance(accuracy, bool) or not (isinstance(accuracy, int | float) and 0 <= accuracy <= 1):
        raise ValueError(f"accuracy = {accuracy!r} of a build: expected a share")
    for name in ("h", "parameters", "margin", "seconds", "accuracy_bf16", "accuracy_int8"):
        if not isinstance(outcome.figures.get(name), int | float):
            raise ValueError(f"{name} = {outcome.figures.get(name)!r} of a build: expected a number")
    if not isinstance(outcome.figures["factored_parameters"], int | None):
        raise ValueError("factored_parameters of a build: expected a whole number or null")
