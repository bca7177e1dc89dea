"""What the report of sequential editing says, taken from its results: texts, tables and figures, but no layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mlpswap.benchmark.retention import COLLAPSE, DEFINITIONS, LEAST_SPECIFICITY, MOST_NONFACT_CE, finals
from mlpswap.editing.evaluation import DEFINITIONS as EDITING
from mlpswap.report.benchmark import setting
from mlpswap.report.benchmark_figures import Editors
from mlpswap.report.drawing import INK, Picture, drawing, figure, floats, picture
from mlpswap.report.formats import accuracy, duration, listed, number, plural
from mlpswap.report.tables import Column, Table, glossary
from mlpswap.report.training import TrainingView, training_view

Row = Mapping[str, Any]

SCORES = {
    "retained_efficacy": "retained efficacy",
    "retained_paraphrase": "retained paraphrase",
    "specificity": "specificity",
    "immediate_efficacy": "immediate efficacy",
    "immediate_paraphrase": "immediate paraphrase",
    "agreement": "agreement",
    "agreement_language": "agreement, other tokens",
}
FIGURES = {
    "kl": "KL",
    "kl_language": "KL, other tokens",
    "nonfact_ce_ratio": "cross-entropy ratio",
    "nonfact_word_ce_ratio": "ratio without the key",
    "weight_change": "weight change",
    "null_dimension": "q",
    "cache_rank": "rank of the cache",
}
NEARNESS = "specificity_change_by_distance"
MODES = {
    "sequential": "Each batch edits what the batches before it left; nothing is taken back. A refit of the fact MLP (swap) "
    "stores the whole truth as it then stands, as well as its construction can, so that it has nothing to drift from: what it "
    "costs is its time per batch.",
    "independent": "Each batch edits the unedited model: there is nothing to retain.",
    "batch": "All edits were made at once.",
}


@dataclass(frozen=True)
class SequentialView:
    """Everything that the template prints."""

    headline: str
    mode: str
    collapse: str
    figures: list[Picture]
    last: Table
    distance: Table
    batches: list[Table]
    settings: Table
    notes: list[str]
    glossary: list[tuple[str, str, str]]
    base: TrainingView | None
    setup: dict[str, Any]

    @property
    def pictures(self) -> list[Picture]:
        return [*self.figures, *(self.base.pictures if self.base else [])]


def sequential_view(results: Mapping[str, Any]) -> SequentialView:
    """From `results.json`."""
    rows, config = results["rows"], results["config"]
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(row["editor"], []).append(row)
    editors = Editors(list(series))
    labels = SCORES | FIGURES | {NEARNESS: "specificity by distance of keys"}
    return SequentialView(
        headline=f"{config['batches']:,} × {plural(config['size'], 'edit')} on {results['regime']['facts']:,} facts, "
        f"mode {config['mode']}",
        mode=MODES[config["mode"]],
        collapse=COLLAPSE,
        figures=[
            retention(series, editors),
            specificity(series, editors, results["unedited"]["specificity"]),
            curves("language", "nonfact_ce_ratio", "cross-entropy, edited / unedited", series, editors, MOST_NONFACT_CE,
                   "What the edits do to the rest of the language: mean cross-entropy of all predicted tokens but the value, "
                   f"over that of the unedited model. The dotted line is {MOST_NONFACT_CE}."),
            curves("drift", "weight_change", "weight change", series, editors, None,
                   "How far the down-projection has come from that of the unedited model, relative to its length. A refit "
                   "takes quite different weights each time, which says nothing about its answers."),
            curves("seconds", "seconds", "seconds per batch", series, editors, None,
                   "Time that each batch took the editor, without scoring.", "log"),
        ],
        last=score_table("After the last batch", finals(rows), lambda row: row["editor"], "editor"),
        distance=distance_table(finals(rows)),
        batches=[
            score_table(f"{name}, batch by batch", found, lambda row: number(row["batch"]), "batch")
            for name, found in series.items()
        ],
        settings=setting_table(series),
        notes=results["notes"],
        glossary=glossary(EDITING | DEFINITIONS, labels, labels),
        base=training_view(results["base"], results["base_metrics"], "base_") if results["base"] else None,
        setup={"environment": results["environment"], "config": config},
    )  # fmt: skip


def score_table(caption: str, rows: Sequence[Row], name: Callable[[Row], str], heading: str) -> Table:
    """One line for each row; what was not measured is a dash."""
    columns = [Column(heading), Column("edits", numeric=True)]
    columns += [Column(text, metric, numeric=True) for metric, text in (SCORES | FIGURES).items()]
    columns.append(Column("seconds", numeric=True))
    lines: list[list[str | Markup]] = [
        [name(row), number(row["edits"])]
        + [accuracy(row[metric]) for metric in SCORES]
        + [number(row[metric]) for metric in FIGURES]
        + [duration(row["seconds"])]
        for row in rows
    ]
    return Table(caption, columns, lines)


def distance_table(rows: Sequence[Row]) -> Table:
    """Where preserved facts suffer: far from the edited keys or near to them."""
    quarters = ("farthest quarter", "second", "third", "nearest quarter")
    lines: list[list[str | Markup]] = [
        [row["editor"], *(number(change) for change in row[NEARNESS] or [None] * len(quarters))]
        for row in rows
    ]
    return Table(
        "Change of specificity after the last batch, by how near a preserved fact's key comes to an edited one",
        [Column("editor"), *(Column(text, NEARNESS, numeric=True) for text in quarters)],
        lines,
    )


def setting_table(series: Mapping[str, Sequence[Row]]) -> Table:
    lines: list[list[str | Markup]] = [[name, setting(rows[0]["setting"])] for name, rows in series.items()]
    return Table("Settings of the editors", [Column("editor"), Column("setting")], lines)


def _axes(drawn: Any, series: Mapping[str, Sequence[Row]], label: str) -> Any:
    axes = drawn.add_subplot()
    most = max(len(rows) for rows in series.values())
    axes.set(xlabel="batch", ylabel=label, xlim=(0.5, most + 0.5))
    axes.xaxis.get_major_locator().set_params(integer=True)
    return axes


def _draw(axes: Any, name: str, rows: Sequence[Row], metric: str, editors: Editors, **style: Any) -> None:
    axes.plot(
        [row["batch"] for row in rows], floats([row[metric] for row in rows]),
        color=editors.colour(name), marker=editors.marker(name), **style,
    )  # fmt: skip


def retention(series: Mapping[str, Sequence[Row]], editors: Editors) -> Picture:
    """Retained and immediate efficacy over the batches."""
    with drawing():
        from matplotlib.lines import Line2D

        drawn = figure(5.0, 3.7)
        axes = _axes(drawn, series, "efficacy")
        for name, rows in series.items():
            light = {"linestyle": "--", "linewidth": 1, "fillstyle": "none", "markersize": 8}
            _draw(axes, name, rows, "immediate_efficacy", editors, **light)
            _draw(axes, name, rows, "retained_efficacy", editors, label=name)
        axes.set_ylim(-0.04, 1.06)
        lines, names = axes.get_legend_handles_labels()
        lines += [Line2D([], [], color=INK), Line2D([], [], color=INK, linewidth=1, linestyle="--")]
        drawn.legend(lines, [*names, "retained", "immediate"], loc="outside upper center", ncols=3)
        return picture(
            "retention",
            drawn,
            alt=f"Retained and immediate efficacy after each batch, for {listed(list(series))}.",
            caption="Solid lines: of all edits so far, how many the model tells now. Dashed lines: of the latest batch alone, "
            "right after it. The gap between them is what later batches have destroyed.",
        )


def specificity(series: Mapping[str, Sequence[Row]], editors: Editors, unedited: float | None) -> Picture:
    """Specificity over the batches, from the unedited model on."""
    start: Row = {"batch": 0, "specificity": unedited}
    with drawing():
        drawn = figure(5.0, 3.5)
        axes = _axes(drawn, series, "specificity")
        for name, rows in series.items():
            _draw(axes, name, [start, *rows], "specificity", editors, label=name)
        axes.axhline(LEAST_SPECIFICITY, color=INK, linewidth=1, linestyle=":")
        axes.set_ylim(-0.04, 1.06)
        axes.set_xlim(left=-0.5)
        drawn.legend(loc="outside upper center", ncols=3)
        return picture(
            "specificity",
            drawn,
            alt=f"Specificity after each batch, for {listed(list(series))}.",
            caption="Preserved facts that the model still tells; batch 0 is the unedited model. Below the dotted line a model "
            "counts as collapsed.",
        )


def curves(
    name: str,
    metric: str,
    label: str,
    series: Mapping[str, Sequence[Row]],
    editors: Editors,
    limit: float | None,
    caption: str,
    scale: str = "linear",
) -> Picture:
    """Any one figure over the batches."""
    with drawing():
        drawn = figure(5.0, 3.5)
        axes = _axes(drawn, series, label)
        for editor, rows in series.items():
            _draw(axes, editor, rows, metric, editors, label=editor)
        axes.set_yscale(scale)
        if limit is not None:
            axes.axhline(limit, color=INK, linewidth=1, linestyle=":")
        drawn.legend(loc="outside upper center", ncols=3)
        alt = f"{label} after each batch, for {listed(list(series))}."
        return picture(name, drawn, alt=alt[0].upper() + alt[1:], caption=caption)
