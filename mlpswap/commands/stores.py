"""`mlpswap stores`: how many memories each kind of associative store holds, measured and predicted."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlpswap.commands.config import StoresConfig
from mlpswap.config import to_plain, to_yaml
from mlpswap.progress_bar import ProgressBar
from mlpswap.run_folder import alone, default_folder, run_folder
from mlpswap.runs import results, write_csv, write_json, write_text

if TYPE_CHECKING:
    from mlpswap.stores import Store

AROUND = (1 / 16, 4)  # of a store's capacity: where it is measured by default


@alone
def stores(config: StoresConfig, *, config_name: str | None = None, overwrite: bool = False) -> Path:
    """Measure every store; leave results.json, the points as stores.csv, the capacities as stores.md, and a report."""
    import torch

    from mlpswap.randomness import generator
    from mlpswap.report import write_report
    from mlpswap.stores import make_stores

    began = time.perf_counter()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    made = make_stores(config.stores)
    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, "stores")
    with run_folder(folder, overwrite=overwrite):
        write_text(folder / "config.yaml", to_yaml(config))
    rows: list[dict[str, Any]] = []
    capacities: list[dict[str, Any]] = []
    for number, store in enumerate(ProgressBar(made, unit="store", desc="filling")):
        counts = chosen_counts(store, config)
        draw = generator(config.seed, "stores", number)
        found = store.measured(counts, config.n_embd, draw, config.queries)
        rows += [
            {
                "store": store.label, "memories": count, "measured": ratio,
                "predicted": store.predicted(count, config.n_embd),
                "parameters": store.parameters(count, config.n_embd),
            }
            for count, ratio in zip(counts, found, strict=True)
        ]  # fmt: skip
        capacities.append(
            {
                "store": store.label,
                "capacity": store.capacity(config.n_embd),
                "capacity_gaussian": store.capacity(config.n_embd, gaussian=True),
                "capacity_measured": crossing(counts, found),
            }
        )
    metrics = {f"capacity_{_plain(each['store'])}": each["capacity_measured"] for each in capacities}
    content = results(
        "stores", to_plain(config), metrics, rows, time.perf_counter() - began, capacities=capacities
    )
    write_csv(folder / "stores.csv", rows)
    write_text(folder / "stores.md", capacity_table(capacities, config.n_embd))
    write_json(folder / "results.json", content)
    write_report(folder)
    print(capacity_table(capacities, config.n_embd), end="")
    print(f"run folder: {folder}")
    print(f"report: {folder / 'report.html'}")
    return folder


def chosen_counts(store: "Store", config: StoresConfig) -> list[int]:
    """The counts of memories at which a store is measured: evenly spaced logarithms, from 2 to `max_memories`."""
    if config.memories is not None:
        return sorted(set(config.memories))
    capacity = store.capacity(config.n_embd)
    high = min(config.max_memories, AROUND[1] * capacity)
    low = min(AROUND[0] * capacity, high / 16)
    steps = [low * (high / low) ** (step / (config.points - 1)) for step in range(config.points)]
    return sorted({max(2, round(step)) for step in steps})


def crossing(counts: Sequence[int], ratios: Sequence[float]) -> float | None:
    """Memories at which the measured ratio is 1, None if it is above or below at all counts.

    Between two counts the square of the ratio is a straight line, for every store.
    """
    points = list(zip(counts, (ratio**2 for ratio in ratios), strict=True))
    for (low, below), (high, above) in zip(points, points[1:], strict=False):
        if below <= 1 < above:
            return low + (high - low) * (1 - below) / (above - below)
    return None


def capacity_table(capacities: Sequence[dict[str, Any]], d: int) -> str:
    """A Markdown table."""
    lines = [
        f"| store (d = {d}) | memories at ISR 1, measured | predicted | predicted, Gaussian |",
        "|---|---|---|---|",
    ]
    for each in capacities:
        numbers = [each[name] for name in ("capacity_measured", "capacity", "capacity_gaussian")]
        lines.append(f"| {each['store']} | {' | '.join(map(_shown, numbers))} |")
    return "\n".join(lines) + "\n"


def _plain(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def _shown(count: float | None) -> str:
    if count is None:
        return "not reached"
    return f"{count:,.0f}" if count < 1e7 else f"{count:.2e}"
