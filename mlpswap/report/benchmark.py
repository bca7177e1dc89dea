"""What the report of a benchmark says, taken from its results: texts, tables and figures, but no layout."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mlpswap.benchmark.ties import TIE_RULE, scored
from mlpswap.editing.evaluation import DEFINITIONS
from mlpswap.report import benchmark_figures as figures
from mlpswap.report.drawing import Picture
from mlpswap.report.formats import NOTHING, accuracy, answer, duration, fact, number, plural, prompt, share
from mlpswap.report.standings import Standing, overall, stand
from mlpswap.report.tables import Column, Table, glossary
from mlpswap.report.training import TrainingView, training_view

Row = Mapping[str, Any]

SCORES = {  # the score first, so that a phone shows it
    "score_harmonic": "harmonic score",
    "efficacy": "efficacy",
    "paraphrase": "paraphrase",
    "specificity": "specificity",
    "score_geometric": "geometric score",
    "paraphrase_unseen": "paraphrase, unseen templates",
    "specificity_paraphrase": "specificity, other templates",
    "success": "success",
}
RATIOS = {
    "nonfact_ce_ratio": "cross-entropy ratio",
    "nonfact_word_ce_ratio": "ratio without the key",
    "nonfact_ppl_ratio": "perplexity ratio",
}


@dataclass(frozen=True)
class Split:
    """The best rows of all editors on one choice of altered and preserved facts."""

    altered: int
    preserved: int
    unchanged: int
    share: float  # of all facts
    oracle: dict[str, Row]
    selected: dict[str, Row]

    @property
    def name(self) -> str:
        return f"{plural(self.altered, 'altered fact')} ({share(self.share)}), {self.preserved:,} preserved"

    @property
    def standings(self) -> dict[str, Standing]:
        """By kind of choice; selected rows are reported on the second half of the facts."""
        return {
            kind: stand(_scores(rows), scored(self.altered, kind))
            for kind, rows in (("selected", self.selected), ("oracle", self.oracle))
        }


@dataclass(frozen=True)
class BenchmarkView:
    """Everything that the template of a benchmark prints."""

    headline: str
    splits: list[Split]
    tie_rule: str
    regime: Mapping[str, Any]
    seed: int
    figures: list[Picture]
    spread: list[Picture]
    tables: list[Table]
    settings: Table
    answers: Table
    times: Table
    notes: list[str]
    glossary: list[tuple[str, str, str]]
    base: TrainingView | None
    setup: dict[str, Any]

    @property
    def pictures(self) -> list[Picture]:
        return [*self.figures, *self.spread, *(self.base.pictures if self.base else [])]


def benchmark_view(results: Mapping[str, Any]) -> BenchmarkView:
    """From `results.json`."""
    rows, facts = results["rows"], results["regime"]["facts"]
    editors = figures.Editors(list(dict.fromkeys(row["editor"] for row in rows)))
    splits = find_splits(rows, facts)
    series = {
        name: points
        for name in editors.names
        if (points := [(split.share, split.oracle[name]) for split in splits if name in split.oracle])
    }
    largest = splits[-1]
    grid = {
        name: [
            row["score_harmonic"]
            for row in rows
            if (row["editor"], row["selection"], row["altered"], row["preserved"])
            == (name, "grid", largest.altered, largest.preserved)
        ]
        for name in editors.names
    }
    shown = (
        [figures.score_curves(series, editors), figures.language_curves(series, editors)] if series else []
    )
    return BenchmarkView(
        headline=overall([split.standings["selected"] for split in splits]),
        splits=splits,
        tie_rule=TIE_RULE,
        regime=results["regime"],
        seed=rows[0]["seed"],
        figures=[each for each in shown if each is not None],
        spread=[
            figures.grid_strips(grid, editors, largest.altered),
            figures.second_bars(results["stages"]),
        ],
        tables=[score_table(split) for split in splits],
        settings=setting_table(splits),
        answers=answer_table(results["answers"], editors.names),
        times=time_table(results["stages"], rows),
        notes=results["notes"],
        glossary=glossary(DEFINITIONS, SCORES | RATIOS, SCORES | RATIOS),
        base=training_view(results["base"], results["base_metrics"], "base_") if results["base"] else None,
        setup={"environment": results["environment"], "config": results["config"]},
    )


def find_splits(rows: Sequence[Row], facts: int) -> list[Split]:
    """The splits, by number of altered facts, with each editor's oracle and selected row."""
    found: dict[tuple[int, int], Split] = {}
    for row in rows:
        place = row["altered"], row["preserved"]
        split = found.setdefault(place, Split(*place, row["unchanged"], row["altered"] / facts, {}, {}))
        if row["selection"] in ("oracle", "selected"):
            getattr(split, row["selection"])[row["editor"]] = row
    return [found[place] for place in sorted(found)]


def _scores(rows: Mapping[str, Row]) -> dict[str, float | None]:
    return {name: row["score_harmonic"] for name, row in rows.items()}


def score_table(split: Split) -> Table:
    """Both rows of every editor; the best harmonic score of each kind stands out."""
    standings = split.standings
    rows: list[list[str | Markup]] = []
    for name in split.oracle:
        for kind in ("oracle", "selected"):
            row = getattr(split, kind)[name]
            cells: list[str | Markup] = [name, kind]
            for metric in SCORES:
                text = accuracy(row[metric])
                best = metric == "score_harmonic" and name in standings[kind].winners
                cells.append(Markup("<strong>{}</strong>").format(text) if best else text)
            cells += [number(row[metric]) for metric in RATIOS]
            rows.append(cells)
    columns = [Column("editor"), Column("row")]
    columns += [Column(text, name, numeric=True) for name, text in (SCORES | RATIOS).items()]
    return Table(split.name, columns, rows)


def setting_table(splits: Sequence[Split]) -> Table:
    """Which setting was the best one, and what the editor had to remark about it."""
    rows: list[list[str | Markup]] = []
    for split in splits:
        for name in split.oracle:
            for kind in ("oracle", "selected"):
                row = getattr(split, kind)[name]
                remarks = "; ".join(row["notes"])
                rows.append([name, number(split.altered), kind, setting(row["setting"]), remarks])
    columns = [
        Column("editor"),
        Column("altered", numeric=True),
        Column("row"),
        Column("setting"),
        Column("remarks"),
    ]
    return Table("Settings behind the numbers above", columns, rows)


def setting(options: Mapping[str, Any]) -> Markup:
    """An editor's options as key = value."""
    parts = [
        Markup("<code>{} = {}</code>").format(name, json.dumps(value, ensure_ascii=False))
        for name, value in options.items()
    ]
    return Markup(", ").join(parts) if parts else Markup("none")


def answer_table(answers: Sequence[Mapping[str, Any]], editors: Sequence[str]) -> Table:
    """What each edited model says. Altered facts want the new value, preserved ones the old."""
    rows: list[list[str | Markup]] = []
    for line in answers:
        says = [line["by_editor"].get(name) for name in editors]
        rows.append(
            [prompt(line["prompt"], line["key"]), line["kind"], fact(line["old"]), fact(line["wanted"])]
            + [NOTHING if said is None else answer(said, line["wanted"]) for said in says]
        )
    columns = [
        Column("prompt"),
        Column("fact"),
        Column("before the edit"),
        Column("wanted after"),
        *map(Column, editors),
    ]
    return Table(
        "Answers before and after each editor's edit, at its oracle setting for the last split", columns, rows
    )


def time_table(stages: Mapping[str, float | None], rows: Sequence[Row]) -> Table:
    """Seconds of each editor over all its settings and splits, and their mean: settings share much of their work."""
    count = Counter(row["editor"] for row in rows if row["selection"] in ("grid", "screened"))
    lines: list[list[str | Markup]] = [
        [name, number(tried), duration(spent := stages.get(name)), duration(spent / tried if spent else None)]
        for name, tried in count.items()
    ]
    columns = ("settings, over all splits", "in all, with scoring", "mean of a setting")
    return Table(
        "Wall time of the editors",
        [Column("editor"), *(Column(name, numeric=True) for name in columns)],
        lines,
    )
