"""The settings of one editor on one split, tried one after the other; those that were tried before are read back.

Where the benchmark screens, every setting is ranked on a sample of the prompts first, and only the best are scored on all.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlpswap.benchmark.base import Base
from mlpswap.benchmark.contest import Exam, Row, edits, failure, score
from mlpswap.benchmark.entries import Contender
from mlpswap.benchmark.progress import Progress
from mlpswap.editing import EditResult
from mlpswap.editing.evaluation import Probes
from mlpswap.errors import RegistryError
from mlpswap.progress_bar import ProgressBar
from mlpswap.registry import plug_in

KEPT = 5  # settings that are scored on all prompts after a screening
KINDS = ("oracle", "selected")


def steps_of(settings: int, screen: bool) -> int:
    """How many settings are scored in all, those of a screening included."""
    return settings + KEPT if screen and settings > KEPT else settings


@dataclass
class Trial:
    """What setting number `place` scored. `half` is its score on the facts that settings are selected on.

    Only the best trials of this process hold their result, which for a wide MLP is large.
    """

    place: int
    row: Row
    half: float | None = None
    result: EditResult | None = field(default=None, repr=False)

    def value(self, kind: str) -> float:
        """What the oracle, who knows all scores, or the honest selection goes by; -1 if there is none."""
        found = self.row["score_harmonic"] if kind == "oracle" else self.half
        return -1.0 if found is None or math.isnan(found) else found


def best(trials: Sequence[Trial], kind: str, count: int = 1) -> list[Trial]:
    """The first of the best ones among those that could be scored."""
    return sorted((each for each in trials if not each.row["error"]), key=lambda each: -each.value(kind))[
        :count
    ]


@dataclass
class Trials:
    """All settings of a contender on one split. `bar` is told of each."""

    base: Base
    exam: Exam
    contender: Contender
    settings: Sequence[Any]
    progress: Progress
    split: str
    bar: ProgressBar

    def run(self) -> list[Trial]:
        """Score every setting; with `exam.sample`, those that a screening leaves out are scored on the sample only."""
        places = list(range(len(self.settings)))
        if steps_of(len(places), self.exam.sample is not None) == len(places):
            return self.attempt(places, self.exam.probes, "grid")
        assert self.exam.sample is not None
        screened = self.attempt(places, self.exam.sample, "screened")
        chosen = {each.place: each for each in best(screened, "oracle", KEPT)}
        exact = self.attempt(sorted(chosen), self.exam.probes, "grid", chosen)
        return exact + [each for each in screened if each.place not in chosen]

    def attempt(
        self,
        places: Sequence[int],
        probes: Probes,
        selection: str,
        earlier: dict[int, Trial] | None = None,
    ) -> list[Trial]:
        """Edit and score at these places; what `earlier` trials still hold is not edited again."""
        label = self.contender.label
        done = {
            line["place"]: Trial(line["place"], line["rows"][0], line["half"])
            for line in self.progress.settings(self.split, label)
            if line["selection"] == selection
        }
        trials: list[Trial] = []
        stream: Iterator[Any] | None = None
        for number, place in enumerate(places):
            if place in done:
                trials.append(done[place])
                stream = None  # it would give the results of places that are done
                self.bar.skip()
            else:
                config, start = self.settings[place], time.perf_counter()
                half = result = None
                try:
                    with plug_in(f"{label} failed"):
                        if earlier and earlier[place].result is not None:
                            result, seconds = earlier[place].result, earlier[place].row["seconds"]
                        else:
                            began = time.perf_counter()
                            stream = stream or self.edits(places[number:])
                            result = next(stream, None)
                            seconds = time.perf_counter() - began
                        row, half = score(self.base, self.exam, label, config, result, seconds, probes)
                except RegistryError as error:
                    stream = None  # a generator that has raised is over
                    row, result = failure(self.exam, label, config, error), None
                row["selection"] = selection
                trials.append(Trial(place, row, half, result))
                self.progress.add_setting(
                    self.split, label, selection=selection, place=place, rows=[row], half=half,
                    took=time.perf_counter() - start,
                )  # fmt: skip
                self.forget(trials)
                self.bar.update()
        return trials

    def edits(self, places: Sequence[int]) -> Iterator[Any]:
        return edits(self.base, self.exam, self.contender.editor, [self.settings[place] for place in places])

    def result(self, trial: Trial) -> EditResult:
        """What the editor did at a trial; done again if it was done before this run was resumed."""
        if trial.result is None:
            trial.result = next(self.edits([trial.place]))
        return trial.result

    def forget(self, trials: Sequence[Trial]) -> None:
        """Drop the results that nothing will ask for."""
        held = [each for kind in KINDS for each in best(trials, kind, KEPT)]
        for each in trials:
            if not any(each is other for other in held):
                each.result = None
