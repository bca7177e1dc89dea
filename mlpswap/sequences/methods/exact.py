"""All V^2 facts with V + 1 neurons: one selector for each first token, and a constant.

Selector a is the only one that hears first token a, and its value is the label + 1. The unembedding reads that one
number: logit_c = (c + 1)(l + 1) - (c + 1)^2 / 2, which is largest at c = l, by 1/2. The constant neuron carries
the second term; an output bias does as well, and then V neurons are enough.

Source: sequence-memorisation challenge, exact construction for hidden = V + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.errors import InfeasibleConstructionError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.network import PairNetwork


@dataclass(frozen=True)
class ExactConfig:
    """The method `exact` has no options."""


class Exact:
    """Every pair of tokens, exactly; needs one neuron more than there are tokens."""

    name = "exact"
    source = "sequence-memorisation challenge, exact construction"
    column = "hand-coded"
    gives_up = False
    Config = ExactConfig

    def build(
        self,
        facts: PairFacts,
        width: int,
        config: ExactConfig,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        """There is no chance in it: every trial is the same. Further neurons stay silent."""
        if width <= facts.tokens:
            raise InfeasibleConstructionError(
                f"exact: {width} neurons for {facts.tokens} tokens: expected at least {facts.tokens + 1}, one more "
                "than tokens"
            )
        small, bias = exact_with_bias(facts)
        first, second = torch.zeros(2, facts.tokens, width)
        unembedding = torch.zeros(facts.labels, width)
        for large, part in ((first, small.first), (second, small.second), (unembedding, small.unembedding)):
            large[:, : facts.tokens] = part
        first[:, facts.tokens] = second[:, facts.tokens] = 0.5
        unembedding[:, facts.tokens] = bias
        return [PairNetwork(first, second, unembedding) for _ in generators]


def exact_with_bias(facts: PairFacts) -> tuple[PairNetwork, Float[Tensor, " C"]]:
    """(network of V neurons, output bias): logits = U z + bias. Pairs without a fact get the label 0."""
    wanted = torch.zeros(facts.tokens, facts.tokens)
    wanted[facts.first, facts.second] = facts.label.float()
    first = -float(facts.labels) * (1 - torch.eye(facts.tokens))
    code = torch.arange(1.0, facts.labels + 1)
    unembedding = code[:, None].repeat(1, facts.tokens)
    return PairNetwork(first, (wanted + 1).T.contiguous(), unembedding), -(code**2) / 2
