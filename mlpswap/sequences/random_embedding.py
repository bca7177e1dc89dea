"""Random embeddings that stay as they are, with an unembedding fitted to them: what hidden activations of no design give."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlpswap.config import option
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.network import PairNetwork
from mlpswap.sequences.trained import random_network
from mlpswap.sequences.unembeddings import FITS, fitted_unembeddings, require_fit


@dataclass(frozen=True)
class RandomEmbeddingConfig:
    """Options of the method `random_embedding`."""

    unembedding: str = option("trained", " | ".join(FITS))

    def __post_init__(self) -> None:
        require_fit("random_embedding", self.unembedding)


class RandomEmbedding:
    """Embeddings uniform in +-1/sqrt(2V), never changed."""

    name = "random_embedding"
    source = "sequence-memorisation challenge, hybrid and random embedding"
    column = "hybrid"
    gives_up = False
    Config = RandomEmbeddingConfig

    def build(
        self,
        facts: PairFacts,
        width: int,
        config: RandomEmbeddingConfig,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        drawn = [random_network(facts, width, draw) for draw in generators]
        hidden = torch.stack([network.hidden(facts) for network in drawn])
        fitted = fitted_unembeddings(hidden, facts.label, facts.labels, config.unembedding, generators)
        return [PairNetwork(n.first, n.second, u) for n, u in zip(drawn, fitted, strict=True)]
