"""Permuted knots: gates that depend on both tokens, a code of zero, and one linear solve that writes the labels.

All neurons share one level for each second token; the knots of a first token say from which level on each of them
fires (`knots`). They cancel in the code, so that a small correction of the weights decides it (`tangent`), and are
drawn so that the equations of the facts are independent (`redraw`).

Source: this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlpswap.config import option
from mlpswap.errors import ConfigError, InfeasibleConstructionError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.knots import signs
from mlpswap.sequences.network import PairNetwork
from mlpswap.sequences.redraw import draw_base
from mlpswap.sequences.tangent import BasePoint, tangent_network

NARROWEST = 6


@dataclass(frozen=True)
class PermutedKnotsConfig:
    """Options of the method `permuted_knots`."""

    pairs: tuple[int, ...] | None = option(None, "pairs of neurons outside the run, one of these; null: by the width")
    constant: bool = option(False, "a neuron that always fires alike")
    draws: int = option(24, "sets of knots drawn for each first token, of which the best is kept")

    def __post_init__(self) -> None:
        if self.draws < 1 or (self.pairs is not None and (not self.pairs or min(self.pairs) < 0)):
            raise ConfigError(
                f"permuted_knots: draws = {self.draws}, pairs = {self.pairs}: expected at least one draw, and numbers "
                "of pairs of at least 0"
            )


class PermutedKnots:
    """Knots that cancel in the code, and one linear solve."""

    name = "permuted_knots"
    source = "this project"
    column = "hand-coded"
    gives_up = True
    Config = PermutedKnotsConfig

    def build(
        self,
        facts: PairFacts,
        width: int,
        config: PermutedKnotsConfig,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        if width < NARROWEST:
            raise InfeasibleConstructionError(f"permuted_knots: {width} neurons: expected at least {NARROWEST}")
        pairs = config.pairs or pairs_outside(width)
        networks = []
        for draw in generators:
            base = draw_point(facts, width, pairs, config.draws, draw, config.constant)
            networks.append(tangent_network(base, facts, threshold=threshold))
        return networks


def draw_point(facts, width, pairs, draws, draw, constant):
    own = width - constant
    knots, levels = draw_base(facts, own, pairs, draws, draw)
    first, second = -knots, levels[:, None].repeat(1, own)
    w, v = signs(own), torch.ones(own, dtype=torch.float64)
    if constant:
        half = torch.full((facts.tokens, 1), 0.5, dtype=torch.float64)
        first, second = torch.cat([first, half], 1), torch.cat([second, half], 1)
        w, v = torch.cat([w, torch.zeros(1).double()]), torch.cat([0 * v, torch.ones(1).double()])
    return BasePoint(first, second, w, v)


def pairs_outside(width: int) -> tuple[int, ...]:
    """Few pairs make many equations, more make them better conditioned."""
    return (1,) if width <= 16 else (width // 16, width // 8)
