"""A leader board as Markdown: who leads each column at each size, and all entries in full."""

from collections.abc import Mapping, Sequence
from typing import Any

from mlpswap.sequences.board.published import PUBLISHED
from mlpswap.sequences.scores import RULES

Rows = Sequence[Mapping[str, Any]]
# Whose entries may stand in a column of the published board: what is hand-coded is a hybrid with its U left alone.
ELIGIBLE = {
    "hand-coded": ("hand-coded",),
    "hybrid": ("hand-coded", "hybrid"),
    "trained": ("trained",),
}


NOTES = (
    "Facts are stored if this share of them has its label on top, a tie being a miss, in the float32 forward pass of one, "
    "most or all of the trials; of options that were swept, the best count for each column. Success is not quite monotone: "
    "the largest number of facts that succeeded stands first, and the largest below every failure apart from it. Bits are "
    "the significant ones of every weight that keep this accuracy, the margin a share of the largest logit. The published "
    "trained figures are of the same network; with 7 d^2 weights and a longer schedule, a trained one stores 744, 2976 and "
    "10368 facts at d = 16, 32 and 64 (acc = 1, Any)."
)


def markdown(rows: Rows, config: Mapping[str, Any]) -> str:
    parts = [_markdown(entries(rows, config)), NOTES + "\n"]
    if any(is_standard(row) for row in rows):
        parts = [LEADERS + "\n", _markdown(leaders(rows)), *parts]
    return "\n".join(parts)


LEADERS = (
    "Most facts (Any of the trials): ours, by which method / published. A hybrid's unembedding may be trained; what is "
    "hand-coded stands there too. The published figures are the best of a sweep of options and of 11 trials."
)


def leaders(rows: Rows) -> list[list[str]]:
    """Under a heading, for each column and threshold: the entry with the most facts at each size / the published figure."""
    sizes = sorted({row["d"] for row in rows if is_standard(row)} | set(PUBLISHED["hybrid"][1.0]))
    thresholds = sorted({row["threshold"] for row in rows}, reverse=True)
    lines = [["column", *(f"d = {d}" for d in sizes)]]
    for column, eligible in ELIGIBLE.items():
        for threshold in thresholds:
            own = [
                row
                for row in rows
                if row["column"] in eligible and row["threshold"] == threshold and is_standard(row)
            ]
            cells = []
            for d in sizes:
                there = [row for row in own if row["d"] == d and row.get("any")]
                best = max(there, key=lambda row: row["any"], default=None)
                ours = f"{best['any']} {best['method']}" if best else "not run"
                theirs = PUBLISHED[column].get(threshold, {}).get(d, (None,))[0]
                cells.append(f"{ours} / {'-' if theirs is None else theirs}")
            lines.append([f"{column}, {_threshold(threshold)}", *cells])
    return lines


def entries(rows: Rows, config: Mapping[str, Any]) -> list[list[str]]:
    """Under a heading, all rows: Any / Most / All, with what is published for the same column."""
    heads = [
        "method", "column", "d", "stored", "Any / Most / All", "published", "unbroken up to (Any)", "parameters",
        "seconds a network", "bits", "margin", "options (Any)", "",
    ]  # fmt: skip
    varied = any(not is_standard(row) for row in rows)
    if varied:
        heads[3:3] = ["V", "C"]
    lines = [heads]
    for row in rows:
        cells = [
            row["method"], row["column"], row["d"], _threshold(row["threshold"]),
            _three(row, ""), _three(row, "published_"), row.get("any_unbroken"), row["parameters"],
            row.get("seconds"), row.get("bits"), row.get("margin"), _options(row), _note(row, config),
        ]  # fmt: skip
        if varied:
            cells[3:3] = [row["tokens"], row["labels"]]
        lines.append([_text(cell) for cell in cells])
    return lines


def _markdown(lines: list[list[str]]) -> str:
    shown = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([shown[0], "|" + "---|" * len(lines[0]), *shown[1:]]) + "\n"


def is_standard(row: Mapping[str, Any]) -> bool:
    """V = 2d and C = d: the sizes of the published figures."""
    return (row["tokens"], row["labels"]) == (2 * row["d"], row["d"])


def _threshold(threshold: float) -> str:
    return "acc = 1" if threshold == 1 else f"acc >= {threshold:g}"


def _three(row: Mapping[str, Any], prefix: str) -> str:
    values = [row.get(f"{prefix}{rule}") for rule in RULES]
    return "" if values[0] is None else " / ".join("-" if value is None else str(value) for value in values)


def _options(row: Mapping[str, Any]) -> str:
    chosen = row.get("any_options") or {}
    return ", ".join(f"{name} {_text(value)}" for name, value in chosen.items())


def _note(row: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """What makes a row less than the published protocol stands here, never nowhere."""
    trials, kept = row.get("trials"), row.get("kept")
    notes = [
        row["note"],
        f"{trials} trials instead of {config['trials']}" if trials not in (None, config["trials"]) else "",
        f"{kept} of {row['cells']} options, screened in closed form" if kept else "",
        f"published: {row['beside']}" if row["beside"] != row["column"] else "",
    ]
    return "; ".join(text for text in notes if text)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
