"""Permuted knots: gates that depend on both tokens, a code of zero, and one linear solve that writes the labels.

All neurons share one level for each second token; the knots of a first token say from which level on each of them
fires (`knots`). They cancel in the code, so that a small correction of the weights decides it (`tangent`), and are
drawn so that the equations of the facts are independent (`redraw`). One neuron may fire alike for all facts: codes are
then of one size, and their labels are told apart with fewer digits.

Source: this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlpswap.config import option
from mlpswap.errors import ConfigError, InfeasibleConstructionError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.methods.knots import signs
from mlpswap.sequences.methods.redraw import draw_base
from mlpswap.sequences.methods.tangent import BasePoint, tangent_network
from mlpswap.sequences.network import PairNetwork

NARROWEST = 8


@dataclass(frozen=True)
class PermutedKnotsConfig:
    """Options of the method `permuted_knots`."""

    pairs: list[int] | None = option(None, "pairs of neurons outside the run, one of these; null: by width")
    constant: bool | None = option(
        None,
        "a neuron that fires alike for all facts: fewer digits, fewer facts; null: where it can be spared",
    )
    draws: int | None = option(
        None, "sets of knots drawn for each first token, of which the best is kept; null: by width"
    )
    reweightings: int = option(0, "further solves that move weights away from changes of gates: fewer digits")

    def __post_init__(self) -> None:
        if self.draws is not None and self.draws < 1 or self.reweightings < 0:
            raise ConfigError(
                f"permuted_knots: draws = {self.draws}, reweightings = {self.reweightings}: expected at least 1 and 0"
            )
        if self.pairs is not None and (not self.pairs or min(self.pairs) < 0):
            raise ConfigError(f"permuted_knots: pairs = {self.pairs}: expected numbers from 0 up")


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
            raise InfeasibleConstructionError(
                f"permuted_knots: {width} neurons: expected at least {NARROWEST}"
            )
        return [
            tangent_network(
                draw_point(facts, width, config, draw),
                facts,
                threshold=threshold,
                reweightings=config.reweightings,
            )
            for draw in generators
        ]


def draw_point(facts: PairFacts, width: int, config: PermutedKnotsConfig, draw: torch.Generator) -> BasePoint:
    """Random knots and levels, as weights."""
    # Few pairs make many equations; more keep facts from starving where not all second tokens can be watched.
    pairs = config.pairs or ([1] if width <= 16 else [1, 2] if width <= 32 else [width // 4])
    draws = config.draws or (48 if width <= 16 else 16 if width <= 32 else 4)
    constant = config.constant
    if constant is None:
        constant = (
            width > 16 or len(facts) <= 4 * width**2 - 21 * width
        )  # independent equations with it, about
    own = width - constant
    knots, levels = draw_base(facts, own, pairs, draws, draw)
    first, second = -knots, levels[:, None].repeat(1, own)
    # V equations of each neuron from E2 and, as measured, half as many from E1.
    independent = 1.5 * facts.tokens * width
    if not constant:
        return BasePoint(first, second, signs(width), torch.ones(width, dtype=torch.float64), independent)
    half = torch.full((facts.tokens, 1), 0.5, dtype=torch.float64)
    scale = torch.zeros(width, dtype=torch.float64)
    scale[-1] = 1
    return BasePoint(
        torch.cat([first, half], 1), torch.cat([second, half], 1), torch.cat([signs(own), scale[:1]]), scale,
        independent,
    )  # fmt: skip
