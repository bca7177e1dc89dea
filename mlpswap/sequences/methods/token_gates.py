"""Token gates: each token opens some neurons, and one linear solve writes the labels into those that are open.

The first token opens about half of d1 neurons, the second of the others; all else is strongly silent. An open neuron has a
base value that makes the open neurons of either sign sum to 1, so that the code is 0, and its other embedding is free.

Source: this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.config import option
from mlpswap.errors import ConfigError, InfeasibleConstructionError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.methods.tangent import BasePoint, tangent_network
from mlpswap.sequences.network import PairNetwork

CLOSED = -2.0


@dataclass(frozen=True)
class TokenGatesConfig:
    """Options of the method `token_gates`."""

    by_first: float = option(
        0.75, "share of the neurons that the first token opens; the second opens the others"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.by_first <= 1:
            raise ConfigError(f"token_gates: by_first = {self.by_first}: expected 0 to 1")


class TokenGates:
    """Gates that depend on one token each, and one linear solve."""

    name = "token_gates"
    source = "this project"
    column = "hand-coded"
    gives_up = True
    Config = TokenGatesConfig

    def build(
        self,
        facts: PairFacts,
        width: int,
        config: TokenGatesConfig,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        if width < 4:
            raise InfeasibleConstructionError(f"token_gates: {width} neurons: expected at least 4")
        d1 = 2 * round(config.by_first * width / 2)
        signs = torch.ones(width, dtype=torch.float64)
        signs[1::2] = -1
        scale = torch.ones_like(signs)
        independent = facts.tokens * (width + 2) - (d1 + 1) * (width - d1 + 1)
        networks = []
        for draw in generators:
            first, second = torch.zeros(2, facts.tokens, width, dtype=torch.float64)
            first[:, :d1] = open_values(facts.tokens, signs[:d1], draw)
            second[:, d1:] = open_values(facts.tokens, signs[d1:], draw)
            networks.append(
                tangent_network(
                    BasePoint(first, second, signs, scale, independent), facts, threshold=threshold
                )
            )
        return networks


def open_values(tokens: int, signs: Float[Tensor, " k"], draw: torch.Generator) -> Float[Tensor, "V k"]:
    """For each token, the values of about half the neurons of either sign, which sum to 1; `CLOSED` elsewhere."""
    values = torch.full((tokens, len(signs)), CLOSED, dtype=torch.float64)
    for sign in (1, -1):
        mine = (signs == sign).nonzero()[:, 0]
        if not len(mine):
            continue
        opened = torch.rand(tokens, len(mine), generator=draw) < 0.5
        always = torch.randint(len(mine), (tokens,), generator=draw)  # none is left without
        opened[torch.arange(tokens), always] = True
        share = 1 / opened.sum(1, keepdim=True).double()
        values[:, mine] = torch.where(opened, share, CLOSED)
    return values
