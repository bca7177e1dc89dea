"""Bilinear fact MLPs by Gauss-Newton steps on the distance to the margin sets; no learning rate, no loss on scores.

    minimise  sum_i dist(g(k_i), C_i)^2   over G, A and B together

 with C_i the outputs that score fact i right by a margin (`mlpswap.constructions.margin`). Each step projects the outputs
onto the C_i and solves the linearised least-squares problem "move the outputs there" by conjugate gradients, with
Levenberg and Marquardt's damping. Every fact keeps the weight 1, stored or not: what is stored should stay where it is.
Steps start from an extrapolated point (momentum), without which they need five to ten times as many.

Second order and iterative, so closer to training than the closed forms; about as small as what `gd` trains.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.config import option
from mlpswap.constructions.base import FactMLP, FactMLPConfig, finish
from mlpswap.constructions.checks import check_inputs
from mlpswap.constructions.hebbian import conjugate_gradients
from mlpswap.constructions.margin import MarginSets
from mlpswap.constructions.noise import disturb, noise_unit
from mlpswap.constructions.readout import ridge_readout
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError

SWEEPS = 4  # of the projection, without over-relaxation: targets should be near
CG_ITERATIONS, CG_TOLERANCE = 24, 1e-2
STEPS, MOMENTUM = 200, 0.9
NOISY_STEPS, NOISY_MOMENTUM = 120, 0.5  # with new noise in each step a long memory does harm
DAMPING = 0.1  # at the start, relative to the diagonal
DAMPING_RANGE = (1e-6, 1e6)
REJECTED, ACCEPTED = 4.0, 0.4  # factors on the damping


@dataclass(frozen=True)
class GaussNewtonConfig:
    """Options of the construction `gauss_newton`."""

    h: int | None = option(
        None, "hidden width; null: one that stores everything (gauss_newton.default_width)"
    )
    gamma: float = option(0.3, "the margin, in units of the mean output's length")
    noise: float = option(0.0, "noise on the keys in the fit, in units of sqrt(d / (F ln F))")
    steps: int | None = option(
        None, "steps at most; null: 200, which end early, or 120 with noise, which do not"
    )
    extra_steps: int = option(5, "without noise: steps after every fact is stored, for wider margins")
    match_output_norm: bool = option(False, "scale B: mean output norm on the keys = mean norm of the values")

    def __post_init__(self) -> None:
        for name in ("h", "gamma", "steps"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"gauss_newton: {name} must be positive, found {getattr(self, name)}")
        for name in ("noise", "extra_steps"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"gauss_newton: {name} must not be negative, found {getattr(self, name)}")


class GaussNewton:
    """Bilinear MLPs fitted to margins by a second-order method (ours). Parameters 3 d h, h about
    F log2(F) / (6 d) at 1.9 bits a parameter, twice that by default. Keys: no two on one line through the origin; values: any.
    Use it for as few parameters as gradient descent needs, without a learning rate.

    Computes in float32 on the device of the keys. Only the directions of keys matter, since bilinear features are
    homogeneous.
    """

    name = "gauss_newton"
    Config = GaussNewtonConfig

    @torch.no_grad()
    def build(
        self,
        keys: Float[Tensor, "F d"],
        values: Float[Tensor, "n_v d"],
        mapping: Int[Tensor, " F"],
        config: GaussNewtonConfig,
        *,
        competitors: Float[Tensor, "n_c d"] | None = None,
        generator: torch.Generator,
    ) -> FactMLP:
        """See `Construction.build`."""
        started = time.perf_counter()
        check_inputs(keys, values, mapping, competitors, homogeneous=True)
        facts, d = keys.shape
        rest = values[:0] if competitors is None else competitors
        h = config.h or default_width(facts, len(values) + len(rest), d)
        norms = keys.double().norm(dim=1, keepdim=True)
        x = (keys * (math.sqrt(d) / norms)).float()  # norms sqrt(d)
        sets = MarginSets(values, mapping, rest, gamma=config.gamma)
        weights, details = fit(
            initial(x, sets.wanted, h, generator), x, sets, steps=config.steps or (NOISY_STEPS if config.noise else STEPS),
            extra_steps=config.extra_steps, noise=config.noise * noise_unit(facts, d), generator=generator,
        )  # fmt: skip
        mlp = FactMLP(FactMLPConfig.of_kind("bilinear", d, h), dtype=torch.float64).to(keys.device)
        assert mlp.gate is not None
        scale = math.sqrt(d) / norms.mean()
        mlp.up.weight.copy_(weights[0] * scale)
        mlp.gate.weight.copy_(weights[1] * scale)
        mlp.down.weight.copy_(weights[2].T * sets.length)
        return finish(
            self.name, mlp, keys, values, mapping, started=started, norm_matched=config.match_output_norm,
            competitors=competitors, details=details,
        )  # fmt: skip

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        keys = spherical(128, 32, generator)
        mapping = torch.randperm(len(keys), generator=generator)
        return {"keys": keys, "values": keys, "mapping": mapping, "config": GaussNewtonConfig()}


def default_width(facts: int, rows: int, d: int) -> int:
    """A width with which isotropic embeddings are stored completely against `rows` rows, with some reserve.

    F log2(rows) bits at one bit per parameter, where 1.9 can be reached.
    """
    width = math.ceil(facts * math.log2(max(rows, 2)) / (3 * d))
    return min(max(width, 16), d * (d + 1) // 2)


def initial(
    x: Float[Tensor, "F d"], targets: Float[Tensor, "F d"], h: int, generator: torch.Generator
) -> Float[Tensor, "3 h d"]:
    """Random features and the least-squares read-out to the targets, scaled to outputs of mean norm 1: (A, G, B^T)."""
    d = x.shape[1]
    a, g = (gaussian(h, d, generator).to(x.device) / math.sqrt(d) for _ in range(2))
    phi = (x @ a.T) * (x @ g.T)
    b = ridge_readout(phi.double(), targets.double()).T.float()
    length = (phi @ b).norm(dim=1).mean()
    return torch.stack([a, g, b / length if length > 0 else b])


class Linearised:
    """The bilinear MLP B((A x) * (G x)) at weights (A, G, B^T), with its Jacobian as an operator; x is (F, d)."""

    def __init__(self, weights: Float[Tensor, "3 h d"], x: Float[Tensor, "F d"]):
        a, g, self.b = weights
        self.x, self.up, self.gate = x, x @ a.T, x @ g.T  # (F, h)
        self.phi = self.up * self.gate
        self.outputs = self.phi @ self.b

    def apply(self, change: Float[Tensor, "3 h d"]) -> Float[Tensor, "F d"]:
        """J times a change of the weights: the first-order change of the outputs."""
        a, g, b = change
        return ((self.x @ a.T) * self.gate + self.up * (self.x @ g.T)) @ self.b + self.phi @ b

    def transpose(self, outputs: Float[Tensor, "F d"]) -> Float[Tensor, "3 h d"]:
        """J^T times a change of the outputs."""
        hidden = outputs @ self.b.T
        return torch.stack(
            [(hidden * self.gate).T @ self.x, (hidden * self.up).T @ self.x, self.phi.T @ outputs]
        )

    def diagonal(self) -> Float[Tensor, "3 h d"]:
        """Of J^T J."""
        squares, lengths = self.x.square(), self.b.square().sum(dim=1, keepdim=True)
        up, gate = ((each.square().T @ squares) * lengths for each in (self.gate, self.up))
        return torch.stack([up, gate, self.phi.square().sum(dim=0)[:, None].expand_as(self.b)])


def fit(
    weights: Float[Tensor, "3 h d"],
    x: Float[Tensor, "F d"],
    sets: MarginSets,
    *,
    steps: int,
    extra_steps: int = 0,
    noise: float = 0.0,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "3 h d"], dict[str, Any]]:
    """Improve (A, G, B^T), wherever they come from; returns them with what it took.

    Without noise: those that stored most; ends `extra_steps` after all facts are stored. With noise (relative to the
    norm of x), drawn anew in each step: the last.
    """

    def gap(here: Linearised) -> Float[Tensor, "F d"]:
        return sets.project(here.outputs, shortlist, sweeps=SWEEPS, relaxation=1.0) - here.outputs

    damping, velocity = DAMPING, torch.zeros_like(weights)
    kept, most, rejected, done, end = weights, -1, 0, 0, steps
    while True:
        sample = disturb(x, noise, generator) if noise else x
        here = Linearised(weights, sample)
        if done % sets.refresh_every == 0 or done == end:
            shortlist = sets.shortlist(here.outputs)
            if noise or shortlist.stored >= most:
                if most < len(x) == shortlist.stored and not noise:
                    end = min(done + extra_steps, steps)
                kept, most = weights, shortlist.stored
        if done == end:
            break
        distance = gap(here).square().sum()
        start = weights + (NOISY_MOMENTUM if noise else MOMENTUM) * velocity
        here = Linearised(start, sample)
        new = start + solve(here, gap(here), damping)
        if gap(Linearised(new, sample)).square().sum() < distance:
            velocity, weights = new - weights, new
            damping *= ACCEPTED
        else:
            velocity, rejected = torch.zeros_like(weights), rejected + 1
            damping *= REJECTED
        damping = min(max(damping, DAMPING_RANGE[0]), DAMPING_RANGE[1])
        done += 1
    return kept, {"steps": done, "rejected": rejected}


def solve(here: Linearised, gap: Float[Tensor, "F d"], damping: float) -> Float[Tensor, "3 h d"]:
    """argmin || J step - gap ||^2 + damping * sum diag(J^T J) step^2, roughly."""
    diagonal = here.diagonal()
    floor = 1e-6 * diagonal.mean()  # keeps weights that do nothing where they are
    ridge = damping * diagonal + floor

    def normal(step: Tensor) -> Tensor:
        return here.transpose(here.apply(step)) + ridge * step

    step, _ = conjugate_gradients(normal, here.transpose(gap), diagonal + ridge, CG_TOLERANCE, CG_ITERATIONS)
    return step
