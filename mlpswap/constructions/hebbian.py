"""Hebbian fact MLPs: bilinear features and a read-out in closed form; nothing is trained.

    phi(x) = (A x) * (G x),   g(x) = B phi(x),   targets t_i = v_f(i), or the margin-optimal output u*_f(i)
 The plain read-out adds up value times feature, fact by fact. The whitened one is the least-squares solution.
The data-dependent MLP first fits G, then A, to the facts through the frozen plain read-out, and then whitens.
With `margin_correct` the read-out goes on from there: each fact asks for a margin only, not for its target
(`mlpswap.constructions.margin`), which stores the same facts with a third of the parameters.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.config import option
from mlpswap.constructions.base import FactMLP, FactMLPConfig, finish
from mlpswap.constructions.checks import check_inputs
from mlpswap.constructions.margin import MarginSets, correct_readout
from mlpswap.constructions.outputs import OUTPUTS_HELP, check_outputs, output_rows
from mlpswap.constructions.readout import RIDGE, ridge_readout
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError

VARIANTS = ("auto", "plain", "whitened", "data_dependent")
AUTO_FACTS = 2048  # up to here fitted features take seconds; beyond, random ones: wider, but a single solve
FLOAT32_UNKNOWNS = 8192  # fits of more than this many numbers (h d) run in float32


@dataclass(frozen=True)
class HebbianConfig:
    """Options of the construction `hebbian`."""

    h: int | None = option(None, "hidden width; null: one that stores everything (hebbian.default_width)")
    variant: str = option(
        "auto",
        "plain | whitened (random features) | data_dependent (fitted features) | "
        f"auto: data_dependent with margin_correct and up to {AUTO_FACTS} facts, else whitened",
    )
    rescale_rows: bool = option(True, "data_dependent: bring the fitted rows of G and A to norm sqrt(d)")
    outputs: str = option("values", OUTPUTS_HELP)
    margin_correct: bool = option(False, "correct the read-out until every fact wins by a margin")
    gamma: float = option(0.3, "margin_correct: the margin, in units of the mean right score")
    rounds: int = option(100, "margin_correct: rounds at most")
    extra_rounds: int = option(5, "margin_correct: rounds after every fact is stored, for wider margins")
    match_output_norm: bool = option(False, "scale B: mean output norm on the keys = mean norm of the values")

    def __post_init__(self) -> None:
        if self.h is not None and self.h < 1:
            raise ConfigError(f"hebbian: h must be positive or null, found {self.h}")
        if self.variant not in VARIANTS:
            raise ConfigError(
                f"hebbian: unknown variant '{self.variant}': expected one of {', '.join(VARIANTS)}"
            )
        check_outputs("hebbian", self.outputs)
        if self.margin_correct and self.variant == "plain":
            raise ConfigError(
                "hebbian: margin_correct corrects the whitened read-out, not that of variant 'plain'"
            )
        if not self.gamma > 0:
            raise ConfigError(f"hebbian: gamma must be positive, found {self.gamma}")
        for name in ("rounds", "extra_rounds"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"hebbian: {name} must not be negative, found {getattr(self, name)}")


class Hebbian:
    """Bilinear MLPs in closed form (arXiv 2607.10034; read-out corrected to margins: ours). Parameters 3 d h, h about
    F / 2 whitened, F / 5 data-dependent, F / 15 margin-corrected, at d = 64. Keys: no two on one line through the origin;
    values: any. Use it for seconds instead of minutes, and where keys are noisy.

    Float64 until the last cast. Only the directions of keys matter, since bilinear features are homogeneous.
    """

    name = "hebbian"
    Config = HebbianConfig

    @torch.no_grad()
    def build(
        self,
        keys: Float[Tensor, "F d"],
        values: Float[Tensor, "n_v d"],
        mapping: Int[Tensor, " F"],
        config: HebbianConfig,
        *,
        competitors: Float[Tensor, "n_c d"] | None = None,
        generator: torch.Generator,
    ) -> FactMLP:
        """See `Construction.build`. Competitors are used by `margin_correct`, else measured: least squares asks for
        the target itself.
        """
        started = time.perf_counter()
        check_inputs(keys, values, mapping, competitors, homogeneous=True)
        facts, d = keys.shape
        variant = config.variant
        if variant == "auto":
            fitted = facts <= AUTO_FACTS or config.margin_correct
            variant = "data_dependent" if fitted else "whitened"
        rest = values[:0] if competitors is None else competitors
        rows = len(values) + (len(rest) if config.margin_correct else 0)
        h = config.h or default_width(variant, facts, rows, d, config.margin_correct)
        norms = keys.double().norm(dim=1, keepdim=True)
        unit, table = keys.double() / norms, values.double()
        outputs = output_rows(table, mapping, config.outputs)
        length = table.norm(dim=1).mean() if outputs.kind == "margin_optimal" else 1.0  # those are unit rows
        targets = length * outputs.rows[mapping]  # (F, d)
        a = gaussian(h, d, generator, torch.float64).to(keys.device)
        g = gaussian(h, d, generator, torch.float64).to(keys.device)
        details: dict[str, Any] = {"variant": variant, "rank": min(h, d * (d + 1) // 2)}
        if variant == "data_dependent":
            a, g, details["fits"] = fit_features(unit, table, mapping, a, g, rescale=config.rescale_rows)
        else:
            a /= math.sqrt(h)
        phi = (unit @ a.T).mul_(unit @ g.T)  # (F, h)
        if variant == "plain":
            b = plain_readout(phi, targets)
        elif config.margin_correct:
            sets = MarginSets(table, mapping, rest, gamma=config.gamma)
            start = sets.wanted if outputs.kind == "values" else (targets / sets.length).float()
            b, details["correction"] = correct_readout(
                phi, start, sets, rounds=config.rounds, extra_rounds=config.extra_rounds
            )
            b *= sets.length  # back to the units of the values
        else:
            b = ridge_readout(phi, targets)
        if variant == "whitened" and not config.margin_correct:
            details["expected_accuracy"] = expected_accuracy(facts, len(values), d, h)
        mlp = FactMLP(FactMLPConfig.of_kind("bilinear", d, h), dtype=torch.float64).to(keys.device)
        assert mlp.gate is not None
        mlp.up.weight.copy_(a / norms.mean())  # outputs get the length that the targets have
        mlp.gate.weight.copy_(g / norms.mean())
        mlp.down.weight.copy_(b)
        return finish(
            self.name, mlp, keys, values, mapping, started=started, norm_matched=config.match_output_norm,
            competitors=competitors, details=details,
        )  # fmt: skip

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        keys = spherical(128, 32, generator)
        mapping = torch.randperm(len(keys), generator=generator)
        return {"keys": keys, "values": keys, "mapping": mapping, "config": HebbianConfig()}


def plain_readout(phi: Float[Tensor, "F h"], targets: Float[Tensor, "F d"]) -> Float[Tensor, "d h"]:
    """B = mean_i t_i phi_i^T."""
    return targets.T @ phi / len(phi)


def fit_features(
    keys: Float[Tensor, "F d"],
    values: Float[Tensor, "n_v d"],
    mapping: Int[Tensor, " F"],
    a: Float[Tensor, "h d"],
    g: Float[Tensor, "h d"],
    *,
    rescale: bool = True,
) -> tuple[Float[Tensor, "h d"], Float[Tensor, "h d"], list[dict[str, float]]]:
    """Fit G given A, then A given the new G, through the plain read-out of the features that came in.

    Returns A, G and {iterations, residual} of both fits. With `rescale` each fitted row is brought to norm
    sqrt(d). Large fits run in float32: the read-out that follows mends what they leave.
    """
    h, d = a.shape
    single = h * d > FLOAT32_UNKNOWNS
    dtype, tolerance = (torch.float32, 1e-5) if single else (torch.float64, 1e-10)
    b = plain_readout((keys @ a.T) * (keys @ g.T), values[mapping])
    keys, values, b, fitted = (each.to(dtype) for each in (keys, values, b, a))
    factors, fits = [], []
    for _ in range(2):
        fitted, fit = fit_factor(keys, values, mapping, fitted, b, tolerance)
        if rescale:
            fitted = fitted * (math.sqrt(d) / fitted.norm(dim=1, keepdim=True))
        factors.append(fitted.double())
        fits.append(fit)
    return factors[1], factors[0], fits


def fit_factor(
    keys: Float[Tensor, "F d"],
    values: Float[Tensor, "n_v d"],
    mapping: Int[Tensor, " F"],
    partner: Float[Tensor, "h d"],
    b: Float[Tensor, "d h"],
    tolerance: float,
) -> tuple[Float[Tensor, "h d"], dict[str, float]]:
    """X = argmin sum_i || V B ((P k_i) * (X k_i)) - e_f(i) ||^2 + ridge ||X||^2, P the partner, V the values.

    Conjugate gradients on the normal equations; their (h d)^2 matrix is never formed.
    """
    s = keys @ partner.T  # (F, h)
    left = b.T @ (values.T @ values)  # (h, d); left @ b is the metric (V B)^T V B
    diagonal = (s.square().T @ keys.square()) * (left.T * b).sum(dim=0)[:, None]  # (h, d)
    ridge = RIDGE * diagonal.mean()

    def normal(x: Tensor) -> Tensor:
        scores = torch.linalg.multi_dot([s * (keys @ x.T), left, b])  # (F, h), in the cheaper order
        return (s * scores).T @ keys + ridge * x

    right = (s * (values[mapping] @ b)).T @ keys
    iterations = min(max(2 * len(partner), 128), 1024)
    return conjugate_gradients(normal, right, diagonal + ridge, tolerance, iterations)


def conjugate_gradients(
    operator: Callable[[Tensor], Tensor],
    right: Tensor,
    diagonal: Tensor,
    tolerance: float,
    iterations: int,
) -> tuple[Tensor, dict[str, float]]:
    """Solve operator(x) = right for a symmetric positive definite operator, with its diagonal as
    preconditioner.

    Starts from zero; ends when the residual is below `tolerance` of `right`, or after `iterations`.
    """
    x, residual = torch.zeros_like(right), right.clone()
    scaled = residual / diagonal
    direction, product = scaled.clone(), (residual * scaled).sum()
    count = 0
    while count < iterations and residual.norm() > tolerance * right.norm():
        image = operator(direction)
        step = product / (direction * image).sum()
        x += step * direction
        residual -= step * image
        scaled = residual / diagonal
        previous, product = product, (residual * scaled).sum()
        direction = scaled + (product / previous) * direction
        count += 1
    return x, {"iterations": count, "residual": float(residual.norm() / right.norm())}


def default_width(variant: str, facts: int, rows: int, d: int, margin_correct: bool = False) -> int:
    """A width with which isotropic embeddings of width d are stored completely, with some reserve.

    Whitened: a quarter more than where `expected_accuracy` foresees a hundredth of a single failure. Data-dependent:
    half as much, 0.6 of which would do. Wider than d (d + 1) / 2, the rank of the features, helps neither.
    Plain: 8 F, good while F is well below d^3 / 200; more facts than that it cannot store at any width.
    With `margin_correct`: F log2(rows) bits at 0.55 bits per parameter where 0.87 can be reached (data-dependent), at
    0.25 where 0.38 can (whitened).
    """
    if variant == "plain":
        return 8 * facts
    rank = d * (d + 1) // 2
    if margin_correct:
        density = 0.25 if variant == "whitened" else 0.55
        width = math.ceil(facts * math.log2(max(rows, 2)) / (3 * d * density))
    else:
        enough = 1 + bisect_left(
            range(1, facts), True, key=lambda h: facts * (1 - expected_accuracy(facts, rows, d, h)) < 0.01
        )
        width = math.ceil(1.25 * enough * (1.0 if variant == "whitened" else 0.5))
    return min(max(width, 16), rank)


def expected_accuracy(facts: int, values: int, d: int, h: int) -> float:
    """Share of facts that whitened random features should store, for isotropic unit embeddings.

    Outputs are H T, with H the projection on the features of the F keys and rho = rank / F its mean diagonal. The
    right score has mean rho and variance rho (1 - rho) / d, and the n_v - 1 others are nearly N(0, rho / d).
    """
    rho = min(h, d * (d + 1) // 2) / facts
    if rho >= 1:
        return 1.0
    largest = NormalDist().inv_cdf(1 - 0.56 / values)  # mean of the largest of n_v normal numbers
    return NormalDist().cdf((math.sqrt(rho * d) - largest) / math.sqrt(1 - rho))
