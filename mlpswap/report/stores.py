"""What the report of `mlpswap stores` says: one figure and two tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlpswap.report.drawing import COLOURS, INK, MARKERS, Picture, drawing, figure, picture
from mlpswap.report.formats import number
from mlpswap.report.tables import Column, Table

MEASURED = "capacity_measured"
SUMMARY = (
    "Each store holds memories, pairs of a random key of length one and a random value. Asked for one of them by its key, it "
    "answers with the value wanted plus interference from all the others. The interference-to-signal ratio (ISR) is the "
    "length of the one over that of the other, as a root mean square over the memories asked for; at 1 the store is called "
    "full.",
    "The outer product and least squares keep one matrix, whatever they hold. The MLP, with one neuron for each memory, and "
    "attention keep every key and every value: they hold more because they grow.",
)


@dataclass(frozen=True)
class StoresView:
    """Everything that the template prints."""

    summary: Sequence[str]
    capacities: Table
    curves: Picture
    points: Table
    setup: dict[str, Any]

    @property
    def pictures(self) -> list[Picture]:
        return [self.curves]


def stores_view(results: Mapping[str, Any]) -> StoresView:
    """From `results.json`."""
    d = results["config"]["n_embd"]
    return StoresView(
        summary=SUMMARY,
        capacities=Table(
            f"Memories at which the ratio is 1, for keys of width {d}",
            [Column("store"), *(Column(text, numeric=True) for text in (
                "measured", "predicted", "predicted for Gaussian similarities"))],
            [[each["store"], "not reached" if each[MEASURED] is None else number(each[MEASURED]),
              number(each["capacity"]), number(each["capacity_gaussian"])] for each in results["capacities"]],
        ),
        curves=interference(results["rows"], d),
        points=Table(
            "Interference-to-signal ratio",
            [Column("store"), *(Column(text, numeric=True) for text in (
                "memories", "measured", "predicted", "parameters"))],
            [[row["store"], number(row["memories"]), number(row["measured"]), number(row["predicted"]),
              number(row["parameters"])] for row in results["rows"]],
        ),
        setup={"environment": results["environment"], "config": results["config"]},
    )  # fmt: skip


def interference(rows: Sequence[Mapping[str, Any]], d: int) -> Picture:
    """Measured ratios as marks, predicted ones as lines, over the number of memories."""
    labels = list(dict.fromkeys(row["store"] for row in rows))
    with drawing():
        drawn = figure(5.4, 3.8)
        axes = drawn.add_subplot(xscale="log")
        axes.set_yscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:g}")
        for place, name in enumerate(labels):
            points = [row for row in rows if row["store"] == name]
            counts = [row["memories"] for row in points]
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
            axes.plot(counts, _positive(points, "predicted"), color=colour)
            axes.plot(counts, _positive(points, "measured"), marker, color=colour, label=name)
        axes.axhline(1, color=INK, linewidth=1, linestyle=":")
        axes.set(xlabel="memories", ylabel="interference / signal")
        drawn.legend(loc="outside upper center", ncols=2)
        return picture(
            "interference",
            drawn,
            alt=f"Interference-to-signal ratio over the number of memories at width {d}, for {', '.join(labels)}.",
            caption="Marks are measured, lines predicted. A store is full where it crosses the dotted line. Least squares "
            "has no interference up to as many memories as its keys have dimensions, and starts beyond.",
        )


def _positive(points: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [row[name] if row[name] else math.nan for row in points]
