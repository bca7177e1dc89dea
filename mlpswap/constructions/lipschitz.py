"""How strongly the scores of a fact MLP react to its input: the Lipschitz estimate of arXiv 2512.00207, section 5.3.

The host shows a fact MLP its input after a normalisation without weights, x^ = c x / ||x||. The estimate is the largest
spectral norm, over some of the keys, of the Jacobian of the scores V g(x^) with respect to x:

    V B (diag(act'(G x^) * (A x^)) G + diag(act(G x^)) A) (I - x x^T / ||x||^2) c / ||x||     gated
    V B diag(act'(A x^)) A (I - x x^T / ||x||^2) c / ||x||                                    non-gated
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.constructions.base import FactMLP, value_and_slope
from mlpswap.constructions.checks import check_inputs

NUMBERS = 2**23  # of the products V B diag(.) held at once


@dataclass(frozen=True)
class LipschitzEstimate:
    """`value`: the largest spectral norm found, in units of score per unit of input.

    `mean_score`: mean of <g(k^_i), v_f(i)> over all facts. `relative` = value / mean_score is what to compare, since the
    argmax does not see the scale of an MLP; infinite where the mean score is not positive.
    """

    value: float
    mean_score: float

    @property
    def relative(self) -> float:
        return self.value / self.mean_score if self.mean_score > 0 else math.inf


@torch.no_grad()
def lipschitz_estimate(
    mlp: FactMLP,
    keys: Float[Tensor, "F d"],
    values: Float[Tensor, "n_v d"],
    mapping: Int[Tensor, " F"],
    *,
    generator: torch.Generator,
    samples: int = 100,
    norm: float = 1.0,
) -> LipschitzEstimate:
    """Estimate from `samples` keys drawn without repetition (all of them where there are fewer), in float64.

    norm: the length c that the normalisation gives to every input; 1 for unit keys, sqrt(d) for RMS normalisation as most
    transformers have it. Where an activation has no derivative (ReLU at 0) it counts as 0. Raises as `check_inputs`.
    """
    check_inputs(keys, values, mapping)
    exact = FactMLP(mlp.config, dtype=torch.float64).to(keys.device)
    exact.load_state_dict(mlp.state_dict())
    keys, values = keys.double(), values.double()
    chosen = torch.randperm(len(keys), generator=generator, device=generator.device)[:samples]
    size = max(1, NUMBERS // (mlp.config.h * mlp.config.d))
    largest = [
        spectral_norms(exact, rows, values, norm).max() for rows in keys[chosen.to(keys.device)].split(size)
    ]
    total = 0.0
    for rows, wanted in zip(keys.split(1024), mapping.split(1024), strict=True):
        outputs = exact(norm * rows / rows.norm(dim=1, keepdim=True))
        total += float((outputs * values[wanted]).sum())
    return LipschitzEstimate(float(torch.stack(largest).max()), total / len(keys))


@torch.no_grad()
def spectral_norms(
    mlp: FactMLP, x: Float[Tensor, "B d"], values: Float[Tensor, "n_v d"], norm: float = 1.0
) -> Float[Tensor, " B"]:
    """Largest singular value of d (V g(norm x / ||x||)) / dx at each row of `x`; all in the MLP's dtype."""
    length = x.norm(dim=1)
    unit = x / length[:, None]
    read = _square_root(values) @ mlp.down.weight  # (r, h), r = min(n_v, d)
    up = mlp.up(norm * unit)  # (B, h)
    if mlp.gate is None:
        _, slope = value_and_slope(mlp.act, up)
        jacobian = (read * slope[:, None, :]) @ mlp.up.weight  # (B, r, d)
    else:
        active, slope = value_and_slope(mlp.act, mlp.gate(norm * unit))
        jacobian = (read * (slope * up)[:, None, :]) @ mlp.gate.weight
        jacobian += (read * active[:, None, :]) @ mlp.up.weight
    along = torch.bmm(jacobian, unit[:, :, None])  # the normalisation does not see a change of length
    jacobian -= along * unit[:, None, :]
    return torch.linalg.matrix_norm(jacobian, ord=2) * norm / length


def _square_root(values: Tensor) -> Tensor:
    """R with R^T R = V^T V and at most d rows, so that V J and R J have the same singular values."""
    n, d = values.shape
    return values if n <= d else torch.linalg.qr(values, mode="r").R
