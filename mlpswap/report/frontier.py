"""Facts against digits in a leader board's report: what each method stores in weights of so many significant bits."""

import math
from typing import Any

from mlpswap.report.drawing import COLOURS, MARKERS, Picture, drawing, figure, label, picture
from mlpswap.report.formats import number
from mlpswap.report.sequences_figures import Rows, stored_share
from mlpswap.report.tables import Column, Table
from mlpswap.sequences.bits import FLOAT32_BITS
from mlpswap.sequences.board.frontier import facts_within
from mlpswap.sequences.board.tables import is_standard

FORMATS = {6: "", 8: "bfloat16", 10: "", 11: "float16", 13: "", 16: "", 20: "", 24: "float32"}  # by bits
ACROSS = 3  # panels beside each other


def frontier_picture(rows: Rows, threshold: float, name: str) -> Picture | None:
    """Facts over the bits that the weights need, a panel for each standard size; None for fewer than two methods."""
    own = _with_frontier(rows, threshold)
    panels = {d: leading([row for row in own if row["d"] == d]) for d in sorted({row["d"] for row in own})}
    panels = {d: shown for d, shown in panels.items() if len(shown) > 1}
    if not panels:
        return None
    methods = list(dict.fromkeys(row["method"] for shown in panels.values() for row in shown))
    down = math.ceil(len(panels) / ACROSS)
    with drawing():
        drawn = figure(0.6 + 2.7 * min(len(panels), ACROSS), 1.2 + 2.9 * down)
        axes = list(drawn.subplots(down, min(len(panels), ACROSS), squeeze=False).flatten())
        for (d, shown), panel in zip(panels.items(), axes, strict=False):
            for row in shown:
                bits, facts = map(list, zip(*row["frontier"], strict=True))
                panel.step(
                    [*bits, FLOAT32_BITS], [*facts, facts[-1]], where="post", markersize=4, markevery=slice(len(bits)),
                    **_style(methods.index(row["method"])),
                )  # fmt: skip
            panel.set(title=f"d = {d}", xlabel="significant bits of each weight")
            panel.set_xticks([1, 4, 8, 11, 16, 20, 24])
            panel.set_ylim(bottom=0)
            panel.yaxis.set_major_formatter("{x:,.0f}")
        for panel in axes[len(panels) :]:
            panel.remove()
        axes[0].set_ylabel("facts stored, Any of the trials")
        for place, method in enumerate(methods):
            axes[0].plot([], [], label=label(method, 32), **_style(place))
        drawn.legend(loc="outside upper center", ncols=2)
        stored = stored_share(threshold)
        d, shown = list(panels.items())[-1]
        best = max(shown, key=lambda row: facts_within(row["frontier"], 8))
        return picture(
            name, drawn,
            alt=f"Facts over significant bits, with {stored}: at 8 bits and d = {d}, {best['method']} stores the most, "
            f"{number(facts_within(best['frontier'], 8))}.",
            caption=f"Most facts with {stored} in weights rounded to a number of significant bits: bfloat16 keeps 8, float16 "
            "11, float32 24. Trained networks, and those others that lead these at some number of bits. Only numbers of "
            "facts that a search tried are marked.",
        )  # fmt: skip


def leading(rows: Rows) -> Rows:
    """The trained networks, and what no other untrained one beats at some number of bits."""
    others = [row for row in rows if row["kind"] != "trained"]
    best = [
        max(others, key=lambda row: facts_within(row["frontier"], bits), default=None)
        for bits in range(1, FLOAT32_BITS + 1)
        if any(facts_within(row["frontier"], bits) for row in others)
    ]
    return [row for row in rows if row["kind"] == "trained" or row in best]


def facts_and_bits(rows: Rows, threshold: float) -> Table | None:
    """Facts that weights of so many bits hold; None where nothing was stored."""
    own = _with_frontier(rows, threshold)
    heads = (f"{bits} {name}".strip() for bits, name in FORMATS.items())
    columns = [Column("method"), Column("d", numeric=True), *(Column(name, numeric=True) for name in heads)]
    lines = [
        [
            row["method"],
            number(row["d"]),
            *(number(facts_within(row["frontier"], bits) or None) for bits in FORMATS),
        ]
        for row in sorted(own, key=lambda row: row["d"])
    ]
    return (
        Table(f"At least so many facts by significant bits, {stored_share(threshold)} (Any)", columns, lines)
        if own
        else None
    )


def _with_frontier(rows: Rows, threshold: float) -> Rows:
    return [row for row in rows if row["threshold"] == threshold and row.get("frontier") and is_standard(row)]


def _style(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
