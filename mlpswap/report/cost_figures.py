"""The picture of a cost search: parameters that each construction needs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlpswap.report.drawing import COLOURS, INK, MARKERS, Picture, drawing, figure, label, picture
from mlpswap.report.formats import number

Rows = Sequence[Mapping[str, Any]]
BOUNDS = ((32, "32 bits a parameter"), (2, "2 bits a parameter, as trained networks hold"))


def cost_picture(rows: Rows) -> Picture | None:
    """Parameters against facts, or bars where there is one number of facts; None if nothing was found."""
    found = [row for row in rows if row["size"] is not None]
    if not found:
        return None
    return _curves(found) if len({row["facts"] for row in found}) > 1 else _bars(found)


def fewest(facts: int, bits: int) -> float:
    """log2(F!) / bits: no fewer parameters of so many bits can hold the facts."""
    return math.lgamma(facts + 1) / math.log(2) / bits


def _name(row: Mapping[str, Any], rows: Rows) -> str:
    varied = [name for name in ("d", "kappa", "alpha") if len({each[name] for each in rows}) > 1]
    return ", ".join([label(row["construction"], 40), *(f"{name} {row[name]:g}" for name in varied)])


def _curves(rows: Rows) -> Picture:
    series: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        series.setdefault(_name(row, rows), []).append(row)
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
