"""Facts against digits in a leader board's report: what each method stores in weights of so many significant bits."""

import math

from mlpswap.report.drawing import COLOURS, MARKERS, Picture, drawing, figure, label, picture
from mlpswap.report.formats import number
from mlpswap.report.sequences_figures import Rows, stored_share
from mlpswap.report.tables import Column, Table
from mlpswap.sequences.board.frontier import FORMATS, facts_within
from mlpswap.sequences.board.tables import is_standard


def frontier_picture(rows: Rows, threshold: float, name: str) -> Picture | None:
    """Facts over the bits that the weights need, a panel for each standard size; None for fewer than two methods."""
    drawable = [
        row for row in rows if row["threshold"] == threshold and row.get("frontier") and is_standard(row)
    ]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    sizes = [d for d in sorted({row["d"] for row in drawable}) if sum(row["d"] == d for row in drawable) > 1]
    if not sizes:
        return None
    with drawing():
        drawn = figure(0.6 + 2.7 * min(len(sizes), 3), 1.6 + 3.0 * math.ceil(len(sizes) / 3))
        axes = drawn.subplots(math.ceil(len(sizes) / 3), min(len(sizes), 3), squeeze=False).flatten()
        for panel, d in zip(axes, sizes, strict=False):
            for row in (each for each in drawable if each["d"] == d):
                place = methods.index(row["method"])
                bits, facts = zip(
                    *row["frontier"], [max(24, row["frontier"][-1][0]), row["frontier"][-1][1]], strict=True
                )
                panel.step(
                    bits, facts, where="post", color=COLOURS[place % len(COLOURS)],
                    marker=MARKERS[place % len(MARKERS)], markersize=3.5, markevery=slice(len(bits) - 1),
                )  # fmt: skip
            panel.set(title=f"d = {d}", xlabel="significant bits of each weight")
            panel.set_xticks([1, 4, 8, 11, 16, 20, 24])
            panel.set_ylim(bottom=0)
            panel.yaxis.set_major_formatter("{x:,.0f}")
        for panel in axes[len(sizes) :]:
            panel.remove()
        axes[0].set_ylabel("facts stored, Any of the trials")
        for place, method in enumerate(methods):
            if any(row["method"] == method and row["d"] in sizes for row in drawable):
                style = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
                axes[0].plot([], [], label=label(method, 32), **style)
        drawn.legend(loc="outside upper center", ncols=2)
        stored = stored_share(threshold)
        best = max(
            (row for row in drawable if row["d"] == sizes[-1]),
            key=lambda row: facts_within(row["frontier"], 8),
        )
        return picture(
            name, drawn,
            alt=f"Facts over significant bits, with {stored}: at 8 bits and d = {sizes[-1]}, {best['method']} stores the most, "
            f"{number(facts_within(best['frontier'], 8))}.",
            caption=f"Most facts with {stored} in weights rounded to a number of significant bits: bfloat16 keeps 8, float16 "
            "11, float32 24. Only numbers of facts that a search tried are marked.",
        )  # fmt: skip


def facts_and_bits(rows: Rows, threshold: float) -> Table | None:
    """Facts that weights of so many bits hold; None where nothing was stored."""
    own = [row for row in rows if row["threshold"] == threshold and row.get("frontier") and is_standard(row)]
    if not own:
        return None
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
    return Table(f"Facts by significant bits, {stored_share(threshold)} (Any)", columns, lines)
