"""What the reports of `mlpswap sequences` say: the leader board of methods, and the ablation of toy models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlpswap.report.drawing import Picture
from mlpswap.report.formats import NOTHING, number
from mlpswap.report.frontier import facts_and_bits, frontier_picture
from mlpswap.report.sequences_figures import (
    Rows,
    facts_by_method,
    growth_picture,
    scaling_picture,
    stored_share,
    sweep_picture,
    table_picture,
    weights_picture,
)
from mlpswap.report.tables import Column, Table
from mlpswap.sequences.ablation.run import effects
from mlpswap.sequences.ablation.tables import TITLES, figures, percent, three
from mlpswap.sequences.board.laws import fit_law
from mlpswap.sequences.board.pictured import FILE, load_pictured
from mlpswap.sequences.board.published import LAWS
from mlpswap.sequences.board.tables import LEADERS, NOTES, entries, leaders
from mlpswap.sequences.scores import RULES

BOARD = (
    "Each network z = relu(E1[a] + E2[b]), logits = U z, holds random facts (a, b) -> label over V = 2d tokens and C = d "
    "labels. A method's figure is the largest number of facts that its trials store: at least one of them (Any), more than "
    "half (Most), or every one (All).",
    NOTES,
)
DIGITS = (
    "A method that puts the labels into low-order digits may hold many facts, and needs more bits than a trained network: "
    "here is what each stores in weights of a given number of significant bits. Only numbers of facts that a search tried "
    "count, so that a method may hold more than the table says.",
)
ABLATION = (
    "Toy models of one transformer layer, read at the second of two tokens, trained with every part switched on or off. A "
    "figure is the largest number of random facts that they get right, every one, in at least one (Any), more than half "
    "(Most) or all (All) of the trials.",
)


@dataclass(frozen=True)
class Section:
    """A heading, its id, and what stands under it."""

    title: str
    name: str
    text: Sequence[str]
    pictures: Sequence[Picture]
    tables: Sequence[Table]


@dataclass(frozen=True)
class SequencesView:
    """Everything that the template prints."""

    sections: list[Section]
    setup: dict[str, Any]

    @property
    def pictures(self) -> list[Picture]:
        return [picture for section in self.sections for picture in section.pictures]


def board_view(results: Mapping[str, Any], folder: Path) -> SequencesView:
    """From `results.json`, and the networks that the run kept for their pictures."""
    rows = results["rows"]
    thresholds = sorted({row["threshold"] for row in rows}, reverse=True)
    curves = [
        growth_picture(rows, threshold, f"facts_{threshold:g}".replace(".", "_")) for threshold in thresholds
    ]
    weights = weights_picture(load_pictured(folder / FILE))
    sections = [
        Section(
            "Overview",
            "overview",
            BOARD,
            there(*curves),
            [_table(LEADERS, leaders(rows)), laws(rows, thresholds)],
        ),
        Section("All entries", "entries", (), (), [_table("Facts stored", entries(rows, results["config"]))]),
    ]
    digits = there(*(frontier_picture(rows, t, f"bits_{t:g}".replace(".", "_")) for t in thresholds))
    held = [table for threshold in thresholds if (table := facts_and_bits(rows, threshold)) is not None]
    if held:
        sections.append(Section("Facts and bits", "bits", DIGITS, digits, held))
    if (sweep := sweep_picture(rows)) is not None:
        sections.append(Section("Best options", "options", (), [sweep], ()))
    if weights is not None:
        sections.append(Section("Weights", "weights-shown", (), [weights], ()))
    return SequencesView(sections, _setup(results))


def ablation_view(results: Mapping[str, Any]) -> SequencesView:
    """From `results.json`."""
    rows = results["rows"]
    pictures = {"table": table_picture(rows), "scaling": scaling_picture(rows)}
    sections = [
        Section("Overview", "overview", ABLATION, (), [changes] if (changes := switches(rows)) else [])
    ]
    for part, title in TITLES.items():
        own = [row for row in rows if row["part"] == part]
        if own:
            sections.append(Section(title, part, (), there(pictures[part]), [models(own, title)]))
    return SequencesView(sections, _setup(results))


def there(*pictures: Picture | None) -> list[Picture]:
    return [picture for picture in pictures if picture is not None]


def laws(rows: Rows, thresholds: Sequence[float]) -> Table:
    """a and p of the fitted laws, ours and the published ones."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        fits = [fit_law(facts_by_method(rows, threshold).get(method, {})) for threshold in thresholds]
        if any(fits):
            lines.append([method, *(_law(fit.factor, fit.power) if fit else NOTHING for fit in fits)])
    for series, published in LAWS.items():
        lines.append(
            [
                f"published: {series}",
                *(_law(*published[t]) if t in published else NOTHING for t in thresholds),
            ]
        )
    columns = [
        Column("facts (Any)"),
        *(Column(stored_share(threshold), numeric=True) for threshold in thresholds),
    ]
    return Table("Fitted laws of the facts, by the width d", columns, lines)


def _law(factor: float, power: float) -> str:
    return f"{factor:.3g} d^{power:.2f} / ln d"


def _table(caption: str, lines: list[list[str]]) -> Table:
    """From a heading and its lines; what is not a name or a sentence is a number."""
    texts = ("method", "column", "options (Any)", "")
    columns = [Column(name, numeric=name not in texts) for name in lines[0]]
    return Table(
        caption, columns, [[cell or NOTHING for cell in line[:-1]] + line[-1:] for line in lines[1:]]
    )


def switches(rows: Rows) -> Table | None:
    """What each switch changes; None without a table of architectures."""
    found = effects(rows)
    columns = [
        Column("change"),
        *(Column(name, numeric=True) for name in ("pairs", "least", "median", "most")),
    ]
    lines = [
        [
            each["switch"],
            number(each["pairs"]),
            *(percent(each[name]) for name in ("least", "median", "most")),
        ]
        for each in found
    ]
    return Table("Facts (Any) of models that differ in one switch alone", columns, lines) if lines else None


def models(rows: Rows, title: str) -> Table:
    names = ("d", "parameters", "Any", "Most", "All", "published", "seconds")
    columns = [Column("architecture"), *(Column(name, numeric=True) for name in names), Column("")]
    lines = [
        [
            row["name"], number(row["d"]), number(row["parameters"]), *(figures(row, rule) for rule in RULES),
            three(row) or NOTHING, number(row["seconds"]), row["note"],
        ]
        for row in rows
    ]  # fmt: skip
    return Table(f"{title}: one figure for each search", columns, lines)


def _setup(results: Mapping[str, Any]) -> dict[str, Any]:
    return {"environment": results["environment"], "config": results["config"]}
