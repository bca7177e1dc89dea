"""What a person looks at first: the table at the end, and what the edited models answer."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from mlpswap.benchmark.splits import Split
from mlpswap.constructions.base import FactMLP
from mlpswap.editing.evaluation import CORE, Probes, top
from mlpswap.tasks import Task
from mlpswap.tasks.books import TRAINED, fill

ANSWERS = 10  # altered facts in the report's table of answers, and half as many preserved ones


def show_answers(
    model: Any,
    task: Task,
    split: Split,
    probes: Probes,
    mlps: Mapping[str, FactMLP],
    count: int,
    file: TextIO,
) -> list[dict[str, Any]]:
    """What each edited fact MLP answers to `count` altered and `count` preserved facts.

    The top five of each go to `file` as lines of JSON; the first few facts, with every editor's answer, come back.
    """
    entries, facts, shown = task.vocabulary.entries, task.facts, []
    for kind, probe, limit in (("altered", "efficacy", ANSWERS), ("preserved", "specificity", ANSWERS // 2)):
        cache = probes.caches[probe][slice(0, count)]
        best = {name: top(model, mlp, cache)[0].tolist() for name, mlp in mlps.items()}
        for place, fact in enumerate(cache.facts.tolist()):
            key, wanted = facts.keys[fact], entries[int(cache.wanted[place])][1]
            prompt = fill(TRAINED[int(split.edit_template[fact])], key)
            fives = {name: [entries[token][1] for token in rows[place]] for name, rows in best.items()}
            for name, five in fives.items():
                line = {"editor": name, "altered": len(split.altered), "kind": kind, "prompt": prompt,
                        "wanted": wanted, "top": five}  # fmt: skip
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            if place < limit:
                says = {name: five[0] for name, five in fives.items()}
                shown.append(
                    {"kind": kind, "prompt": prompt, "key": key, "old": facts.value_of(key), "wanted": wanted,
                     "by_editor": says}
                )  # fmt: skip
    return shown


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The harmonic score of each editor's oracle row, by share: what a table of runs would hold."""
    return {
        f"{row['editor']}_score_harmonic_{row['altered']}": row["score_harmonic"]
        for row in rows
        if row["selection"] == "oracle"
    }


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """The best setting of each editor, for whoever stands at the terminal."""
    print(f"{'editor':10} {'altered':>7} {'efficacy':>9} {'paraphr.':>9} {'specific.':>9} {'harmonic':>9} "
          f"{'non-fact':>9} {'selected':>9}")  # fmt: skip
    halves = {(r["editor"], r["altered"]): r["score_harmonic"] for r in rows if r["selection"] == "selected"}
    for row in rows:
        if row["selection"] == "oracle":
            numbers = [row[name] for name in (*CORE, "score_harmonic", "nonfact_ce_ratio")]
            numbers.append(halves[row["editor"], row["altered"]])
            print(f"{row['editor']:10} {row['altered']:7} " + " ".join(f"{_shown(n):>9}" for n in numbers))


def _shown(number: float | None) -> str:
    return "-" if number is None or math.isnan(number) else f"{number:.3f}"
