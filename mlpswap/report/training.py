"""What the report of a training run says, taken from its results: texts, tables and figures, but no layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mlpswap.metrics import DEFINITIONS
from mlpswap.report import training_figures as figures
from mlpswap.report.drawing import Picture
from mlpswap.report.formats import (
    accuracy,
    answer,
    duration,
    fact,
    number,
    plural,
    prompt,
    ratio,
    share,
)
from mlpswap.report.tables import Column, Table, Tile, glossary

LABELS = {
    "value_accuracy": "accuracy before the swap",
    "fact_adaptive_accuracy": "accuracy after the swap",
    "capacity_trained": "capacity before the swap",
    "capacity_swap": "capacity after the swap",
    "usability": "usability",
    "attention_mass": "attention to the key",
    "gate_value": "fact expert at the value",
    "gate_other": "fact expert elsewhere",
    "nonfact_ce_before": "cross-entropy before",
    "nonfact_ce_after": "cross-entropy after",
    "nonfact_ce_ratio": "cross-entropy ratio",
    "nonfact_word_ce_ratio": "ratio without the key",
    "heldout_accuracy": "unseen templates before",
    "heldout_accuracy_after_swap": "unseen templates after",
}
SHARES = {
    "value_accuracy", "fact_adaptive_accuracy", "capacity_trained", "capacity_swap", "usability",
    "attention_mass", "gate_value", "gate_other", "heldout_accuracy", "heldout_accuracy_after_swap",
}  # fmt: skip
POOR = 0.9  # accuracy of a template below which it is flagged


@dataclass(frozen=True)
class TrainingView:
    """Everything that the template of a training run prints."""

    summary: list[str]
    tiles: list[Tile]
    curves: list[Picture]
    attention: Picture
    attention_text: Markup
    answers: Table
    constructions: Table
    templates: Table
    template_dots: Picture
    poor: list[str]
    language: Table | None
    facts: list[tuple[str, str]]
    glossary: list[tuple[str, str, str]]
    setup: dict[str, Any]

    @property
    def pictures(self) -> list[Picture]:
        return [*self.curves, self.attention, self.template_dots]


def training_view(results: Mapping[str, Any], events: figures.Events, prefix: str = "") -> TrainingView:
    """From `results.json` and the lines of `metrics.jsonl`. `prefix` keeps the names of figures apart on one page."""
    metrics = results["metrics"]
    templates = results["templates"]
    curves = [figures.loss_curve(events, prefix), figures.learning_curves(events, prefix)]
    return TrainingView(
        summary=summary(results, events),
        tiles=tiles(results),
        curves=[curve for curve in curves if curve is not None],
        attention=figures.attention_map(results["attention"], prefix),
        attention_text=attention_text(results["attention"]),
        answers=answers(results["answers"]),
        constructions=constructions(results["rows"]),
        templates=template_table(templates),
        template_dots=figures.template_dots(templates, prefix),
        poor=[f"{row['template']}" for row in templates if _is_poor(row)],
        language=language(metrics) if "nonfact_ce_before" in metrics else None,
        facts=facts(results["facts"], results["pairs"]),
        glossary=glossary(DEFINITIONS, LABELS, metrics),
        setup={"environment": results["environment"], "config": results["config"]},
    )


def summary(results: Mapping[str, Any], events: figures.Events) -> list[str]:
    """The run in plain sentences."""
    metrics, mlp, config, stored = (results[name] for name in ("metrics", "fact_mlp", "config", "facts"))
    host = config["host"]
    stopped = any(event["event"] == "early_stop" for event in events)
    return [
        f"A transformer of {plural(host['n_layer'], 'layer')} and width d = {host['n_embd']} was trained on the task "
        f"“{config['task']}” around a fact MLP that stores {plural(stored['count'], 'fact')}: construction "
        f"“{mlp['construction']}”, {mlp['kind']}, hidden width h = {mlp['h']:,}, {plural(mlp['parameters'], 'parameter')}, "
        f"{share(mlp['accuracy'])} of the facts stored.",
        f"The fact MLP is built first and never trained with the rest. In {plural(metrics['steps'], 'step')}"
        f"{' (stopped early)' if stopped else ''}, {duration(metrics['train_seconds'])}, the transformer learnt to find the "
        "key in a prompt, hand it to the MLP and say the value that comes out.",
        f"Then the MLP was exchanged for one that stores the same keys with other values: {stored['altered']:,} of "
        f"{plural(stored['count'], 'fact')} differ. Nothing else was changed. A transformer that uses its MLP as a "
        "store of facts, rather than knowing them by heart, must now answer with the new values.",
    ]


def tiles(results: Mapping[str, Any]) -> list[Tile]:
    """The headline figures, each with a sentence."""
    metrics, stored = results["metrics"], results["facts"]
    guess = f"Always guessing the commonest value would score {accuracy(stored['majority_share'])}."
    notes = {
        "value_accuracy": f"Prompts answered rightly with the MLP trained with. {guess}",
        "fact_adaptive_accuracy": f"Prompts answered with the new value once the MLP is swapped. {guess}",
        "capacity_swap": "Facts that the MLP swapped in stores by itself: the most that the transformer could answer.",
        "usability": "Accuracy after the swap per capacity: how much of what the MLP stores the transformer can use.",
        "heldout_accuracy_after_swap": "The new values again, asked in sentences that were never trained.",
        "nonfact_ce_ratio": "Change of the cross-entropy of all other words: the swap should leave the language alone.",
        "attention_mass": "How much the last position looks at the key.",
        "gate_value": "Weight of the fact expert where the value is said.",
    }
    return [
        Tile(LABELS[name], _shown(name, metrics[name]), note, name)
        for name, note in notes.items()
        if name in metrics
    ]


def _shown(name: str, value: Any) -> str:
    if name in SHARES:
        return accuracy(value)
    return ratio(value) if name.endswith("ratio") else number(value)


def attention_text(attention: Mapping[str, Any]) -> Markup:
    """Where the last token of the pictured prompt looks, in one sentence."""
    tokens, last = attention["tokens"], attention["weights"][-1]
    on_key = [w for token, w in zip(tokens, last, strict=True) if token == attention["key"] and w is not None]
    return Markup("At the last position {} of the attention is on the key {}; the model answers {}.").format(
        share(sum(on_key)) if on_key else "an unknown share",
        fact(attention["key"]),
        fact(attention["answer"]),
    )


def answers(rows: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        "What the saved model answers before the swap, and after the saved swap was loaded and applied",
        [Column("prompt"), Column("before"), Column("after")],
        [
            [
                prompt(row["prompt"], row["key"]),
                answer(row["before"], row["true"], correct=True),
                answer(row["after"], row["wanted_after"], correct=True),
            ]
            for row in rows
        ],
    )


# What no fact MLP has a say in, or what stands in the table of the language: left out, the rest fits a page.
SAME_FOR_ALL = {"attention_mass", "gate_value", "gate_other", "nonfact_ce_before", "nonfact_ce_after"}


def constructions(rows: Sequence[Mapping[str, Any]]) -> Table:
    names = [name for name in LABELS if name in rows[0] and name not in SAME_FOR_ALL]
    return Table(
        "Every fact MLP that was swapped in, on the same prompts; the first is the one of the headline figures",
        [Column("construction"), Column("h", numeric=True), Column("parameters", numeric=True)]
        + [Column(LABELS[name], name, numeric=True) for name in names],
        [
            [row["construction"], number(row["h"]), number(row["parameters"])]
            + [_shown(name, row[name]) for name in names]
            for row in rows
        ],
    )


def _is_poor(row: Mapping[str, Any]) -> bool:
    return any(row[name] is not None and row[name] < POOR for name in ("before", "after"))


def template_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        "Accuracy by template, on the sampled prompts",
        [
            Column("template"),
            *(Column(name, numeric=True) for name in ("prompts", "before", "after")),
            Column(""),
        ],
        [
            [
                number(row["template"]),
                number(row["prompts"]),
                accuracy(row["before"]),
                accuracy(row["after"]),
                Markup('<strong class="flag">⚠ below {}</strong>').format(POOR) if _is_poor(row) else "",
            ]
            for row in rows
        ],
    )


def language(metrics: Mapping[str, Any]) -> Table:
    names = [name for name in metrics if name.startswith("nonfact_") or name == "gate_other"]
    return Table(
        "Words that are no facts, before and after the swap, on the same prompts",
        [Column("measure"), Column("value", numeric=True)],
        [[LABELS[name], _shown(name, metrics[name])] for name in names],
    )


def facts(stored: Mapping[str, Any], pairs: Mapping[str, int]) -> list[tuple[str, str]]:
    return [
        ("facts", number(stored["count"])),
        ("different values", number(stored["values"])),
        ("facts altered by the swap", number(stored["altered"])),
        ("share of the commonest value", accuracy(stored["majority_share"])),
        ("prompts measured", ", ".join(f"{count:,} ({stream})" for stream, count in pairs.items())),
        ("fingerprint (SHA-256)", stored["fingerprint"]),
        ("fingerprint after the swap", stored["swapped_fingerprint"]),
    ]
