"""Random embeddings that stay as they are, with an unembedding trained on them: what activations of no design give."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.methods.trained import random_network
from mlpswap.sequences.methods.unembeddings import trained_unembeddings
from mlpswap.sequences.network import PairNetwork


@dataclass(frozen=True)
class RandomEmbeddingConfig:
    """The method `random_embedding` has no options."""


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
        fitted = trained_unembeddings(hidden, facts.label, facts.labels, generators)
        return [PairNetwork(n.first, n.second, u) for n, u in zip(drawn, fitted, strict=True)]
