"""Unembeddings above given hidden activations: trained, or in closed form; many models at once."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mlpswap.errors import ConfigError
from mlpswap.sequences.packed import UnembeddingPack
from mlpswap.sequences.recipes import CHALLENGE, train

FITS = ("trained", "pushed", "ridge")
RIDGE = 1e-3  # as a share of the mean square of a neuron
MARGIN = 0.1
ROUNDS = 150
NUMBERS = 10**8  # float32 that are in memory at once, about


def require_fit(name: str, fit: str) -> None:
    if fit not in FITS:
        raise ConfigError(f"{name}: unembedding = {fit}: expected one of {', '.join(FITS)}")


def fitted_unembeddings(
    hidden: Float[Tensor, "T N d"],
    label: Int[Tensor, " N"],
    labels: int,
    fit: str,
    generators: Sequence[torch.Generator],
) -> Float[Tensor, "T C d"]:
    """One unembedding for each model, by one of `FITS`. Training starts from U(+-1/sqrt(d)) and follows `CHALLENGE`."""
    models, count, width = hidden.shape
    at_once = max(1, NUMBERS // (count * (width + 3 * labels)))
    parts = []
    for begin in range(0, models, at_once):
        part = hidden[begin : begin + at_once]
        if fit == "trained":
            draws = generators[begin : begin + at_once]
            start = torch.stack([uniform((labels, width), width, draw) for draw in draws])
            parts.append(train(UnembeddingPack(part, start, label), CHALLENGE).weights)
        else:
            parts.append(ridge_unembedding(part, label, labels, rounds=ROUNDS if fit == "pushed" else 0))
    return torch.cat(parts)


def uniform(size: tuple[int, ...], fan_in: int, generator: torch.Generator) -> Tensor:
    """The start of a linear map: uniform in +-1/sqrt(fan in)."""
    return (2 * torch.rand(size, generator=generator) - 1) / math.sqrt(fan_in)


def ridge_unembedding(
    hidden: Float[Tensor, "T N d"], label: Int[Tensor, " N"], labels: int, *, rounds: int = 0
) -> Float[Tensor, "T C d"]:
    """The ridge regression of one-hot labels on hidden activations, and with `rounds` the targets pushed so often.

    A round adds to the targets what each wrong label lacks to a margin of 0.1 below the right one, and refits. One
    factorisation serves all rounds and no step size is chosen; yet it is a preconditioned subgradient method on the
    multiclass hinge loss. So only plain ridge regression may stand among the hand-coded entries.
    """
    gram = hidden.mT @ hidden
    mean = gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-12)  # no neuron may be open at all
    gram.diagonal(dim1=1, dim2=2).add_(RIDGE * mean[:, None])
    factor = torch.linalg.cholesky(gram)
    moment = hidden.mT @ F.one_hot(label, labels).to(hidden)  # (T, d, C)
    right = label.expand(len(hidden), -1)[:, :, None]
    for _ in range(rounds):
        logits = hidden @ torch.cholesky_solve(moment, factor)
        lack = torch.relu(logits - logits.gather(2, right) + MARGIN)
        lack.scatter_(2, right, 0.0)
        lack.scatter_(2, right, -lack.sum(2, keepdim=True))
        moment -= hidden.mT @ lack
    return torch.cholesky_solve(moment, factor).mT.contiguous()
