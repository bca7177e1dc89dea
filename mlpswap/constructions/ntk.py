"""The Hermite construction from the neural tangent kernel (arXiv 2412.06538, theorem 9), in closed form.

    g(x) = B (gate(G x) * (A x)),   A = c (h_q(G k) * B^T t summed over facts) k^T,   rows of G ~ N(0, I), unit columns of B

Each neuron is a random projection b_p of the targets, times a Hermite feature of degree q of the keys, times the
keys. Summed over neurons only the facts at hand survive, since Hermite features of different keys are nearly
orthogonal: their kernel is <k, k'>^(q + 1).

Parameters: 3 d h, with h of order F log(F d) / (rho^2 d) for random embeddings of decodability rho, at which its
constant is the largest of all constructions here. Assumes keys of about equal length: it is the argument of h_q
that must be N(0, 1). Use it to study the theory, not to save parameters. A gate whose own Hermite coefficient of
degree q is zero stores nothing and is refused; parts of other degrees add interference only. The matched gate h_2
with margin-optimal outputs needs 2 to 6 times fewer neurons than degree 1 with a ReLU gate, the released form.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.config import option
from mlpswap.constructions.base import ACTIVATIONS, FactMLP, FactMLPConfig, finish
from mlpswap.constructions.checks import check_inputs
from mlpswap.constructions.outputs import OUTPUTS_HELP, check_outputs, distinct, output_rows
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError

HERMITE = {1: "identity", 2: "hermite2"}  # degree -> the activation that is h_q
GATES = ("hermite", "relu", "identity")
CHUNK = 1024  # neurons at a time: the features of all keys take F x 1,024 numbers


@dataclass(frozen=True)
class NeuralTangentKernelConfig:
    """Options of the construction `ntk`."""

    h: int | None = option(None, "hidden width; null: one that should store everything (ntk.default_width)")
    degree: int = option(2, "q of the Hermite feature")
    gate: str = option("hermite", "hermite: h_q itself, for degrees 1 and 2 | relu | identity: degree 1 only")
    orthogonal: bool = option(
        True, "draw rows of G and columns of B in orthogonal blocks of d; false: each by itself, as published"
    )
    outputs: str = option("auto", OUTPUTS_HELP)
    match_output_norm: bool = option(False, "scale B: mean output norm on the keys = mean norm of the values")

    def __post_init__(self) -> None:
        if self.h is not None and self.h < 1:
            raise ConfigError(f"ntk: h must be positive or null, found {self.h}")
        if self.gate not in GATES:
            raise ConfigError(f"ntk: unknown gate '{self.gate}': expected one of {', '.join(GATES)}")
        if self.degree < 1:
            raise ConfigError(f"ntk: degree must be positive, found {self.degree}")
        if self.gate == "hermite" and self.degree not in HERMITE:
            raise ConfigError(f"ntk: a hermite gate exists for degrees 1 and 2, found degree {self.degree}")
        check_outputs("ntk", self.outputs)
        if abs(gate_moments(self.activation, self.degree).coefficient) < 1e-9:
            raise ConfigError(
                f"ntk: gate '{self.gate}' has no part of degree {self.degree}, so it would store nothing; "
                "take gate=hermite or degree 1"
            )

    @property
    def activation(self) -> str:
        """The gate's name among the activations."""
        return HERMITE[self.degree] if self.gate == "hermite" else self.gate


class NeuralTangentKernel:
    """Hermite features from the neural tangent kernel (arXiv 2412.06538, theorem 9). Parameters 3 d h, h about
    F log(F d) / (rho^2 d) with a large constant. Keys: random directions, about one length; values: decodable. Use it to
    study the theory, not to save parameters.

    Float64 until the last cast.
    """

    name = "ntk"
    Config = NeuralTangentKernelConfig

    @torch.no_grad()
    def build(
        self,
        keys: Float[Tensor, "F d"],
        values: Float[Tensor, "n_v d"],
        mapping: Int[Tensor, " F"],
        config: NeuralTangentKernelConfig,
        *,
        competitors: Float[Tensor, "n_c d"] | None = None,
        generator: torch.Generator,
    ) -> FactMLP:
        """See `Construction.build`. Competitors are measured, not used. Never infeasible: too small a width costs
        accuracy.
        """
        started = time.perf_counter()
        check_inputs(keys, values, mapping, competitors)
        first = distinct(keys)
        outputs = output_rows(values, mapping, config.outputs)
        scale = keys.double().norm(dim=1).mean()
        x, targets = keys[first].double() / scale, outputs.rows[mapping[first]]
        d = keys.shape[1]
        moments = gate_moments(config.activation, config.degree)
        h = config.h
        if h is None:
            rho = smallest_margin(outputs.rows, values.double(), mapping.unique())
            h = default_width(len(x), d, config.degree, moments, rho)
        lengths = gaussian(h, d, generator, torch.float64).norm(dim=1, keepdim=True)
        draw = orthogonal if config.orthogonal else spherical
        g = (lengths * draw(h, d, generator, torch.float64)).to(keys.device)  # each row N(0, I)
        b = draw(h, d, generator, torch.float64).to(keys.device)
        a = torch.cat(
            [
                (hermite(x @ gs.T, config.degree) * (targets @ bs.T)).T @ x
                for gs, bs in zip(g.split(CHUNK), b.split(CHUNK), strict=True)
            ]
        )
        mlp = FactMLP(FactMLPConfig(d, h, config.activation), dtype=torch.float64).to(keys.device)
        assert mlp.gate is not None
        mlp.gate.weight.copy_(g / scale)
        mlp.up.weight.copy_(a * (d / (h * moments.coefficient * scale)))  # outputs as long as targets
        mlp.down.weight.copy_(b.T)
        return finish(
            self.name, mlp, keys, values, mapping, started=started, norm_matched=config.match_output_norm,
            competitors=competitors, details={"outputs": outputs.kind},
        )  # fmt: skip

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        keys = spherical(64, 32, generator)
        mapping = torch.randperm(len(keys), generator=generator)
        return {"keys": keys, "values": keys, "mapping": mapping, "config": NeuralTangentKernelConfig()}


def orthogonal(
    n: int, d: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "n d"]:
    """Unit rows in blocks of d orthogonal ones, each uniform on the sphere by itself (as in arXiv 1610.09072).

    What a sum over all directions should average out, a block averages out exactly. At d = 64, 1,024 facts and the
    published widths, seeds 0 to 2 then store everything, where independent rows lose a fact on one seed; on seeds 3
    to 5 one width, 4250 with a ReLU gate and margin-optimal outputs, still loses two facts.
    """
    blocks = torch.linalg.qr(torch.randn(-(-n // d), d, d, generator=generator, dtype=dtype))
    signs = blocks.R.diagonal(dim1=1, dim2=2).sign()  # makes Q uniform over all rotations and reflections
    return (blocks.Q * signs[:, None, :]).mT.reshape(-1, d)[:n]


def hermite(z: Tensor, degree: int) -> Tensor:
    """h_q(z), the probabilists' Hermite polynomial with E h_q^2 = 1 for z ~ N(0, 1)."""
    before, now = torch.zeros_like(z), torch.ones_like(z)
    for n in range(degree):
        before, now = now, (z * now - math.sqrt(n) * before) / math.sqrt(n + 1)
    return now


@dataclass(frozen=True)
class GateMoments:
    """Of a gate s(z), z ~ N(0, 1): coefficient E[s h_q], power E[s^2], peak E[(s h_q)^2]."""

    coefficient: float
    power: float
    peak: float


def gate_moments(activation: str, degree: int) -> GateMoments:
    """The moments by the trapezoidal rule, to about eight digits."""
    z = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
    weights = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    act: Callable[[Tensor], Tensor] = ACTIVATIONS[activation]
    gate, feature = act(z), hermite(z, degree)
    return GateMoments(
        *(float((weights * f).sum()) for f in (gate * feature, gate.square(), (gate * feature).square()))
    )


def default_width(facts: int, d: int, degree: int, moments: GateMoments, rho: float) -> int:
    """A width with which isotropic embeddings should be stored completely.

    An output is its target plus noise, which has in each direction the variance
    (peak + power F / d) / (coefficient^2 h) of random neurons, and F (2q + 1)!! / d^(q + 2) of the kernel
    <k, k'>^(q + 1) itself, which no width removes. rho, the smallest margin of the targets, must be so many standard
    deviations that a hundredth of a failure is expected among the F d nearest rivals.
    """
    deviations = NormalDist().inv_cdf(1 - 0.01 / (facts * d))
    allowed = (max(rho, 0.1) / deviations) ** 2
    kernel = facts * math.prod(range(1, 2 * degree + 2, 2)) / d ** (degree + 2)
    per_neuron = (moments.peak + moments.power * facts / d) / moments.coefficient**2
    return math.ceil(per_neuron / max(allowed - kernel, allowed / 4))


def smallest_margin(
    outputs: Float[Tensor, "n_v d"], values: Float[Tensor, "n_v d"], used: Int[Tensor, " n_u"]
) -> float:
    """min over used i and j != i of <u_i, v_i - v_j> / (||u_i|| ||v_i - v_j||); 1 if there is one value."""
    smallest = 1.0
    for rows in used.split(1024):
        u, v = outputs[rows], values[rows]
        gaps = (u * v).sum(dim=1, keepdim=True) - u @ values.T  # (chunk, n_v)
        cosines = gaps / (u.norm(dim=1, keepdim=True) * torch.cdist(v, values))
        cosines.scatter_(1, rows[:, None], 1.0)
        smallest = min(smallest, float(cosines.amin()))
    return smallest
