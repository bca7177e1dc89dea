"""The facts of the challenge: ordered pairs of tokens, each with a label."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from mlpswap.errors import ConfigError

SEED = 42  # of the published figures


@dataclass(frozen=True)
class PairFacts:
    """N facts (first, second) -> label over V tokens and C labels, sorted by label.

    Raises `ConfigError` unless all three are int64, of one length N >= 1 and within 0..V-1 and 0..C-1.
    """

    first: Int[Tensor, " N"]
    second: Int[Tensor, " N"]
    label: Int[Tensor, " N"]
    tokens: int
    labels: int

    def __post_init__(self) -> None:
        for name, below in (("first", self.tokens), ("second", self.tokens), ("label", self.labels)):
            part = getattr(self, name)
            if (
                part.dtype != torch.int64
                or part.shape != self.label.shape
                or part.dim() != 1
                or not len(part)
            ):
                raise ConfigError(
                    f"facts: {name} is {part.dtype} of shape {list(part.shape)}: expected int64, one for each label"
                )
            if not 0 <= int(part.min()) <= int(part.max()) < below:
                raise ConfigError(
                    f"facts: {name} has {int(part.min())} to {int(part.max())}: expected 0 to {below - 1}"
                )

    def __len__(self) -> int:
        return len(self.label)


def draw_pair_facts(count: int, tokens: int, labels: int, *, seed: int = SEED) -> PairFacts:
    """Draw `count` of the V^2 ordered pairs; pair number j of the draw has the label j mod C.

    The draw depends on V and `seed` alone, so that a smaller set of facts is part of every larger one. It is made on
    the CPU, whose permutation differs from that of a GPU for the same seed.

    Raises `ConfigError` unless 1 <= count <= V^2 and C >= 1.
    Source: sequence-memorisation challenge, fact generator.
    """
    if tokens < 1 or labels < 1:
        raise ConfigError(f"facts need at least one token and one label: found {tokens} and {labels}")
    if not 1 <= count <= tokens**2:
        raise ConfigError(
            f"{count} facts about {tokens} tokens: expected 1 to {tokens**2}, the number of ordered pairs"
        )
    pairs = torch.randperm(tokens**2, generator=torch.Generator().manual_seed(seed))[:count]
    label = torch.arange(count) % labels
    order = label.argsort(stable=True)
    pairs, label = pairs[order], label[order]
    return PairFacts(pairs // tokens, pairs % tokens, label, tokens, labels)
