"""The figures of a benchmark. Each takes plain numbers, any of which may be None, and returns a `Picture`."""

from collections.abc import Mapping, Sequence
from typing import Any

from mlpswap.report.drawing import COLOURS, INK, MARKERS, Picture, drawing, figure, floats, picture
from mlpswap.report.formats import duration, listed, number


class Editors:
    """A colour and a marker for each editor, the same in every figure."""

    def __init__(self, names: Sequence[str]):
        self.names = list(names)

    def colour(self, name: str) -> str:
        return COLOURS[self.names.index(name) % len(COLOURS)]

    def marker(self, name: str) -> str:
        return MARKERS[self.names.index(name) % len(MARKERS)]

    def moved(self, name: str, shares: Sequence[float]) -> list[float]:
        """Places on the axis, a little beside the true ones, so that equal results do not hide each other."""
        width = 0.012 * (max(shares) - min(shares) or max(shares))
        shift = self.names.index(name) - (len(self.names) - 1) / 2
        return [100 * (x + shift * width) for x in shares]


Series = Mapping[str, Sequence[tuple[float, Mapping[str, Any]]]]  # by editor: (share of altered facts, row)


def _share_axis(axes: Any, series: Series) -> None:
    shares = sorted({x for points in series.values() for x, _ in points})
    axes.set_xticks([100 * x for x in shares], [f"{100 * x:.3g}" for x in shares])
    if len(shares) == 1:
        axes.set_xlim(80 * shares[0], 120 * shares[0])
    axes.set_xlabel("altered facts (% of all)")


def score_curves(series: Series, editors: Editors) -> Picture:
    """The paper's Figure 4: score against the share of altered facts."""
    with drawing():
        from matplotlib.lines import Line2D

        drawn = figure(5.0, 3.7)
        axes = drawn.add_subplot()
        for name, points in series.items():
            x = editors.moved(name, [share for share, _ in points])
            harmonic, geometric = (
                floats([row[f"score_{mean}"] for _, row in points]) for mean in ("harmonic", "geometric")
            )
            style: dict[str, Any] = {"color": editors.colour(name), "marker": editors.marker(name)}
            axes.plot(x, geometric, **style, linestyle="--", linewidth=1, fillstyle="none", markersize=8)
            axes.plot(x, harmonic, **style, label=name)
        axes.set(ylim=(-0.04, 1.06), ylabel="score")
        _share_axis(axes, series)
        lines, names = axes.get_legend_handles_labels()
        lines += [Line2D([], [], color=INK), Line2D([], [], color=INK, linestyle="--", linewidth=1)]
        names += ["harmonic (filled)", "geometric (hollow)"]
        drawn.legend(lines, names, loc="outside upper center", ncols=3)
        return picture(
            "scores",
            drawn,
            alt=f"Score of {listed(list(series))} against the share of altered facts; the numbers are in the tables below.",
            caption="Score against the share of facts altered, as in Figure 4 of arXiv 2512.00207: the harmonic mean of "
            "efficacy, paraphrase and specificity (solid, filled), and their geometric mean (dashed, hollow). Each editor at "
            "its oracle setting. Points stand a little aside so that equal ones show.",
        )


def language_curves(series: Series, editors: Editors) -> Picture | None:
    """Harm to the rest of the language: the cross-entropy ratio against the share of altered facts."""
    with drawing():
        drawn = figure(5.0, 3.7)
        axes = drawn.add_subplot()
        known: list[float] = []
        for name, points in series.items():
            measured = [
                (share, row["nonfact_ce_ratio"])
                for share, row in points
                if row["nonfact_ce_ratio"] is not None
            ]
            if measured:
                shares, ratios = zip(*measured, strict=True)
                known += ratios
                axes.plot(
                    editors.moved(name, shares), ratios, label=name,
                    color=editors.colour(name), marker=editors.marker(name),
                )  # fmt: skip
        if not known:
            return None
        axes.axhline(1, color=INK, linewidth=1)
        axes.axhline(1.03, color=INK, linewidth=1, linestyle=":")
        axes.set_ylim(min(0.98, *known) - 0.005, max(1.05, *known) * 1.01)
        axes.set_ylabel("cross-entropy, after / before")
        _share_axis(axes, series)
        drawn.legend(loc="outside upper center", ncols=3)
        return picture(
            "language",
            drawn,
            alt=f"Cross-entropy of the tokens that are no facts, after the edit over before: from {number(min(known))} "
            f"to {number(max(known))}.",
            caption="What an edit does to the rest of the language: mean cross-entropy of all predicted tokens but the value, "
            "after / before, at the same settings. 1 is no change; the dotted line is the 3 % that the paper names.",
        )


def grid_strips(grid: Mapping[str, Sequence[float | None]], editors: Editors, altered: int) -> Picture:
    """How the harmonic score spreads over an editor's settings."""
    with drawing():
        drawn = figure(5.0, 1.0 + 0.62 * len(grid))
        axes = drawn.add_subplot()
        for place, (name, scores) in enumerate(grid.items()):
            found = sorted(floats(scores))
            # Neighbours in score land far apart: the fractional parts of multiples of the golden ratio.
            heights = [place + 0.5 * ((0.618034 * i) % 1 - 0.5) for i in range(len(found))]
            if len(found) == 1:
                heights = [place]
            axes.plot(
                found, heights, linestyle="", marker=editors.marker(name), color=editors.colour(name),
                alpha=0.6 if len(found) > 1 else 1, markersize=4.5 if len(found) > 1 else 7, markeredgewidth=0,
            )  # fmt: skip
        axes.set_yticks(range(len(grid)), [f"{name} ({len(scores)})" for name, scores in grid.items()])
        axes.set(xlim=(-0.03, 1.03), ylim=(len(grid) - 0.5, -0.5), xlabel="harmonic score")
        axes.grid(axis="y", visible=False)
        return picture(
            "grid",
            drawn,
            alt=f"Harmonic scores of every setting of {listed(list(grid))}.",
            caption=f"Every setting's harmonic score with {altered:,} altered facts; the number of settings stands in "
            "brackets, the height within a row means nothing. With few points near the right, an editor depends on luck.",
        )


def second_bars(stages: Mapping[str, float | None]) -> Picture:
    """Wall time of each stage."""
    with drawing():
        drawn = figure(5.0, 0.9 + 0.4 * len(stages))
        axes = drawn.add_subplot()
        seconds = [value or 0.0 for value in stages.values()]
        bars = axes.barh(range(len(stages)), seconds, color=COLOURS[0], height=0.6)
        axes.bar_label(bars, [duration(value) for value in stages.values()], padding=4, fontsize=9)
        axes.set_yticks(range(len(stages)), list(stages))
        axes.set(ylim=(len(stages) - 0.4, -0.6), xlabel="seconds", xlim=(0, 1.22 * max(seconds) or 1))
        axes.grid(axis="y", visible=False)
        return picture(
            "seconds",
            drawn,
            alt=f"Seconds of each stage: {listed([f'{name} {duration(value)}' for name, value in stages.items()])}.",
            caption="Wall time of the whole benchmark by stage: an editor's bar covers all its settings and their scoring; "
            "“base” is the training of the model and “collect” what all editors share.",
        )
