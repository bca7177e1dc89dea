"""The search for the smallest size that stores everything, as a generator that asks for builds one by one.

It does not build by itself, so the same search runs in any number of processes, from a file of earlier builds, or in a
test on a function.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

Probes = Generator[tuple[int, int], "Outcome", "Found"]


@dataclass(frozen=True)
class Outcome:
    """One build. `accuracy` is None where it took too long; `figures` are whatever else was measured."""

    size: int
    seed: int
    accuracy: float | None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """`size` is the smallest that succeeded, None if none did; `below` the largest smaller one that did not.

    status: "found"; "capped", where a smaller size was given up for its time, so that `size` is an upper bound;
    "none". `outcomes` are the builds at `size`, one per seed.
    """

    size: int | None
    below: int
    status: str
    outcomes: tuple[Outcome, ...]


def smallest_size(
    guess: int, seeds: Sequence[int], *, error: float = 0.0, precision: float = 0.02, largest: int = 65536
) -> Probes:
    """Yield (size, seed), be sent its `Outcome`, and return the smallest size at which every seed succeeds.

    A size succeeds if the accuracy of no seed is below 1 - error (arXiv 2512.00207, A.1.2, where the best seed counts
    instead; here the worst). From `guess` the size is doubled until it succeeds, then halved while it does, then the
    bracket is bisected down to `precision`. A size stops at its first failing seed. Success is not quite monotone in
    the size: what is returned did succeed and what is `below` did not.
    """
    known: dict[int, tuple[Outcome, ...]] = {}

    def succeeds(size: int) -> Generator[tuple[int, int], Outcome, bool]:
        outcomes = []
        for seed in seeds:
            outcomes.append((yield size, seed))
            if not stored(outcomes[-1], error):
                break
        known[size] = tuple(outcomes)
        return stored(outcomes[-1], error)

    low, high = 0, min(max(guess, 1), largest)
    while not (yield from succeeds(high)):
        if high == largest:
            return Found(
                None, high, "none" if known[high][-1].accuracy is not None else "capped", known[high]
            )
        low, high = high, min(2 * high, largest)
    while low == 0 and high > 1:
        if (yield from succeeds(high // 2)):
            high //= 2
        else:
            low = high // 2
    while high - low > max(1, precision * high):
        middle = (low + high) // 2
        if (yield from succeeds(middle)):
            high = middle
        else:
            low = middle
    capped = low > 0 and known[low][-1].accuracy is None
    return Found(high, low, "capped" if capped else "found", known[high])


def verify(
    size: int, seeds: Sequence[int], *, error: float = 0.0, precision: float = 0.02, smaller: bool = True
) -> Probes:
    """Whether `size` succeeds and, if `smaller`, whether the next smaller one on a grid of `precision` does not.

    Returns as `smallest_size` does; `below` is 0 where no smaller size was seen to fail.
    """
    outcomes = []
    for seed in seeds:
        outcomes.append((yield size, seed))
        if not stored(outcomes[-1], error):
            status = "capped" if outcomes[-1].accuracy is None else "none"
            return Found(None, size, status, tuple(outcomes))
    below = size - max(1, int(precision * size))
    for seed in seeds if smaller and below else ():
        outcome = yield below, seed
        if not stored(outcome, error):
            status = "capped" if outcome.accuracy is None else "found"
            return Found(size, below, status, tuple(outcomes))
    return Found(size, 0, "found", tuple(outcomes))


def stored(outcome: Outcome, error: float) -> bool:
    """Whether enough facts are stored; a build that took too long counts as not."""
    return outcome.accuracy is not None and outcome.accuracy >= 1 - error
