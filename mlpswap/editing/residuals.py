"""Residuals: which change of the MLP's output, at the value position, makes the model say the wanted token.

Protocol of arXiv 2512.00207, A.3.4: for each edit a vector r, added to the output of the fact MLP inside
the mixture, starts at zero and follows Adam down the cross-entropy of the wanted token. Everything before
the fact MLP's output is independent of r, so the model enters only through its mixture and its head. All
edits are one problem: Adam acts on each coordinate alone, so the rows of a summed loss evolve as if each
were optimised by itself. And one trajectory serves many settings: fewer steps are an earlier snapshot, an
early stop is a snapshot per row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.config import require_plain
from mlpswap.errors import ConfigError
from mlpswap.metrics import TokenNll


@dataclass(frozen=True)
class ResidualOptions:
    """How long and how fast to optimise. `early_stop`: a row stays where it is after the first step whose
    loss, taken before the step, lies below it. `weight_decay` is Adam's coupled one: gradient +=
    weight_decay * r.
    """

    steps: int
    lr: float
    weight_decay: float = 0.0
    early_stop: float | None = None

    def __post_init__(self) -> None:
        require_plain(self)
        if self.steps < 1:
            raise ConfigError(f"steps must be at least 1: found {self.steps}")
        if self.lr <= 0 or self.weight_decay < 0:
            raise ConfigError(
                f"lr must be positive and weight_decay not negative: found {self.lr} and {self.weight_decay}"
            )
        if self.early_stop is not None and self.early_stop <= 0:
            raise ConfigError(f"early_stop must be positive or null: found {self.early_stop}")


class Losses(ABC):
    """The losses of n edits as functions of their residuals. `output`, (n, d), is what the residuals change."""

    output: Tensor

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, rows: slice | Tensor) -> "Losses": ...

    @abstractmethod
    def nll(self, r: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """-log softmax at the targets, in nats; differentiable in r."""

    def nll_and_gradient(self, r: Float[Tensor, "n d"]) -> tuple[Float[Tensor, " n"], Float[Tensor, "n d"]]:
        """Each row's loss and its gradient by its own residual."""
        with torch.enable_grad():
            r = r.detach().requires_grad_()
            losses = self.nll(r)
            (gradient,) = torch.autograd.grad(losses.sum(), r)
        return losses.detach(), gradient


@dataclass(frozen=True, eq=False)
class Objective(Losses):
    """In closed form: hidden = rest + gate * (output + r), logits = direction(hidden) @ table.T."""

    gate: Float[Tensor, " n"]
    rest: Float[Tensor, "n d"]
    output: Float[Tensor, "n d"]
    targets: Int[Tensor, " n"]
    direction: Callable[[Tensor], Tensor]
    table: Float[Tensor, "V d"]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, rows: slice | Tensor) -> "Objective":
        parts = {name: getattr(self, name)[rows] for name in ("gate", "rest", "output", "targets")}
        return replace(self, **parts)

    def nll(self, r: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        hidden = self.rest + self.gate[:, None] * (self.output + r)
        return TokenNll.apply(self.direction(hidden), self.table, self.targets)


@dataclass
class Adam:
    """Adam (arXiv 1412.6980) on one tensor, in place; weight decay is added to the gradient."""

    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    steps: int = 0
    moments: tuple[Tensor, Tensor] | None = field(default=None, repr=False)

    def step(self, parameter: Tensor, gradient: Tensor) -> None:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameter
        if self.moments is None:
            self.moments = torch.zeros_like(parameter), torch.zeros_like(parameter)
        self.steps += 1
        first, second = self.moments
        beta1, beta2 = self.betas
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = second.sqrt().div_((1 - beta2**self.steps) ** 0.5).add_(self.eps)
        rate = min(self.lr / (1 - beta1**self.steps), torch.finfo(parameter.dtype).max)
        parameter.addcdiv_(first, root, value=-rate)


@dataclass(frozen=True, eq=False)
class ResidualRun:
    """Residuals of n edits, the losses there, and the losses and gradient norms at zero."""

    residuals: Float[Tensor, "n d"]
    losses: Float[Tensor, " n"]
    first_losses: Float[Tensor, " n"]
    first_gradients: Float[Tensor, " n"]


@torch.no_grad()
def optimise_residuals(
    objective: Losses, options: Sequence[ResidualOptions], *, rows: int = 1024
) -> list[ResidualRun]:
    """One run for each of `options`, as if each edit and each option had been run alone.

    Options that share lr and weight decay share one trajectory. `rows` edits are held at a time, which
    bounds the memory of what they compute.
    """
    wanted = list(dict.fromkeys(options))
    groups: dict[tuple[float, float], list[ResidualOptions]] = {}
    for option in wanted:
        groups.setdefault((option.lr, option.weight_decay), []).append(option)
    parts: dict[ResidualOptions, list[ResidualRun]] = {option: [] for option in wanted}
    for start in range(0, max(len(objective), 1), rows):
        chunk = objective[start : start + rows]
        first, gradient = chunk.nll_and_gradient(torch.zeros_like(chunk.output))
        for group in groups.values():
            for option, r in _trajectory(chunk, group).items():
                run = ResidualRun(r, chunk.nll(r), first, gradient.norm(dim=1))
                parts[option].append(run)
    merged = {
        option: ResidualRun(
            *(torch.cat([getattr(run, name) for run in runs]) for name in ResidualRun.__dataclass_fields__)
        )
        for option, runs in parts.items()
    }
    return [merged[option] for option in options]


def _trajectory(objective: Losses, group: Sequence[ResidualOptions]) -> dict[ResidualOptions, Tensor]:
    """Snapshots of one run, for options of the same lr and weight decay."""
    r = torch.zeros_like(objective.output)
    adam = Adam(group[0].lr, group[0].weight_decay)
    # Per threshold: where its rows have stopped, and which of them have.
    thresholds = {option.early_stop for option in group if option.early_stop is not None}
    frozen = {each: torch.zeros_like(r) for each in thresholds}
    stopped = {each: torch.zeros(len(r), dtype=torch.bool, device=r.device) for each in thresholds}
    snapshots: dict[ResidualOptions, Tensor] = {}
    for step in range(1, max(option.steps for option in group) + 1):
        loss, gradient = objective.nll_and_gradient(r)
        adam.step(r, gradient)
        for threshold, place in frozen.items():
            stops = (loss < threshold) & ~stopped[threshold]
            place[stops] = r[stops]
            stopped[threshold] |= stops
        for option in group:
            if option.steps == step:
                snapshots[option] = r.clone()
                if option.early_stop is not None:
                    done = stopped[option.early_stop]
                    snapshots[option][done] = frozen[option.early_stop][done]
    return snapshots


def clip_residuals(
    residuals: Float[Tensor, "d n"], reference_norms: Float[Tensor, " n"], factor: float | None
) -> Float[Tensor, "d n"]:
    """r_i * min(1, factor * reference_i / ||r_i||), once, after the optimisation; no clip if `factor` is
    None.

    The reference is ||W k_i||, without the bias. A zero residual stays zero; a zero reference makes it zero.
    """
    if factor is None:
        return residuals
    if factor < 0:
        raise ConfigError(f"clip must not be negative: found {factor}")
    norms = residuals.norm(dim=0)
    share = (factor * reference_norms / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
    return residuals * share
