"""Unembeddings above given hidden activations, in closed form or trained; many models at once, in bounded memory."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mlpswap.sequences.training.packed import UnembeddingPack
from mlpswap.sequences.training.recipes import CHALLENGE, train

RIDGE = 1e-3  # as a share of the mean square of a neuron
MARGIN = 0.1
NUMBERS = 10**8  # float32 that are in memory at once, about


def trained_unembeddings(
    hidden: Float[Tensor, "T N d"],
    label: Int[Tensor, " N"],
    labels: int,
    generators: Sequence[torch.Generator],
) -> Float[Tensor, "T C d"]:
    """By the recipe of the challenge, from U(+-1/sqrt(d))."""
    width = hidden.shape[2]
    start = torch.stack([uniform((labels, width), width, draw) for draw in generators])
    return _in_parts(
        lambda h, u: train(UnembeddingPack(h, u, label), CHALLENGE).weights, labels, hidden, start
    )


def uniform(size: tuple[int, ...], fan_in: int, generator: torch.Generator) -> Tensor:
    """The start of a linear map: uniform in +-1/sqrt(fan in)."""
    return (2 * torch.rand(size, generator=generator) - 1) / math.sqrt(fan_in)


def pushed_unembeddings(
    hidden: Float[Tensor, "T N d"],
    label: Int[Tensor, " N"],
    labels: int,
    *,
    rounds: int,
    momentum: float = 0.0,
    threshold: float = 1.0,
) -> Float[Tensor, "T C d"]:
    """The ridge regression of one-hot labels on hidden activations, whose targets are then pushed in `rounds`.

    A round adds to the targets what each wrong label lacks to a margin of 0.1 below the right one, and refits; with
    `momentum`, this share of the push before as well. Where an accuracy of `threshold` will do, the facts that lack most
    are left out, more of them from round to round until half of the rounds are over. The best unembedding met is kept.

    One factorisation serves all rounds and no step size is chosen; yet it is a preconditioned subgradient method on the
    multiclass hinge loss. So only rounds = 0, plain ridge regression, may stand among the hand-coded entries.
    """

    def push(part: Tensor) -> Tensor:
        return _pushed(part, label, labels, rounds, momentum, threshold)

    return _in_parts(push, labels, hidden)


def _pushed(
    hidden: Tensor, label: Tensor, labels: int, rounds: int, momentum: float, threshold: float
) -> Float[Tensor, "T C d"]:
    gram = hidden.mT @ hidden
    mean = gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-12)  # no neuron may be open at all
    gram.diagonal(dim1=1, dim2=2).add_(RIDGE * mean[:, None])
    factor = torch.linalg.cholesky(gram)
    moment = hidden.mT @ F.one_hot(label, labels).to(hidden)  # (T, d, C)
    push, best = torch.zeros_like(moment), torch.zeros_like(moment)
    record = torch.full((len(hidden),), -1, device=hidden.device)
    own = label.expand(len(hidden), -1)[:, :, None]
    spare = math.floor((1 - threshold) * len(label) + 1e-9)
    for number in range(rounds + 1):
        found = torch.cholesky_solve(moment, factor)
        logits = hidden @ found
        lack = torch.relu(logits - logits.gather(2, own) + MARGIN).scatter_(2, own, 0.0)
        most = lack.amax(2)
        right = (most < MARGIN).sum(1)
        better = right > record
        record, best = torch.where(better, right, record), torch.where(better[:, None, None], found, best)
        if number == rounds or bool((record == len(label)).all()):
            break
        left_out = round(spare * min(1.0, 2 * number / rounds))
        if left_out:
            worst = most.topk(left_out, dim=1).indices
            lack.scatter_(1, worst[:, :, None].expand(-1, -1, labels), 0.0)
        lack.scatter_(2, own, -lack.sum(2, keepdim=True))
        push = momentum * push + hidden.mT @ lack
        moment -= push
    return best.mT.contiguous()


def _in_parts(fit: Callable[..., Tensor], labels: int, *tensors: Tensor) -> Tensor:
    """`fit` on so many models of (T, N, d) at a time as bound the memory."""
    _, count, width = tensors[0].shape
    at_once = max(1, NUMBERS // (count * (width + 4 * labels)))
    parts = zip(*(each.split(at_once) for each in tensors), strict=True)
    return torch.cat([fit(*part) for part in parts])
