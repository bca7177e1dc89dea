"""Selector groups: a neuron for every two or three first tokens, whose value names the label by the second token.

Neuron i is silent but for its own group of first tokens, and then its value is the label + 1 that the group has with the
second token; where tokens of a group differ, the most common label wins. The last neuron is constant, and the read-out
is that of the exact construction. Groups are made so that few of their tokens differ.

Source: this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from mlpswap.config import option
from mlpswap.errors import ConfigError, InfeasibleConstructionError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.network import PairNetwork


@dataclass(frozen=True)
class SelectorGroupsConfig:
    """Options of the method `selector_groups`."""

    swaps: int = option(
        10_000, "exchanges of tokens between groups at most, each the best there is; 0: greedy alone"
    )

    def __post_init__(self) -> None:
        if self.swaps < 0:
            raise ConfigError(f"selector_groups: swaps = {self.swaps}: expected at least 0")


class SelectorGroups:
    """First tokens share neurons; where they disagree, the majority is stored."""

    name = "selector_groups"
    source = "this project"
    column = "hand-coded"
    gives_up = False
    Config = SelectorGroupsConfig

    def build(
        self,
        facts: PairFacts,
        width: int,
        config: SelectorGroupsConfig,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        if width < 2:
            raise InfeasibleConstructionError(f"selector_groups: {width} neurons: expected at least 2")
        conflicts = disagreements(facts)
        networks = []
        for draw in generators:
            group = exchanged(conflicts, grouped(conflicts, width - 1, draw), config.swaps)
            networks.append(_network(facts, group, width))
        return networks


def disagreements(facts: PairFacts) -> Float[Tensor, "V V"]:
    """How many second tokens two first tokens have facts with, and different labels."""
    table = torch.full((facts.tokens, facts.tokens), -1)
    table[facts.first, facts.second] = facts.label
    labels = one_hot(table + 1, facts.labels + 1)[..., 1:].float()
    known = labels.sum(2)
    flat = labels.flatten(1)
    return (known @ known.T - flat @ flat.T).fill_diagonal_(0)


def grouped(conflicts: Float[Tensor, "V V"], groups: int, draw: torch.Generator) -> Int[Tensor, " V"]:
    """The group of each token: in random order, each joins the group with room that it disagrees with least."""
    tokens = len(conflicts)
    most = -(-tokens // groups)
    group = torch.full((tokens,), -1)
    cost = torch.zeros(tokens, groups)
    size = torch.zeros(groups)
    larger = tokens - groups * (most - 1)  # groups that may have the largest size
    for token in torch.randperm(tokens, generator=draw).tolist():
        limit = most if int((size == most).sum()) < larger else most - 1
        mine = int(torch.where(size < limit, cost[token], torch.inf).argmin())
        group[token] = mine
        size[mine] += 1
        cost[:, mine] += conflicts[:, token]
    return group


def exchanged(conflicts: Float[Tensor, "V V"], group: Int[Tensor, " V"], swaps: int) -> Int[Tensor, " V"]:
    """Exchange two tokens of different groups, the pair that gains most, until none gains."""
    group = group.clone()
    tokens = torch.arange(len(group))
    for _ in range(swaps):
        members = one_hot(group, int(group.max()) + 1).float()
        cost = conflicts @ members
        own = cost[tokens, group]
        moved = cost[:, group]  # of token i in the group of token j
        change = moved + moved.T - own[:, None] - own - 2 * conflicts
        change[group[:, None] == group] = 0
        best = int(change.argmin())
        if change.flatten()[best] >= 0:
            break
        i, j = divmod(best, len(group))
        group[[i, j]] = group[[j, i]]
    return group


def _network(facts: PairFacts, group: Int[Tensor, " V"], width: int) -> PairNetwork:
    votes = torch.zeros(width - 1, facts.tokens, facts.labels)
    one = torch.ones(len(facts))
    votes.index_put_((group[facts.first], facts.second, facts.label), one, accumulate=True)
    first = torch.full((facts.tokens, width), -2.0 * facts.labels)
    first[torch.arange(facts.tokens), group] = 0
    first[:, -1] = 0.5
    second = torch.cat([votes.argmax(2).T + 1.0, torch.full((facts.tokens, 1), 0.5)], 1)
    code = torch.arange(1.0, facts.labels + 1)[:, None]
    return PairNetwork(first, second, torch.cat([code.repeat(1, width - 1), -(code**2) / 2], 1))
