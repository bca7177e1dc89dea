"""What a person looks at first: the table at the end, and what the edited models answer."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from mlpswap.benchmark.splits import Split, split_labels
from mlpswap.benchmark.ties import TIE_RULE
from mlpswap.benchmark.trials import KINDS
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
                line = {"editor": name, "altered": split.size[0], "preserved": split.size[1], "kind": kind,
                        "prompt": prompt, "wanted": wanted, "top": five}  # fmt: skip
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            if place < limit:
                says = {name: five[0] for name, five in fives.items()}
                shown.append(
                    {"kind": kind, "prompt": prompt, "key": key, "old": facts.value_of(key), "wanted": wanted,
                     "by_editor": says}
                )  # fmt: skip
    return shown


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The harmonic score of each editor's oracle row, by split: what a table of runs would hold."""
    labels = split_labels((row["altered"], row["preserved"]) for row in rows)
    return {
        f"{row['editor']}_score_harmonic_{labels[row['altered'], row['preserved']]}": row["score_harmonic"]
        for row in rows
        if row["selection"] == "oracle"
    }


LEGEND = (
    "non-fact: cross-entropy of the other tokens, edited over unedited; harmonic: of the setting that is best on all facts;\n"
    "selected: of the one that is best on half of them, scored on the other half, where it may come out higher"
)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """The best setting of each editor, and what failed, for whoever stands at the terminal."""
    wide = max(10, *(len(row["editor"]) for row in rows))
    print(f"{'editor':{wide}} {'altered':>7} {'preserved':>9} {'efficacy':>9} {'paraphr.':>9} {'specific.':>9} "
          f"{'harmonic':>9} {'non-fact':>9} {'selected':>9}")  # fmt: skip
    found: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["editor"], row["altered"], row["preserved"]), []).append(row)
    for (editor, altered, preserved), mine in found.items():
        best = {row["selection"]: row for row in mine if row["selection"] in KINDS}
        if best:
            numbers = [best["oracle"][name] for name in (*CORE, "score_harmonic", "nonfact_ce_ratio")]
            numbers.append(best["selected"]["score_harmonic"])
            shown = " ".join(f"{_shown(number):>9}" for number in numbers)
            print(f"{editor:{wide}} {altered:7} {preserved:9} {shown}")
        failed = [row["error"] for row in mine if row["error"]]
        if failed:
            settings = sum(row["selection"] not in KINDS for row in mine)
            print(
                f"{editor:{wide}} {altered:7} {preserved:9} {len(failed)} of {settings} settings: {failed[0]}"
            )
    print(LEGEND)
    print(TIE_RULE)


def _shown(number: float | None) -> str:
    return "-" if number is None or math.isnan(number) else f"{number:.3f}"
