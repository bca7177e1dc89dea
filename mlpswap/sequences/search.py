"""The search for the largest number of facts that is stored, as generators that ask for sizes one by one.

Success need not be monotone in the number of facts, so the answer depends on the sizes that were tried. `capacity` says
both how far it is unbroken and the largest size that succeeded at all.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlpswap.sequences.base import Method, trial_generator
from mlpswap.sequences.facts import draw_pair_facts
from mlpswap.sequences.scores import TRIALS, succeeds

Probes = Generator[int, bool, None]  # yields a number of facts and is sent whether it was stored
PRECISION = 0.02  # of the published searches, as a share of the upper end of the bracket


@dataclass(frozen=True)
class Capacity:
    """What the sizes that were tried say.

    largest: the largest that succeeded, 0 if none did.
    unbroken: the largest below every failure, so that every size tried up to it succeeded.
    failed: the smallest failure above `largest`, None if none was tried there.
    """

    largest: int
    unbroken: int
    failed: int | None


def capacity(tried: Mapping[int, bool]) -> Capacity:
    good = [count for count, stored in tried.items() if stored]
    bad = [count for count, stored in tried.items() if not stored]
    largest = max(good, default=0)
    first = min(bad, default=largest + 1)
    return Capacity(
        largest,
        max((count for count in good if count < first), default=0),
        min((count for count in bad if count > largest), default=None),
    )


def published_search(ceiling: int, precision: float = PRECISION, *, facts: int | None = None) -> Probes:
    """Bisection of 1..ceiling until the bracket is below `precision` of its upper end, or below `facts` facts.

    Source: sequence-memorisation challenge, binary search.
    """
    low, high = 1, ceiling
    while high - low >= (facts or precision * high) and high >= low:
        middle = (low + high) // 2
        if (yield middle):
            low = middle + 1
        else:
            high = middle - 1
    if high == ceiling:
        yield ceiling


def bracketed_search(
    guess: float,
    ceiling: int,
    precision: float = PRECISION,
    *,
    width: float = 0.25,
    low: int = 0,
    high: int | None = None,
) -> Probes:
    """Bisection between guess x (1 - width) and guess x (1 + width), widened while its ends do not hold.

    low, high: what is known to be stored, and not to be. It needs half the probes of `published_search`, and finds the
    same where success is monotone.
    """
    high = ceiling + 1 if high is None else high
    step = max(1, round(width * guess))
    while low == 0 and high > 1:
        at = max(1, min(round(guess) - step, high - 1))
        if (yield at):
            low = at
        else:
            high, step = at, 2 * step
    while high > ceiling > low:
        at = min(ceiling, max(round(guess) + step, low + 1))
        if (yield at):
            low, step = at, 2 * step
        else:
            high = at
    yield from bisection(low, high, precision)


def full_search(ceiling: int, precision: float = PRECISION, points: int = 12) -> Probes:
    """A geometric grid of `points` sizes over the whole range, and a bisection at the first and the last break.

    For methods whose success comes and goes: no bracket decides where it ends.
    """
    tried: dict[int, bool] = {}
    for step in range(points):
        count = max(1, round(ceiling ** ((step + 1) / points)))
        if count not in tried:
            tried[count] = yield count
    found = capacity(tried)
    first = min((count for count, stored in tried.items() if not stored), default=ceiling + 1)
    yield from bisection(found.unbroken, first, precision)
    if found.largest != found.unbroken:
        yield from bisection(found.largest, found.failed or ceiling + 1, precision)


def bisection(low: int, high: int, precision: float = PRECISION) -> Probes:
    """Halve the bracket between a size that is stored and one that is not, down to `precision` of the upper end."""
    while high - low > max(1, precision * high):
        middle = (low + high) // 2
        if (yield middle):
            low = middle
        else:
            high = middle


def run_search(probes: Probes, stored: Callable[[int], bool]) -> Capacity:
    """Drive a search on a function of the number of facts; a size is tried once, however often it is asked for."""
    tried: dict[int, bool] = {}
    try:
        count = next(probes)
        while True:
            if count not in tried:
                tried[count] = stored(count)
            count = probes.send(tried[count])
    except StopIteration:
        return capacity(tried)


@dataclass
class Trials:
    """The accuracies of one method at one size of network, by (number of facts, trial), each measured once.

    tokens, labels: V and C, by default 2d and d.
    """

    method: Method
    width: int
    config: Any = None
    tokens: int = 0
    labels: int = 0
    threshold: float = 1.0
    trials: int = TRIALS
    seed: int = 0
    known: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = self.method.Config() if self.config is None else self.config
        self.tokens = self.tokens or 2 * self.width
        self.labels = self.labels or self.width

    @property
    def ceiling(self) -> int:
        return self.tokens**2

    def accuracies(self, count: int) -> Sequence[float]:
        """Of all trials at `count` facts; those that are not known are built together."""
        missing = [trial for trial in range(self.trials) if (count, trial) not in self.known]
        if missing:
            facts = draw_pair_facts(count, self.tokens, self.labels)
            generators = [trial_generator(self.method.name, trial, self.seed) for trial in missing]
            networks = self.method.build(facts, self.width, self.config, generators, threshold=self.threshold)
            for trial, network in zip(missing, networks, strict=True):
                self.known[count, trial] = network.accuracy(facts)
        return [self.known[count, trial] for trial in range(self.trials)]

    def search(self, probes: Probes, rule: str = "any") -> Capacity:
        """The capacity by one rule; other rules and searches use what is known by then."""
        return run_search(probes, lambda count: succeeds(self.accuracies(count), self.threshold, rule))
