"""The pictures of the leader board and of the ablation: growth with the width, and weights side by side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlpswap.report.drawing import COLOURS, INK, MARKERS, Picture, drawing, figure, label, picture
from mlpswap.report.formats import listed, number
from mlpswap.sequences.board.laws import Law, fit_law
from mlpswap.sequences.board.pictured import Pictured
from mlpswap.sequences.board.published import LAWS, PUBLISHED
from mlpswap.sequences.board.tables import is_standard

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]
DASHES = ("--", ":", "-.", (0, (1, 3)))
SHARE = 0.98  # of the entries of a matrix lie inside the range of its colours


def growth_picture(rows: Rows, threshold: float, name: str) -> Picture | None:
    """Facts over the width, with fitted laws, beside the published figures; None where nothing was stored."""
    facts = facts_by_method(rows, threshold)
    if not facts:
        return None
    sizes = sorted({d for found in facts.values() for d in found})
    with drawing():
        drawn = figure(5.6, 5.2)
        axes = drawn.add_subplot(xscale="log", yscale="log")
        for place, (method, found) in enumerate(facts.items()):
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
            axes.plot(list(found), list(found.values()), marker, color=colour, label=label(method, 32))
            _draw_law(axes, fit_law(found), sorted(found), color=colour)
        for dash, series in zip(DASHES, LAWS, strict=True):
            published = {
                d: n for d, (n, *_) in PUBLISHED[series].get(threshold, {}).items() if n and d in sizes
            }
            style: dict[str, Any] = {"color": INK, "linewidth": 1, "linestyle": dash}
            axes.plot([], [], label=f"published {series}", **style)
            axes.plot(list(published), list(published.values()), "+", color=INK)
            if threshold in LAWS[series]:
                _draw_law(axes, Law(*LAWS[series][threshold]), sizes, **style)
        axes.set(xlabel="width d, with 2d tokens and d labels", ylabel="facts stored, Any of the trials")
        _plain_ticks(axes, sizes)
        drawn.legend(loc="outside upper center", ncols=2)
        ends = [
            f"{method} {number(found[max(found)])} at d = {max(found)}" for method, found in facts.items()
        ]
        stored = stored_share(threshold)
        return picture(
            name,
            drawn,
            alt=f"Facts over the width, with {stored}: {listed(ends)}.",
            caption=f"Largest number of facts with {stored}. Marks are measured, lines a d^p / ln d fitted to them, as far as "
            "they go; crosses and broken lines are the published figures and laws.",
        )


def stored_share(threshold: float) -> str:
    return "all facts right" if threshold == 1 else f"{100 * threshold:g} % of the facts right"


def facts_by_method(rows: Rows, threshold: float) -> dict[str, dict[int, int]]:
    """By method, the facts stored (Any) at each standard size."""
    found: dict[str, dict[int, int]] = {}
    for row in sorted(rows, key=lambda row: row["d"]):
        if row["threshold"] == threshold and is_standard(row) and row.get("any"):
            found.setdefault(row["method"], {})[row["d"]] = row["any"]
    order = list(dict.fromkeys(row["method"] for row in rows))
    return {method: found[method] for method in order if method in found}


def sweep_picture(rows: Rows) -> Picture | None:
    """The best S and f of the published construction as the sizes grow together and each alone; None if none does alone."""
    chosen = [row for row in rows if "neurons_per_label" in (row.get("any_options") or {})]
    panels = varied_sizes(chosen)
    if len(panels) < 2:
        return None
    series = list(dict.fromkeys((row["method"], row["threshold"]) for row in chosen))
    with drawing():
        drawn = figure(1.9 * len(panels), 4.4)
        axes = drawn.subplots(2, len(panels), squeeze=False, sharex="col", sharey="row")
        for column, (title, (size, own)) in enumerate(panels.items()):
            for place, (method, threshold) in enumerate(series):
                points = sorted(
                    (row for row in own if (row["method"], row["threshold"]) == (method, threshold)),
                    key=lambda row: row[size],
                )
                for line, option in enumerate(("neurons_per_label", "top_fraction")):
                    axes[line, column].plot(
                        [row[size] for row in points],
                        [row["any_options"].get(option) for row in points],
                        color=COLOURS[place % len(COLOURS)], marker=MARKERS[place % len(MARKERS)],
                        label=label(f"{method}, {threshold:g}", 32) if line == column == 0 else None,
                    )  # fmt: skip
            axes[1, column].set_xscale("log")
            axes[1, column].set_xlabel(title)
            sizes = sorted({row[size] for row in own})
            axes[1, column].set_xticks(sizes, [str(each) for each in sizes])
            axes[1, column].minorticks_off()
        axes[0, 0].set_ylabel("best S")
        axes[1, 0].set_ylabel("best f")
        drawn.legend(loc="outside upper center", ncols=2)
        return picture(
            "sweep", drawn,
            alt=f"Best S and f of {listed(list(dict.fromkeys(method for method, _ in series)))} over {listed(list(panels))}.",
            caption="Neurons of each label (S) and share of a neuron's tokens at -1 (f) that store the most facts, Any of the "
            "trials, over d neurons, V tokens and C labels. Neighbours on the grid often store as many.",
        )  # fmt: skip


def varied_sizes(rows: Rows) -> dict[str, tuple[str, Rows]]:
    """Sizes that grow together (V = 2d, C = d), and those that differ from the most frequent neighbour in one number.

    As title -> (the number that grows, rows).
    """
    sizes = {(row["d"], row["tokens"], row["labels"]) for row in rows}
    standard = {size for size in sizes if size[1:] == (2 * size[0], size[0])}
    if not standard:
        return {}

    def differing(base: tuple[int, ...], place: int) -> set[tuple[int, ...]]:
        return {size for size in sizes if all(size[n] == base[n] for n in range(3) if n != place)}

    base = max(sorted(standard), key=lambda each: sum(len(differing(each, place)) for place in range(3)))
    groups: dict[str, tuple[str, set[tuple[int, ...]]]] = {"d = V / 2 = C": ("d", set(standard))}
    for place, (key, title) in enumerate((("d", "d alone"), ("tokens", "V alone"), ("labels", "C alone"))):
        groups[title] = (key, differing(base, place))
    return {
        title: (key, [row for row in rows if (row["d"], row["tokens"], row["labels"]) in group])
        for title, (key, group) in groups.items()
        if len(group) > 1
    }


def _draw_law(axes: "Axes", law: Law | None, sizes: Sequence[int], **style: Any) -> None:
    if law is not None and len(sizes) > 1:
        steps = [sizes[0] * (sizes[-1] / sizes[0]) ** (step / 40) for step in range(41)]
        axes.plot(steps, [law(d) for d in steps], **style)


def _plain_ticks(axes: "Axes", sizes: Sequence[int]) -> None:
    axes.set_xticks(sizes, [str(d) for d in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,.0f}")


def weights_picture(pictured: Sequence[Pictured]) -> Picture | None:
    """Embeddings, unembeddings and activations of several networks side by side; None for no network."""
    if not pictured:
        return None
    with drawing():
        drawn = figure(0.6 + 2.1 * len(pictured), 8.4)
        axes = drawn.subplots(4, len(pictured), squeeze=False, height_ratios=[2, 2, 1, 2.4])
        for column, each in enumerate(pictured):
            parts = {
                "E1, first token": each.network.first,
                "E2, second token": each.network.second,
                "U, label": each.network.unembedding,
                "activations, fact by label": each.network.hidden(each.facts),
            }
            for row, (title, matrix) in enumerate(parts.items()):
                panel = axes[row, column]
                limit = float(matrix.abs().flatten().float().quantile(SHARE)) or 1.0
                signed = row < 3
                panel.imshow(
                    matrix.numpy(), aspect="auto", interpolation="nearest",
                    cmap="RdBu" if signed else "Blues", vmin=-limit if signed else 0, vmax=limit,
                )  # fmt: skip
                panel.grid(visible=False)
                panel.set_xticks([])
                panel.set_yticks([])
                if column == 0:
                    panel.set_ylabel(title)
                panel.set_xlabel(f"neuron; colours to {limit:.2g}", fontsize=8)
            axes[0, column].set_title(
                f"{label(each.name, 24)}\n{number(len(each.facts))} facts", fontsize=9.5
            )
        names = [f"{each.name} with {number(len(each.facts))} facts" for each in pictured]
        return picture(
            "weights",
            drawn,
            alt=f"Embeddings, unembeddings and activations of {listed(names)}.",
            caption="One network of each kind, at the most facts that it stores: blue is positive, red negative, and each "
            f"panel has its own range of colours, beyond which {1 - SHARE:.0%} of its entries lie.",
        )


def scaling_picture(rows: Rows) -> Picture | None:
    """The named toy models over the width; None for fewer than two widths with any facts."""
    own = [row for row in rows if row["part"] == "scaling" and any(row["any"])]
    sizes = sorted({row["d"] for row in own})
    if len(sizes) < 2:
        return None
    with drawing():
        drawn = figure(5.4, 3.8)
        axes = drawn.add_subplot(xscale="log", yscale="log")
        ends = []
        for place, name in enumerate(dict.fromkeys(row["name"] for row in own)):
            mine = sorted((row for row in own if row["name"] == name), key=lambda row: row["d"])
            style: dict[str, Any] = {"color": COLOURS[place]}
            best = {row["d"]: max(row["any"]) for row in mine}
            law = fit_law(best)
            _draw_law(axes, law, sorted(best), **style)
            for row in mine:
                axes.plot([row["d"]] * len(row["any"]), row["any"], MARKERS[place], **style)
                if row["published_any"]:
                    axes.plot([row["d"]], [row["published_any"]], "+", color=INK)
            power = f", {law.factor:.3g} d^{law.power:.2f} / ln d" if law else ""
            axes.plot([], [], marker=MARKERS[place], label=f"{name}{power}", **style)
            ends.append(f"{name} {number(best[max(best)])} at d = {max(best)}")
        axes.set(xlabel="width d, with 2d tokens and d labels", ylabel="facts stored, Any of the trials")
        _plain_ticks(axes, sizes)
        drawn.legend(loc="outside upper center")
        return picture(
            "scaling", drawn, alt=f"Facts over the width: {listed(ends)}.",
            caption="Facts that the named models store, each search a mark; crosses are published.",
        )  # fmt: skip


def table_picture(rows: Rows) -> Picture | None:
    """Every architecture as a bar from All over Most to Any, those with most facts first; None if there is no table."""
    own = [row for row in rows if row["part"] == "table" and row["any"]]
    if not own:
        return None
    means = [[sum(row[rule]) / len(row[rule]) for rule in ("any", "most", "all")] for row in own]
    order = sorted(range(len(own)), key=lambda place: means[place])
    with drawing():
        drawn = figure(6.4, 0.9 + 0.19 * len(own))
        axes = drawn.add_subplot()
        for height, place in enumerate(order):
            most, middle, least = means[place]
            axes.plot([least, most], [height, height], color=COLOURS[0], linewidth=2)
            axes.plot([most], [height], "o", color=COLOURS[0], markersize=4.5)
            axes.plot([middle], [height], "|", color=INK, markersize=6)
            if own[place]["published_any"] is not None:
                axes.plot([own[place]["published_any"]], [height], "+", color=COLOURS[1])
        axes.set(xlabel="facts stored: All, Most and Any (dot) of the trials", ylim=(-1, len(own)))
        axes.set_yticks(range(len(own)), [own[place]["name"] for place in order], fontsize=7.5)
        axes.set_xlim(left=0)
        best, worst = own[order[-1]], own[order[0]]
        return picture(
            "architectures", drawn,
            alt=f"Facts of every architecture, from {worst['name']} to {best['name']}.",
            caption="Each architecture from All to Any, with a tick at Most; means over the repeated searches. Crosses, where "
            "there are any, are published (Any).",
        )  # fmt: skip
