"""The embeddings of the published construction with a fitted unembedding, and the choice of its cells in closed form.

A cell is one choice of S and f. Training each in every trial is dear, and most of them are far from the best one; the
pushed ridge regression (`unembeddings`) tells them apart at a small part of the cost.

Source: sequence-memorisation challenge, hybrid; the screening is this project's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlpswap.config import option
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.methods.hand_coded import HandCodedConfig, owned_neurons, silent_embeddings
from mlpswap.sequences.methods.unembeddings import pushed_unembeddings, trained_unembeddings
from mlpswap.sequences.network import PairNetwork
from mlpswap.sequences.scores import agreed

SCREENING_ROUNDS = 150


@dataclass(frozen=True)
class HybridConfig(HandCodedConfig):
    """Options of the method `hybrid`: those of the embeddings."""

    neurons_per_label: int = option(3, "S, neurons that belong to each label")
    top_fraction: float = option(
        0.2, "f, share of a neuron's own tokens that get weight -1; at least one does"
    )


class Hybrid:
    """Hand-coded embeddings, trained unembedding."""

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
        bare = published_embeddings(facts, width, config, generators)
        hidden = torch.stack([network.hidden(facts) for network in bare])
        fitted = trained_unembeddings(hidden, facts.label, facts.labels, generators)
        return [PairNetwork(n.first, n.second, u) for n, u in zip(bare, fitted, strict=True)]

    def screened(
        self,
        facts: PairFacts,
        width: int,
        cells: Sequence[HybridConfig],
        generators: Sequence[torch.Generator],
        rule: str = "any",
    ) -> list[tuple[HybridConfig, float]]:
        """The cells with the accuracy that their trials agree on with a pushed unembedding, best first.

        Pushed so little, it is about as far as training gets. The generators go on from cell to cell, so that cells do
        not share their permutations.
        """
        found = []
        for cell in cells:
            bare = published_embeddings(facts, width, cell, generators)
            hidden = torch.stack([network.hidden(facts) for network in bare])
            pushed = pushed_unembeddings(hidden, facts.label, facts.labels, rounds=SCREENING_ROUNDS)
            built = [PairNetwork(n.first, n.second, u) for n, u in zip(bare, pushed, strict=True)]
            found.append((cell, agreed([network.accuracy(facts) for network in built], rule)))
        return sorted(found, key=lambda each: -each[1])


def published_embeddings(
    facts: PairFacts, width: int, config: HandCodedConfig, generators: Sequence[torch.Generator]
) -> list[PairNetwork]:
    """Networks with the embeddings of the published construction, and an unembedding of zeros."""
    owned = owned_neurons(facts, width, config, generators)
    first, second = silent_embeddings(facts, owned, config, generators)
    nothing = torch.zeros(facts.labels, width)
    return [PairNetwork(*parts, nothing) for parts in zip(first, second, strict=True)]
