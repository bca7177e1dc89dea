"""What the report of `mlpswap cost` says: one figure, one table, and what was not found."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlpswap.report.drawing import COLOURS, INK, MARKERS, Picture, drawing, figure, label, picture
from mlpswap.report.formats import number
from mlpswap.report.tables import Column, Table

Rows = Sequence[Mapping[str, Any]]
BOUNDS = ((32, "32 bits a parameter"), (2, "2 bits a parameter, as trained networks hold"))


SUMMARY = (
    "For each construction, the smallest size at which it stores every fact on every seed. Parameters are counted as "
    "deployed; “factored” counts the numbers that an encoder-decoder chose, before its matrices are multiplied. The ratio is "
    "parameters / (F log2 F): facts per se need log2(F!) bits, about F log2 F.",
    "A search is done in steps and success is not quite monotone in the size: the size shown did succeed on all seeds, and "
    "the one under “fails at” did not on at least one. “Bits” is the smallest of 8, 16 and 32 bits to which all parameters "
    "can be rounded without losing a fact.",
)


@dataclass(frozen=True)
class CostView:
    """Everything that the template prints."""

    summary: Sequence[str]
    picture: Picture | None
    table: Table
    setup: dict[str, Any]

    @property
    def pictures(self) -> list[Picture]:
        return [self.picture] if self.picture else []


def cost_view(results: Mapping[str, Any]) -> CostView:
    """From `results.json`."""
    rows = results["rows"]
    names = ("size", "fails at", "parameters", "ratio", "factored", "bits", "seconds")
    return CostView(
        summary=SUMMARY,
        picture=cost_picture(rows),
        table=Table(
            "Smallest sizes, on the seeds " + ", ".join(map(str, results["config"]["seeds"])),
            [Column("construction"), *(Column(name, numeric=True) for name in names), Column("")],
            [
                [
                    _name(row, rows),
                    *(number(row.get(name)) for name in (
                        "size", "below", "parameters", "ratio", "factored_parameters", "bits", "seconds")),
                    row["note"],
                ]
                for row in rows
            ],
        ),
        setup={"environment": results["environment"], "config": results["config"]},
    )  # fmt: skip


def cost_picture(rows: Rows) -> Picture | None:
    """Parameters against facts, or bars where there is one number of facts; None if nothing was found."""
    found = [row for row in rows if row["size"] is not None]
    if not found:
        return None
    return _curves(found) if len({row["facts"] for row in found}) > 1 else _bars(found)


def fewest(facts: int, bits: int) -> float:
    """log2(F!) / bits: no fewer parameters of so many bits can hold the facts."""
    return math.lgamma(facts + 1) / math.log(2) / bits


def _name(row: Mapping[str, Any], rows: Rows, names: Sequence[str] = ("facts", "d", "kappa", "alpha")) -> str:
    varied = [name for name in names if len({each[name] for each in rows}) > 1]
    return ", ".join([label(row["construction"], 40), *(f"{name} {row[name]:g}" for name in varied)])


def _curves(rows: Rows) -> Picture:
    series: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        series.setdefault(_name(row, rows, ("d", "kappa", "alpha")), []).append(row)
    facts = sorted({row["facts"] for row in rows})
    with drawing():
        drawn = figure(6.0, 4.5)
        axes = drawn.add_subplot()
        for place, (name, points) in enumerate(series.items()):
            points = sorted(points, key=lambda row: row["facts"])
            style: dict[str, Any] = {
                "color": COLOURS[place % len(COLOURS)],
                "marker": MARKERS[place % len(MARKERS)],
            }
            axes.plot([p["facts"] for p in points], [p["parameters"] for p in points], label=name, **style)
        for (bits, text), dash in zip(BOUNDS, ("-", ":"), strict=True):
            bound = [fewest(count, bits) for count in facts]
            axes.plot(facts, bound, color=INK, linestyle=dash, linewidth=1, label=f"log2(F!) at {text}")
        axes.set(xscale="log", yscale="log", xlabel="facts F", ylabel="parameters")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xticks(facts, [number(count) for count in facts])
        axes.minorticks_off()
        drawn.legend(loc="outside upper center", ncols=2)
        ends = "; ".join(f"{name}: {number(points[-1]['parameters'])}" for name, points in series.items())
        return picture(
            "cost", drawn, alt=f"Parameters at the largest number of facts: {ends}.",
            caption="Parameters that store all facts, and the fewest that could by the information in a bijection.",
        )  # fmt: skip


def _bars(rows: Rows) -> Picture:
    rows = sorted(rows, key=lambda row: -row["parameters"])
    names = [_name(row, rows) for row in rows]
    with drawing():
        drawn = figure(6.5, 1.2 + 0.25 * len(rows))
        axes = drawn.add_subplot()
        places = range(len(rows))
        axes.barh(places, [row["parameters"] for row in rows], color=COLOURS[0], height=0.7)
        for place, row in zip(places, rows, strict=True):
            axes.annotate(
                number(row["parameters"]), (row["parameters"], place), (4, 0), textcoords="offset points",
                va="center", fontsize=8.5,
            )  # fmt: skip
        for (bits, text), dash in zip(BOUNDS, ("-", ":"), strict=True):
            axes.axvline(
                fewest(rows[0]["facts"], bits),
                color=INK,
                linestyle=dash,
                linewidth=1,
                label=f"log2(F!) at {text}",
            )
        axes.set(xscale="log", xlabel="parameters")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()
        axes.set_xlim(right=4 * rows[0]["parameters"])
        axes.set_yticks(places, names)
        axes.grid(axis="y", visible=False)
        drawn.legend(loc="outside upper center", ncols=2)
        texts = "; ".join(
            f"{name}: {number(row['parameters'])}" for name, row in zip(names, rows, strict=True)
        )
        return picture(
            "cost", drawn, alt=f"Parameters of each construction: {texts}.",
            caption="Parameters that store all facts, and the fewest that could by the information in a bijection.",
        )  # fmt: skip
