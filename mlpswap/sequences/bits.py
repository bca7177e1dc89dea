"""How exact the weights must be: labels may sit in digits that a coarser number format does not keep."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.errors import ConfigError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.network import PairNetwork

FLOAT32_BITS = 24  # of the significand, the leading one included


def round_to_bits(tensor: Float[Tensor, "..."], bits: int) -> Float[Tensor, "..."]:
    """Each number with its significand rounded to `bits` binary digits, to even in a tie; exponents are unlimited.

    bfloat16 keeps 8 digits, float16 11, TF32 11 and float32 24. Raises `ConfigError` for less than one digit.
    """
    if bits < 1:
        raise ConfigError(f"a significand has at least one binary digit: found {bits}")
    significand, exponent = torch.frexp(tensor)
    return torch.ldexp(torch.round(significand * 2.0**bits) / 2.0**bits, exponent)


def rounded(network: PairNetwork, bits: int) -> PairNetwork:
    """The network with every weight rounded to `bits` significant binary digits."""
    parts = {name: round_to_bits(getattr(network, name), bits) for name in ("first", "second", "unembedding")}
    return replace(network, **parts)


def bit_budget(network: PairNetwork, facts: PairFacts, accuracy: float = 1.0) -> int | None:
    """The smallest number of significant binary digits from which on every larger one keeps `accuracy`.

    All weights are rounded alike, each to its own exponent; the forward pass stays in float32. None if the network has
    not that accuracy to begin with.
    """
    if network.accuracy(facts) < accuracy:
        return None
    bits = FLOAT32_BITS
    while bits > 1 and rounded(network, bits - 1).accuracy(facts) >= accuracy:
        bits -= 1
    return bits


def smallest_margin(network: PairNetwork, facts: PairFacts) -> float:
    """The smallest lead of a fact's label over the next one, as a share of the largest logit; negative for a miss."""
    return float(network.margins(facts).min() / network.logits(facts).abs().max())
