"""The two ways of training of the published figures, for many models at once.

Source: sequence-memorisation challenge, training recipes. Each model of a pack has its own Adam, learning rate, patience
and end: a pack gives the same models as training them one by one.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

BETAS, EPSILON = (0.9, 0.999), 1e-8
DROPPED_AT = 1 / 16  # share of a pack that is done before it is dropped: dropping copies the others


@dataclass(frozen=True)
class Recipe:
    """Full-batch cross-entropy with Adam, a new one for each stage.

    rates: a learning rate for each stage. A stage ends once every fact is right, after `epochs`, or after `patience`
    epochs without a new best accuracy in it; the next one begins only if that best is at least `proceed`.
    """

    rates: tuple[float, ...]
    epochs: int
    patience: int
    proceed: float = 0.0


CHALLENGE = Recipe((1e-2,), epochs=5_000, patience=100)
ABLATION = Recipe((1e-2, 3e-3, 1e-3), epochs=50_000, patience=5_000, proceed=0.95)


class Pack(Protocol):
    """T models of one shape about the same facts."""

    weights: Tensor  # (T, ...)
    facts: int

    def gradients(self) -> tuple[Int[Tensor, " T"], Tensor]:
        """How many facts each model has right, and the gradient of each model's mean cross-entropy."""

    def keep(self, models: Int[Tensor, " K"]) -> None:
        """Go on with these models alone."""


@dataclass(frozen=True)
class Trained:
    """The best weights that each of T models went through, and the facts they had right."""

    weights: Tensor  # (T, ...)
    right: Int[Tensor, " T"]
    epochs: Int[Tensor, " T"]


class Adam:
    """Adam without weight decay on weights (T, ...), with an age and a learning rate for each of the T models."""

    def __init__(self, weights: Tensor):
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)
        self.age = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)

    def restart(self, models: Int[Tensor, " K"]) -> None:
        for state in (self.mean, self.square, self.age):
            state[models] = 0

    def keep(self, models: Int[Tensor, " K"]) -> None:
        self.mean, self.square, self.age = self.mean[models], self.square[models], self.age[models]

    def step(self, weights: Tensor, gradient: Tensor, rate: Float[Tensor, " T"]) -> None:
        """Change `weights` in place."""
        self.age += 1
        each = (-1, *[1] * (weights.dim() - 1))
        size = (rate / (1 - BETAS[0] ** self.age)).to(weights).view(each)
        scale = (1 - BETAS[1] ** self.age).rsqrt().to(weights).view(each)
        self.mean.lerp_(gradient, 1 - BETAS[0])
        self.square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        weights -= self.square.sqrt().mul_(scale).add_(EPSILON).reciprocal_().mul_(self.mean).mul_(size)


@torch.no_grad()
def train(pack: Pack, recipe: Recipe) -> Trained:
    """Train all models of `pack`, which is used up: models that are done leave it."""
    device, count = pack.weights.device, len(pack.weights)
    found = Trained(
        pack.weights.clone(),
        torch.full((count,), -1, device=device),
        torch.zeros(count, dtype=torch.long, device=device),
    )
    rates = torch.tensor(recipe.rates, dtype=torch.float64, device=device)
    adam = Adam(pack.weights)
    model = torch.arange(count, device=device)  # of each place in the pack
    stage, epoch, waited = (torch.zeros_like(model) for _ in range(3))
    peak = torch.full_like(model, -1)  # most facts right in the stage
    running = torch.ones_like(model, dtype=torch.bool)
    while True:
        right, gradient = pack.gradients()
        better = right > peak
        peak = torch.maximum(peak, right)
        waited = torch.where(better, 0, waited + 1)
        epoch += 1
        found.epochs[model] += running
        record = (better & running & (right > found.right[model])).nonzero().squeeze(1)
        if len(record):
            found.right[model[record]] = right[record]
            found.weights[model[record]] = pack.weights[record]
        ended = (right == pack.facts) | (waited >= recipe.patience) | (epoch >= recipe.epochs)
        if ended.any():
            last = (stage + 1 == len(rates)) | (peak < recipe.proceed * pack.facts)
            done = ended & (last | (right == pack.facts))
            onward = (ended & running & ~done).nonzero().squeeze(1)
            adam.restart(onward)
            # The look that ends a stage is the first one of the next.
            stage[onward] += 1
            waited[onward], epoch[onward], peak[onward] = 0, 1, right[onward]
            found.epochs[model[onward]] += 1
            running &= ~done
            if not running.any():
                return found
            if (~running).sum() >= DROPPED_AT * len(running):
                left = running.nonzero().squeeze(1)
                pack.keep(left)
                adam.keep(left)
                gradient = gradient[left]
                model, stage, epoch, waited = model[left], stage[left], epoch[left], waited[left]
                peak, running = peak[left], running[left]
        adam.step(pack.weights, gradient, rates[stage])
