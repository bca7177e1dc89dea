"""The network of the challenge: z = relu(E1[a] + E2[b]), logits = U z, without any bias."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.sequences.facts import PairFacts


@dataclass(frozen=True)
class PairNetwork:
    """Weights E1 (V, d), E2 (V, d) and U (C, d), float32 whenever a score is quoted.

    Source: sequence-memorisation challenge, challenge architecture.
    """

    first: Float[Tensor, "V d"]
    second: Float[Tensor, "V d"]
    unembedding: Float[Tensor, "C d"]

    @property
    def width(self) -> int:
        return self.first.shape[1]

    @property
    def parameters(self) -> int:
        return self.first.numel() + self.second.numel() + self.unembedding.numel()

    def hidden(self, facts: PairFacts) -> Float[Tensor, "N d"]:
        return torch.relu(self.first[facts.first] + self.second[facts.second])

    def logits(self, facts: PairFacts) -> Float[Tensor, "N C"]:
        return self.hidden(facts) @ self.unembedding.T

    def accuracy(self, facts: PairFacts) -> float:
        """Share of the facts whose label has the largest logit; a tie is a miss, whichever label comes first."""
        return float((self.margins(facts) > 0).double().mean())

    def margins(self, facts: PairFacts) -> Float[Tensor, " N"]:
        """The logit of each fact's label less the largest other one."""
        logits = self.logits(facts)
        mine = logits.gather(1, facts.label[:, None])
        others = logits.scatter(1, facts.label[:, None], float("-inf")).amax(1)
        return mine.squeeze(1) - others
