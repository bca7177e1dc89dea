"""The published construction: every label owns S neurons, which are silent on its facts and fire on most others.

A neuron fires unless something silences it: all its token weights are 1. On the facts of the labels that own it, its
most frequent tokens get -1, and both tokens of the facts that remain get 0. The unembedding charges a label for each of
its neurons that fires, so that the right label scores exactly 0, and a wrong one less unless all its neurons happen to
be silent. Then the two tie, and a small charge on every neuron, different for each label, decides.

Source: sequence-memorisation challenge, the published construction; the allocation is this project's (`allocation`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mlpswap.config import option
from mlpswap.errors import ConfigError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.methods.allocation import allocation, permuted
from mlpswap.sequences.network import PairNetwork

TIES = ("index", "order")


@dataclass(frozen=True)
class HandCodedConfig:
    """Options of the method `hand_coded`."""

    neurons_per_label: int = option(4, "S, neurons that belong to each label")
    top_fraction: float = option(
        0.02, "f, share of a neuron's own tokens that get weight -1; at least one does"
    )
    top_tokens: int | None = option(None, "this many of them instead, 0 allowed; null: by top_fraction")
    ties: str = option(
        "order",
        "labels that tie: index: the first wins, as published | order: the order that loses the fewest facts",
    )

    def __post_init__(self) -> None:
        if self.ties not in TIES:
            raise ConfigError(f"hand_coded: unknown ties '{self.ties}': expected one of {', '.join(TIES)}")
        if not 0 <= self.top_fraction <= 1:
            raise ConfigError(f"hand_coded: top_fraction = {self.top_fraction}: expected 0 to 1")
        if self.neurons_per_label < 1 or (self.top_tokens is not None and self.top_tokens < 0):
            raise ConfigError(
                f"hand_coded: neurons_per_label = {self.neurons_per_label}, top_tokens = {self.top_tokens}: "
                "expected at least 1 and 0"
            )


class HandCoded:
    """Each label's neurons are silent on its facts and fire on others (the published construction)."""

    name = "hand_coded"
    source = "sequence-memorisation challenge, published construction"
    column = "hand-coded"
    gives_up = False
    Config = HandCodedConfig

    def build(
        self,
        facts: PairFacts,
        width: int,
        config: HandCodedConfig,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        owned = owned_neurons(facts, width, config, generators)
        first, second = silent_embeddings(facts, owned, config, generators)
        rank = torch.arange(facts.labels).expand(len(generators), -1)
        if config.ties == "order":
            rank = order_of_ties(facts, owned, first, second)
        # Small enough that it never outweighs one neuron that fires: no pre-activation is above 2.
        charge = rank[:, :, None] / (2.0 * width * facts.labels)
        unembedding = -2.0 * owned.transpose(1, 2) - charge
        return [PairNetwork(*parts) for parts in zip(first, second, unembedding, strict=True)]


def owned_neurons(
    facts: PairFacts, width: int, config: HandCodedConfig, generators: Sequence[torch.Generator]
) -> Bool[Tensor, "T d C"]:
    """Which neurons belong to which label, in each trial."""
    matrix = allocation(width, facts.labels, config.neurons_per_label)
    return torch.stack([permuted(matrix, draw) for draw in generators])


def silent_embeddings(
    facts: PairFacts,
    owned: Bool[Tensor, "T d C"],
    config: HandCodedConfig,
    generators: Sequence[torch.Generator],
) -> tuple[Float[Tensor, "T V d"], Float[Tensor, "T V d"]]:
    """(E1, E2) with weights -1, 0 and 1, for all neurons and trials at once."""
    mine = owned[:, :, facts.label]  # (T, d, N)
    cut = [_most_frequent(facts, tokens, owned, config, generators) for tokens in (facts.first, facts.second)]
    left = mine & ~cut[0][:, :, facts.first] & ~cut[1][:, :, facts.second]
    embeddings = []
    for negative, tokens in zip(cut, (facts.first, facts.second), strict=True):
        zero = torch.zeros(negative.shape).index_add_(2, tokens, left.float()) > 0
        embeddings.append((1.0 - 2.0 * negative.float() - zero.float()).transpose(1, 2).contiguous())
    return embeddings[0], embeddings[1]


def order_of_ties(
    facts: PairFacts,
    owned: Bool[Tensor, "T d C"],
    first: Float[Tensor, "T V d"],
    second: Float[Tensor, "T V d"],
) -> Int[Tensor, "T C"]:
    """The place of each label, 0 for the one that wins every tie.

    From the last place up, each goes to the label that loses the fewest facts by it. No fact is lost to a tie where any
    order can have that.
    """
    hidden = first[:, facts.first] + second[:, facts.second]
    silent = torch.relu(hidden) @ owned.float() == 0  # (T, N, C)
    loses = torch.zeros(len(owned), facts.labels, facts.labels)
    loses.index_add_(1, facts.label, silent.float())  # facts of a label that tie with another
    loses.diagonal(dim1=1, dim2=2).zero_()
    trials = torch.arange(len(owned))
    rank = torch.zeros(len(owned), facts.labels, dtype=torch.long)
    cost = loses.sum(2)
    for place in reversed(range(facts.labels)):
        last = cost.argmin(1)
        rank[trials, last] = place
        cost -= loses[trials, :, last]
        cost[trials, last] = torch.inf
    return rank


def _most_frequent(
    facts: PairFacts,
    tokens: Tensor,
    owned: Bool[Tensor, "T d C"],
    config: HandCodedConfig,
    generators: Sequence[torch.Generator],
) -> Bool[Tensor, "T d V"]:
    """The tokens at one position that get weight -1: the most frequent of a neuron's facts, ties broken at random."""
    table = torch.zeros(facts.labels, facts.tokens)
    table.index_put_((facts.label, tokens), torch.ones(len(facts)), accumulate=True)
    counts = owned.float() @ table  # (T, d, V)
    chance = torch.stack([torch.rand(counts.shape[1:], generator=draw) for draw in generators])
    rank = (counts + chance).argsort(2, descending=True).argsort(2)
    present = (counts > 0).sum(2, keepdim=True)
    if config.top_tokens is None:
        top = (config.top_fraction * present + 1e-9).long().clamp(min=1)  # 0.1 x 30 is a 3 that falls short
    else:
        top = torch.full_like(present, config.top_tokens)
    return (rank < top) & (counts > 0)
