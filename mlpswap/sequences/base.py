"""What every way to find the weights offers, and the random streams of its trials."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from mlpswap.randomness import generator
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.network import PairNetwork

COLUMNS = ("hand-coded", "hybrid", "trained")


class Method(Protocol):
    """A way to find the weights of a `PairNetwork` that stores given facts.

    source: the paper and section, or "this project".
    column: the leader-board column that it is eligible for, one of `COLUMNS`. What is hand-coded may stand among the
        hybrid entries as well, with its unembedding left alone.
    gives_up: whether `threshold` changes what is built. Where it does not, one build answers every threshold.
    Config: a dataclass of options.
    """

    name: str
    source: str
    column: str
    gives_up: bool
    Config: type

    def build(
        self,
        facts: PairFacts,
        width: int,
        config: Any,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        """One float32 network of `width` neurons for each generator (a trial).

        `threshold` is the accuracy asked for; below 1, a method may give up facts to reach it for more of them.
        Raises `InfeasibleConstructionError` where the method cannot exist at this size at all.
        """
        ...


@runtime_checkable
class Screening(Protocol):
    """A method that can tell, in closed form and so far sooner than it builds, which of its options do best."""

    def screened(
        self,
        facts: PairFacts,
        width: int,
        cells: Sequence[Any],
        generators: Sequence[torch.Generator],
        rule: str = "any",
    ) -> list[tuple[Any, float]]:
        """The options with the accuracy that they promise, best first."""
        ...


def trial_generator(method: str, trial: int, seed: int = 0) -> torch.Generator:
    """The random stream of one trial of a method; the facts have their own."""
    return generator(seed, "sequences", method, trial)
