"""What a cost search found, as rows and as Markdown."""

import math
from typing import Any

from mlpswap.cost.probe import FORMATS, Cell, fact_bits
from mlpswap.cost.search import Found

COLUMNS = {
    "construction": "construction",
    "facts": "F",
    "d": "d",
    "kappa": "kappa",
    "alpha": "alpha",
    "size_text": "size",
    "below": "fails at",
    "parameters": "parameters",
    "ratio": "per F log2 F",
    "factored_parameters": "factored",
    "factored_ratio": "per F log2 F",
    "bits": "bits a parameter",
    "fact_bits_per_parameter": "fact bits a parameter",
    "seconds": "seconds a build",
    "seeds_text": "seeds",
    "published_text": "published size",
    "note": "",
}


def row_of(cell: Cell, found: Found, seeds: list[int]) -> dict[str, Any]:
    """One row of the table, from the builds at the size that was found.

    `ratio` is parameters / (F log2 F); `bits` those of the smallest format to which all parameters can be rounded
    without a seed losing a fact that it has in float32; `seconds` the mean time of a build.
    """
    row: dict[str, Any] = {
        "construction": cell.name,
        **{name: getattr(cell, name) for name in ("facts", "d", "kappa", "alpha", "varies")},
        "size": found.size,
        "below": found.below or None,
        "status": found.status,
        "seeds": seeds,
    }
    if found.size is None:
        last = found.outcomes[-1]
        reasons = {
            "none": "does not store all facts",
            "capped": "took too long",
            "error": last.figures.get("error"),
        }
        return row | {"accuracy": last.accuracy, "note": reasons[found.status]}
    figures = [outcome.figures for outcome in found.outcomes]
    first, unit = figures[0], cell.facts * math.log2(cell.facts)
    factored = first["factored_parameters"]
    kept = [
        name
        for name in FORMATS
        if name == "float32"
        or all(o.figures[f"accuracy_{name}"] >= o.accuracy for o in found.outcomes if o.accuracy is not None)
    ]
    note = {
        True: "smaller sizes took too long",
        False: "" if found.below or not cell.varies else "not the smallest",
    }
    return row | {
        "note": note[found.status == "capped"],
        "h": first["h"],
        "accuracy": min(outcome.accuracy for outcome in found.outcomes if outcome.accuracy is not None),
        "parameters": first["parameters"],
        "ratio": first["parameters"] / unit,
        "factored_parameters": factored,
        "factored_ratio": factored / unit if factored else None,
        "bits": min(FORMATS[name] for name in kept),
        "fact_bits_per_parameter": fact_bits(cell.facts) / first["parameters"],
        "margin": min(each["margin"] for each in figures),
        "seconds": sum(each["seconds"] for each in figures) / len(figures),
        **{
            f"accuracy_{name}": min(each[f"accuracy_{name}"] for each in figures) for name in ("bf16", "int8")
        },
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table of the rows, without the columns that say nothing."""
    shown = [_texts(row) for row in rows]
    used = [name for name in COLUMNS if any(each[name] for each in shown)]
    constant = {n for n in ("kappa", "alpha") if len({row[n] for row in rows}) == 1 and not rows[0][n]}
    used = [name for name in used if name not in constant]
    lines = [
        "| " + " | ".join(COLUMNS[name] for name in used) + " |",
        "|" + "---|" * len(used),
        *("| " + " | ".join(each[name] for name in used) + " |" for each in shown),
    ]
    return "\n".join(lines) + "\n"


def _texts(row: dict[str, Any]) -> dict[str, str]:
    size = "" if row["size"] is None else f"{row['varies']} = {row['size']}" if row["varies"] else "fixed"
    published = ""
    if "published" in row:
        holds = "holds" if row["published_holds"] else "fails"
        published = f"{row['published']} {holds} on {_listed(row['published_seeds'])}"
    texts = {
        "size_text": size,
        "seeds_text": _listed(row["seeds"]),
        "published_text": published,
    }
    for name in COLUMNS:
        if name not in texts:
            value = row.get(name)
            texts[name] = "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
    return {name: text.replace("|", "\\|") for name, text in texts.items()}


def _listed(seeds: list[int]) -> str:
    return ", ".join(map(str, seeds))
