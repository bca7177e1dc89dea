"""Networks of the challenge trained by gradient descent from random weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlpswap.config import option
from mlpswap.errors import ConfigError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.methods.unembeddings import uniform
from mlpswap.sequences.network import PairNetwork
from mlpswap.sequences.training.packed import NetworkPack, networks
from mlpswap.sequences.training.recipes import ABLATION, CHALLENGE, train

RECIPES = {"challenge": CHALLENGE, "ablation": ABLATION}


@dataclass(frozen=True)
class TrainedConfig:
    """Options of the method `trained`."""

    recipe: str = option(
        "challenge",
        "challenge: one learning rate, patience of 100 epochs | ablation: three, patience of 5,000",
    )

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise ConfigError(f"trained: recipe = {self.recipe}: expected one of {', '.join(RECIPES)}")


class Trained:
    """Full-batch gradient descent on all weights."""

    name = "trained"
    source = "sequence-memorisation challenge, training recipes"
    column = "trained"
    gives_up = False
    Config = TrainedConfig

    def build(
        self,
        facts: PairFacts,
        width: int,
        config: TrainedConfig,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        start = [random_network(facts, width, draw) for draw in generators]
        return networks(train(NetworkPack(facts, start), RECIPES[config.recipe]).weights, facts.tokens)


def random_network(facts: PairFacts, width: int, generator: torch.Generator) -> PairNetwork:
    """Embeddings uniform in +-1/sqrt(2V), then the unembedding in +-1/sqrt(d), from one stream."""
    rows = uniform((2 * facts.tokens, width), 2 * facts.tokens, generator)
    unembedding = uniform((facts.labels, width), width, generator)
    return PairNetwork(rows[: facts.tokens], rows[facts.tokens :], unembedding)
