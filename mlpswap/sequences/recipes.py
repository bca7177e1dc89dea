"""The two ways of training of the published figures, for many models at once.

Source: sequence-memorisation challenge, training recipes. Each model of a pack has its own Adam, learning rate, patience
and end: a pack gives the same models as training them one by one.
"""

from collections.abc import Sequence
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

    weights: list[Tensor]  # each (T, ...)
    facts: int

    def gradients(self) -> tuple[Int[Tensor, " T"], Sequence[Tensor]]:
        """How many facts each model has right, and the gradient of each model's mean cross-entropy."""

    def keep(self, models: Int[Tensor, " K"]) -> None:
        """Go on with these models alone."""


@dataclass(frozen=True)
class Trained:
    """The best weights that each of T models went through, and the facts they had right."""

    weights: list[Tensor]
    right: Int[Tensor, " T"]
    epochs: Int[Tensor, " T"]


class Adam:
    """Adam without weight decay on tensors (T, ...), with an age and a learning rate for each of the T models."""

    def __init__(self, weights: Sequence[Tensor]):
        self.mean = [torch.zeros_like(weight) for weight in weights]
        self.square = [torch.zeros_like(weight) for weight in weights]
        self.age = torch.zeros(len(weights[0]), dtype=torch.float64, device=weights[0].device)

    def restart(self, models: Int[Tensor, " K"]) -> None:
        for state in (*self.mean, *self.square, self.age):
            state[models] = 0

    def keep(self, models: Int[Tensor, " K"]) -> None:
        self.mean = [state[models] for state in self.mean]
        self.square = [state[models] for state in self.square]
        self.age = self.age[models]

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor], rate: Float[Tensor, " T"]) -> None:
        """Change `weights` in place."""
        self.age += 1
        size = rate / (1 - BETAS[0] ** self.age)
        scale = (1 - BETAS[1] ** self.age).rsqrt()
        for weight, gradient, mean, square in zip(weights, gradients, self.mean, self.square, strict=True):
            each = (-1, *[1] * (weight.dim() - 1))
            mean.lerp_(gradient, 1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            root = square.sqrt().mul_(scale.to(weight).view(each)).add_(EPSILON)
            weight -= root.reciprocal_().mul_(mean).mul_(size.to(weight).view(each))


@torch.no_grad()
def train(pack: Pack, recipe: Recipe) -> Trained:
    """Train all models of `pack`, which is used up: models that are done leave it."""
    device, count = pack.weights[0].device, len(pack.weights[0])
    found = Trained(
        [weight.clone() for weight in pack.weights],
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
        right, gradients = pack.gradients()
        better = right > peak
        peak = torch.maximum(peak, right)
        waited = torch.where(better, 0, waited + 1)
        epoch += 1
        found.epochs[model] += running
        record = (better & running & (right > found.right[model])).nonzero().squeeze(1)
        if len(record):
            found.right[model[record]] = right[record]
            for best, weight in zip(found.weights, pack.weights, strict=True):
                best[model[record]] = weight[record]
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
                gradients = [gradient[left] for gradient in gradients]
                model, stage, epoch, waited = model[left], stage[left], epoch[left], waited[left]
                peak, running = peak[left], running[left]
        adam.step(pack.weights, gradients, rates[stage])
