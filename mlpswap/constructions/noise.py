"""Noisy keys, as a transformer's attention hands them over: fits on such keys buy tolerance to them."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.embeddings import spherical


def noise_unit(facts: int, d: int) -> float:
    """sqrt(d / (F ln F)), the unit of noise relative to a key's norm."""
    return math.sqrt(d / (facts * math.log(max(facts, 2))))


def disturb(x: Float[Tensor, "B d"], noise: float, generator: torch.Generator) -> Float[Tensor, "B d"]:
    """Add uniform directions of `noise` times a row's norm, then restore the norm."""
    norms = x.norm(dim=1, keepdim=True)
    moved = x + noise * norms * spherical(len(x), x.shape[1], generator, x.dtype).to(x.device)
    return moved * (norms / moved.norm(dim=1, keepdim=True))
