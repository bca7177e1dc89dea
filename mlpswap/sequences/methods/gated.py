"""The gated construction of arXiv 2512.00207 in this architecture: codes for labels, and pairs of neurons for its gates.

Labels get codes of width m. The encoder of `constructions.encoders` maps the two-hot key of a pair to the code of its
label: coordinate by coordinate, one linear system in the weights behind random gates. Without a gated activation, two
ReLUs with weights G + eps A and G - eps A make a gate, as exactly as float32 allows while no gate flips. So d neurons
have d / (2 m) gates for each coordinate, with 2 V unknowns each: at most about d V / m facts.

    m = 1   positions on a line; one neuron is kept as the constant that the read-out needs.
    m = 2   points on a circle.
    else    random directions, as the original has it, where m grows as log C.

Wider codes store fewer facts and keep them with fewer bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from mlpswap.config import option
from mlpswap.constructions.encoders import BinOptions, Encoder, solve_gadgets
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError, InfeasibleConstructionError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.network import PairNetwork

REDRAWS = 200


@dataclass(frozen=True)
class GatedConfig:
    """Options of the method `gated`."""

    code_width: int = option(1, "m, coordinates of a label's code")
    levels: int = option(16, "steps in a unit of the gates' weights, which have variance 1")
    open_gates: int = option(1, "gates of each coordinate that every fact should find open")

    def __post_init__(self) -> None:
        if min(self.code_width, self.levels) < 1 or self.open_gates < 0:
            raise ConfigError(
                f"gated: code_width = {self.code_width}, levels = {self.levels}, open_gates = {self.open_gates}: "
                "expected at least 1, 1 and 0"
            )


class Gated:
    """Random gates and one linear system for each coordinate of the labels' codes (arXiv 2512.00207, section 4)."""

    name = "gated"
    source = "arXiv 2512.00207, section 4 and A.1.3, without gates by the derivative limit"
    column = "hand-coded"
    gives_up = False
    Config = GatedConfig

    @torch.no_grad()
    def build(
        self,
        facts: PairFacts,
        width: int,
        config: GatedConfig,
        generators: Sequence[torch.Generator],
        *,
        threshold: float = 1.0,
    ) -> list[PairNetwork]:
        gates = (width - (config.code_width == 1)) // (2 * config.code_width)
        if gates < 1:
            raise InfeasibleConstructionError(
                f"gated: {width} neurons for codes of width {config.code_width}: expected at least "
                f"{2 * config.code_width + (config.code_width == 1)}, two for each coordinate"
            )
        return [_network(facts, width, gates, config, draw) for draw in generators]


def _network(
    facts: PairFacts, width: int, count: int, config: GatedConfig, draw: torch.Generator
) -> PairNetwork:
    """`count` gates for each coordinate."""
    keys = torch.cat([one_hot(facts.first, facts.tokens), one_hot(facts.second, facts.tokens)], 1).double()
    codes = label_codes(facts.labels, config.code_width, draw)
    gates = drawn_gates(facts, count, config, draw)
    options = BinOptions("relu", gated=False)
    try:
        gadgets = solve_gadgets(keys, codes[facts.label], gates, options)
    except InfeasibleConstructionError:  # more facts than it can hold: as near as least squares comes
        gadgets = solve_gadgets(keys, codes[facts.label], gates, replace(options, exact=False))
    encoder = gadgets.derivative_limit(options, gadgets.largest_epsilon(keys))
    return _assembled(facts, width, encoder, codes)


def drawn_gates(
    facts: PairFacts, count: int, config: GatedConfig, draw: torch.Generator
) -> Float[Tensor, "w two_V"]:
    """Gaussian weights on a grid; tokens of facts with too few open gates are drawn again.

    Those of first tokens are multiples of 1 / levels, those of second tokens lie half a step beside: no sum comes nearer
    to 0 than half a step, and eps need not be small.
    """
    gates = torch.empty(2 * facts.tokens, count, dtype=torch.float64)
    tokens = torch.arange(2 * facts.tokens)
    for attempt in range(REDRAWS):
        steps = (gaussian(len(tokens), count, draw, torch.float64) * config.levels).floor()
        gates[tokens] = (steps + (tokens[:, None] >= facts.tokens) / 2) / config.levels
        opened = (gates[facts.first] + gates[facts.tokens + facts.second] > 0).sum(1)
        starved = opened < min(config.open_gates, count)
        if not starved.any():
            break
        tokens = (facts.tokens + facts.second if attempt % 2 else facts.first)[starved].unique()
    return gates.T.contiguous()


def _assembled(facts: PairFacts, width: int, encoder: Encoder, codes: Float[Tensor, "C m"]) -> PairNetwork:
    used = len(encoder.up)
    first, second = torch.zeros(2, facts.tokens, width)
    first[:, :used], second[:, :used] = encoder.up.T.split(facts.tokens)
    unembedding = torch.zeros(facts.labels, width)
    unembedding[:, :used] = codes @ encoder.read
    if codes.shape[1] == 1:
        first[:, used] = second[:, used] = 0.5
        unembedding[:, used] = -codes[:, 0].square() / 2
    return PairNetwork(first, second, unembedding)


def label_codes(labels: int, m: int, draw: torch.Generator) -> Float[Tensor, "C m"]:
    """Codes of which each has its largest product with itself, less half a square where m = 1; float64."""
    if m == 1:
        return torch.linspace(-1, 1, labels, dtype=torch.float64)[:, None]
    if m == 2:
        angle = torch.arange(labels, dtype=torch.float64) * (2 * math.pi / labels)
        return torch.stack([angle.cos(), angle.sin()], 1)
    return spherical(labels, m, draw, torch.float64)
