"""The ablation of toy models as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from mlpswap.sequences.ablation.run import effects
from mlpswap.sequences.scores import RULES

Rows = Sequence[Mapping[str, Any]]
TITLES = {"table": "Every architecture", "scaling": "FULL against SIMPLE"}


def markdown(rows: Rows) -> str:
    parts = [
        "Largest number of facts with every one right, by Any / Most / All of the trials; one figure for each repeated search."
    ]
    for part, title in TITLES.items():
        own = [row for row in rows if row["part"] == part]
        if own:
            parts.append(f"## {title}\n\n" + _rows(own))
    if changes := effects(rows):
        lines = ["| facts, Any | pairs | least | median | most |", "|---|---|---|---|---|"]
        for each in changes:
            ratios = [percent(each[name]) for name in ("least", "median", "most")]
            lines.append("| " + " | ".join([each["switch"], str(each["pairs"]), *ratios]) + " |")
        parts.append("## What each switch changes\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _rows(rows: Rows) -> str:
    beside = any(row["published_any"] is not None for row in rows)
    heads = ["architecture", "d", "parameters", "Any", "Most", "All", *(["published"] if beside else []), ""]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [row["name"], row["d"], row["parameters"], *(figures(row, rule) for rule in RULES)]
        lines.append(
            "| " + " | ".join(map(str, [*cells, *([three(row)] if beside else []), row["note"]])) + " |"
        )
    return "\n".join(lines)


def figures(row: Mapping[str, Any], rule: str) -> str:
    """The searches of one architecture, as in "776 760"."""
    return " ".join(map(str, row[rule])) or "-"


def three(row: Mapping[str, Any]) -> str:
    """The published figures, as in "804 / 692 / 590"."""
    return (
        ""
        if row["published_any"] is None
        else " / ".join(f"{row[f'published_{rule}']:.0f}" for rule in RULES)
    )


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"
