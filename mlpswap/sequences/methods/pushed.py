"""Embeddings that stay as they are, with an unembedding pushed to separate the labels: no gradient descent, no step size.

Where a linear map can separate the labels, it finds one in a hundredth of the time of training; so it says what the
embeddings allow, rather than how long the training was.

Source: this project, on the published embeddings or random ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlpswap.config import option
from mlpswap.errors import ConfigError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.methods.hybrid import HybridConfig, published_embeddings
from mlpswap.sequences.methods.trained import random_network
from mlpswap.sequences.methods.unembeddings import pushed_unembeddings
from mlpswap.sequences.network import PairNetwork

EMBEDDINGS = ("published", "random")


@dataclass(frozen=True)
class PushedConfig(HybridConfig):
    """Options of the method `pushed`; those of `hand_coded` are for published embeddings."""

    embedding: str = option("published", " | ".join(EMBEDDINGS))
    rounds: int = option(300, "refits to pushed targets")
    momentum: float = option(0.98, "share of the push before that is added to each")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding not in EMBEDDINGS:
            raise ConfigError(
                f"pushed: embedding = {self.embedding}: expected one of {', '.join(EMBEDDINGS)}"
            )
        if self.rounds < 0 or not 0 <= self.momentum < 1:
            raise ConfigError(
                f"pushed: rounds = {self.rounds}, momentum = {self.momentum}: expected at least 0, and 0 to below 1"
            )


class Pushed:
    """Given embeddings, and ridge regression on targets that are pushed until the labels lead."""

    name = "pushed"
    source = "this project, on published or random embeddings"
    column = "hybrid"
    gives_up = True
    Config = PushedConfig

    def build(
        self,
        facts: PairFacts,
        width: int,
        config: PushedConfig,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        if config.embedding == "random":
            bare = [random_network(facts, width, draw) for draw in generators]
        else:
            bare = published_embeddings(facts, width, config, generators)
        hidden = torch.stack([network.hidden(facts) for network in bare])
        fitted = pushed_unembeddings(
            hidden, facts.label, facts.labels,
            rounds=config.rounds, momentum=config.momentum, threshold=threshold,
        )  # fmt: skip
        return [PairNetwork(n.first, n.second, u) for n, u in zip(bare, fitted, strict=True)]
