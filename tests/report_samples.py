"""Small made-up runs for the tests of the report, in the shape that training and benchmark leave behind."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

HOSTILE = [
    ("Emma", "Jane Austen"),
    ("<script>document.title='owned'</script>", "</script><img src=x onerror=\"document.title='owned'\">"),
    ("{{ 7 * 7 }} {% raw %}", "${jndi}&amp;'\""),
    ("שלום עולם", "نجيب محفوظ"),
    ("Party 👨‍👩‍👧 time", "zero\u200bwidth\u202eoverride\x1b[31m"),
    ("Costs $5_and^$ more", "--></svg><!--"),
    ("L" * 400, "W" * 90),
    ("日本語の本\uffff", "]]><b>bold</b>"),
    ("tab\tand\nline", "A"),
    ("a b", "B"),
]


def _environment() -> dict[str, Any]:
    return {
        "versions": {"python": "3.11.4", "mlpswap": "0.1.0", "torch": "2.13.0", "numpy": None},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "threads": 2,
        "machine": "Linux x86_64, 2 CPUs",
        "device": "cpu",
        "time": "2026-01-02T03:04:05+00:00",
        "seconds": 31.234567,
    }


def _attention(tokens: list[str], key: int) -> dict[str, Any]:
    weights = []
    for i in range(len(tokens)):
        row = [0.0] * len(tokens)
        for j in range(i + 1):
            row[j] = 1 / (i + 1)
        if i == len(tokens) - 1:
            row = [0.04 / i if j < i else 0.0 for j in range(len(tokens))]
            row[key] = 0.96
        weights.append(row)
    return {"tokens": tokens, "weights": weights, "key": tokens[key], "answer": "Jane Austen"}


def books(pairs: list[tuple[str, str]] = HOSTILE) -> dict[str, Any]:
    """Results of a run on the task of books."""
    names = [key for key, _ in pairs]
    values = [value for _, value in pairs]
    metrics = {
        "value_accuracy": 0.99609375,
        "fact_adaptive_accuracy": 0.9927,
        "attention_mass": 0.9812,
        "gate_value": 0.987,
        "gate_other": 0.0123,
        "nonfact_ce_before": 1.0434,
        "nonfact_ce_after": 1.0551,
        "nonfact_ce_ratio": 1.0112,
        "nonfact_word_ce_ratio": 1.0205,
        "capacity_trained": 1.0,
        "capacity_swap": 0.9996,
        "usability": 0.9931,
        "heldout_accuracy": 0.91,
        "heldout_accuracy_after_swap": 0.9041,
    }
    row = {"construction": "hebbian", "h": 512, "parameters": 196608, **metrics}
    second = row | {"construction": "gd", "h": 64, "parameters": 24576, "fact_adaptive_accuracy": 0.871}
    return {
        "schema": 1,
        "kind": "train",
        "config": {
            "task": "books",
            "seed": 7,
            "output_dir": "runs/<b>x</b>",
            "threads": None,
            "host": {"n_embd": 128, "n_layer": 1, "n_head": 1},
            "mlp": {"construction": "hebbian", "h": 512},
            "training": {"steps": 400},
        },
        "environment": _environment(),
        "metrics": metrics | {"steps": 400, "train_seconds": 25.4321},
        "rows": [row, second],
        "fact_mlp": {
            "construction": "hebbian", "facts": 256, "accuracy": 1.0, "accuracy_vocabulary": None, "margin": 0.5,
            "parameters": 196608, "seconds": 0.1, "wrong": [], "details": {}, "h": 512, "kind": "bilinear",
        },
        "facts": {
            "count": 256, "values": 256, "majority_share": 1 / 256, "fingerprint": "a" * 64,
            "swapped_fingerprint": "b" * 64, "altered": 254,
        },
        "pairs": {"trained": 2048, "held out": 2048},
        "templates": [
            {"template": i + 1, "prompts": 128, "before": 1 - 0.003 * i, "after": 0.99 - 0.004 * i} for i in range(16)
        ],
        "answers": [
            {
                "prompt": f"The writer of {key} is", "key": key, "true": value,
                "before": value, "wanted_after": values[i - 1], "after": values[i - 1] if i != 2 else value,
            }
            for i, (key, value) in enumerate(pairs)
        ],
        "attention": _attention(["<s>", "The", "writer", "of", names[1], "is"], 4),
        "resumed_at": 0,
    }  # fmt: skip


def events() -> list[dict[str, Any]]:
    """Lines of `metrics.jsonl`."""
    lines: list[dict[str, Any]] = []
    for step in range(10, 401, 10):
        done = step / 400
        lines.append(
            {
                "event": "train", "step": step, "loss": 6 * (1 - done) ** 2 + 1.04, "attention_mass": done**0.5,
                "gate_value": 0.5 + 0.48 * done, "gate_other": 0.5 - 0.48 * done, "lr": 0.003, "seconds": step / 16,
            }
        )  # fmt: skip
        if step % 100 == 0:
            lines.append({"event": "eval", "step": step, "adaptive_accuracy": done**0.3})
    return lines


def ssfr() -> dict[str, Any]:
    """Results of an SSFR run: no language, no held-out templates, long prompts, an accuracy that is missing."""
    content = books([(f"k{i}", f"v{i}") for i in range(10)])
    gone = [name for name in content["metrics"] if name.startswith(("nonfact", "heldout", "gate_other"))]
    for table in (content["metrics"], *content["rows"]):
        for name in gone:
            del table[name]
    content["config"] |= {"task": "ssfr"}
    content["pairs"] = {"trained": 2048}
    content["metrics"]["usability"] = None
    content["templates"][3] |= {"before": 0.4, "after": 0.31}
    content["attention"] = _attention(
        [f"j{i % 16}" for i in range(14)] + ["k0"] + [f"j{i}" for i in range(14)], 14
    )
    return content


SCORES = {
    "swap": (0.99, 0.98, 0.97),
    "rome": (0.93, 0.88, 0.8),
    "memit": (0.8, 0.82, 0.86),
    "alphaedit": (0, 0.01, 1),
}


def benchmark(
    scores: dict[str, tuple[float, float, float]] = SCORES, *, loose: bool = False
) -> dict[str, Any]:
    """Results of a benchmark in which each editor has the given efficacy, paraphrase and specificity at best."""
    rows = []
    for altered in (5, 13, 26):
        for name, best in scores.items():
            for number in range(1 if name == "swap" else 24):
                rows.append(_row(name, altered, "grid", [x * (1 - number / 30) for x in best], number))
            for selection in ("oracle", "selected"):
                rows.append(_row(name, altered, selection, list(best), 0))
    return {
        "schema": 1,
        "kind": "benchmark",
        "config": {"model": None, "base": "books_edit_tiny", "seed": 0, "splits": [{"altered": 26}]},
        "environment": _environment(),
        "metrics": {"swap_score_harmonic_26": 0.98},
        "rows": rows,
        "base": books(),
        "base_metrics": events(),
        "regime": {"facts": 256, "h": 512 if loose else 40, "d": 128, "kind": "swiglu", "loose": loose},
        "answers": [
            {
                "prompt": f"The writer of {key} is", "key": key, "old": value,
                "wanted": HOSTILE[i - 1][1] if i < 7 else value,
                "by_editor": {
                    name: HOSTILE[i - 1][1] if i < 7 and n < 2 else value for n, name in enumerate(scores)
                },
                "kind": "altered" if i < 7 else "preserved",
            }
            for i, (key, value) in enumerate(HOSTILE)
        ],
        "notes": ["alphaedit: null space empty"] if "alphaedit" in scores else [],
        "stages": {"base": 21.5, "collect": 1.25} | {name: 3.0 + 4 * n for n, name in enumerate(scores)},
    }  # fmt: skip


def _row(name: str, altered: int, selection: str, three: list[float], number: int) -> dict[str, Any]:
    efficacy, paraphrase, specificity = three
    product = efficacy * paraphrase * specificity
    won = selection != "grid"
    return {
        "editor": name,
        "setting": {"lr": 0.5, "steps": 25, "lam": 150.0, "clip": None, "number": number}
        if name != "swap"
        else {},
        "protocol": "single_layer",
        "scorer": "top1",
        "seed": 0,
        "altered": altered,
        "preserved": 256 - altered,
        "unchanged": 1 if altered == 26 else 0,
        "efficacy": efficacy,
        "paraphrase": paraphrase,
        "paraphrase_unseen": paraphrase * 0.95 if won else None,
        "specificity": specificity,
        "specificity_paraphrase": specificity * 0.99 if won else None,
        "success": 1.0 if won else None,
        "score_harmonic": 3 / sum(1 / x for x in three) if product else 0.0,
        "score_geometric": product ** (1 / 3),
        "nonfact_ce_ratio": 1.01 + altered / 400 * (name != "swap") if won else None,
        "nonfact_word_ce_ratio": 1.02 if won else None,
        "nonfact_ppl_ratio": 1.03 if won else None,
        "seconds": 0.42,
        "selection": selection,
        "notes": ["null space empty"] if name == "alphaedit" else [],
        "error": None,
    }


def write_run(folder: Path, results: dict[str, Any], lines: list[dict[str, Any]] | None = None) -> Path:
    """A finished run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps(results["config"]), encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    text = "".join(json.dumps(line) + "\n" for line in (events() if lines is None else lines))
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder


def without_numbers(content: Any) -> Any:
    """The same results with every accuracy, ratio and time replaced by None, as strict JSON writes what is not finite."""
    content = deepcopy(content)
    for table in (
        content["metrics"],
        *content["rows"],
        content.get("stages", {}),
        *content.get("templates", []),
    ):
        for name, value in table.items():
            if isinstance(value, float):
                table[name] = None
    return content
