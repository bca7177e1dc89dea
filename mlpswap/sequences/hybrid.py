"""The embeddings of the published construction with a fitted unembedding, and the choice of its cells in closed form.

A cell is one choice of S and f. Training each in every trial is dear, and most of them are far from the best one; the
pushed ridge regression (`unembeddings`) tells them apart at a small part of the cost.

Source: sequence-memorisation challenge, hybrid; the screening is this project's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mlpswap.config import option
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.hand_coded import HandCodedConfig, owned_neurons, silent_embeddings
from mlpswap.sequences.network import PairNetwork
from mlpswap.sequences.scores import agreed
from mlpswap.sequences.unembeddings import FITS, fitted_unembeddings, require_fit


@dataclass(frozen=True)
class HybridConfig(HandCodedConfig):
    """Options of the method `hybrid`: those of the embeddings, and how the unembedding is found."""

    neurons_per_label: int = option(3, "S, neurons that belong to each label")
    top_fraction: float = option(
        0.2, "f, share of a neuron's own tokens that get weight -1; at least one does"
    )
    unembedding: str = option("trained", " | ".join(FITS))

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fit("hybrid", self.unembedding)


class Hybrid:
    """Hand-coded embeddings, fitted unembedding."""

    name = "hybrid"
    source = "sequence-memorisation challenge, hybrid and random embedding"
    column = "hybrid"
    gives_up = False
    Config = HybridConfig

    def build(
        self,
        facts: PairFacts,
        width: int,
        config: HybridConfig,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        owned = owned_neurons(facts, width, config, generators)
        first, second = silent_embeddings(facts, owned, config, generators)
        hidden = torch.relu(first[:, facts.first] + second[:, facts.second])
        fitted = fitted_unembeddings(hidden, facts.label, facts.labels, config.unembedding, generators)
        return [PairNetwork(*parts) for parts in zip(first, second, fitted, strict=True)]

    def screened(
        self,
        facts: PairFacts,
        width: int,
        cells: Sequence[HybridConfig],
        generators: Sequence[torch.Generator],
        rule: str = "any",
    ) -> list[tuple[HybridConfig, float]]:
        """The cells with the accuracy that their trials agree on with a pushed unembedding, best first.

        The generators go on from cell to cell, so that cells do not share their permutations.
        """
        found = []
        for cell in cells:
            built = self.build(facts, width, replace(cell, unembedding="pushed"), generators)
            found.append((cell, agreed([network.accuracy(facts) for network in built], rule)))
        return sorted(found, key=lambda each: -each[1])
