"""The affine map after which values are decodable best (arXiv 2512.00207, section 3.3), as far as it can be computed.

Only the matrix counts: a shift leaves the decodability rho (`mlpswap.geometry`) as it is, and so do rotations and scales. At
values v_i let u_i be the margin-optimal outputs and w_ij the weights of the differences a_ij that hold them. Multiplying the
rows by I + D, D symmetric, changes every margin by

    <G_i, D> + O(D^2),   G_i = rho_i (u_i u_i^T - sum_j w_ij a_ij a_ij^T).

rho = min_i rho_i has kinks where several rows are smallest, as they are at an optimum. So each step asks for the smallest D
with which all linearised margins reach a common gain, rho_i + <G_i, D> >= rho + gain, a least-distance problem
(Lawson and Hanson, Solving Least Squares Problems, chapter 23), and the gain grows or shrinks with what comes of it. As with
Newton's method, the steps end in quadratic convergence where as many margins meet as D has freedoms. An optimum is local: no
D improves all smallest margins to first order. From different starts the same one was found in every case tried.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import nnls
from torch import Tensor

from mlpswap.embeddings import check_table
from mlpswap.errors import EmbeddingsError
from mlpswap.geometry import ROWS, best_whitening, decodability, linear_directions, margin_optimal_outputs
from mlpswap.min_norm import separate

STEPS = 200
FIRST_GAIN = 0.05  # of rho
LONGEST = 1.0  # Frobenius norm of D: first order says nothing beyond
PRECISION = 1e-9  # of the margins, relative


@dataclass(frozen=True)
class OptimalAffine:
    """`transform` (d, d): the matrix W by which rows of values are multiplied; symmetric, positive definite, and of the scale
    that keeps the Frobenius norm of the centred values. `rho`: the decodability of V W. `converged`: whether the steps ended
    because they no longer gain a share of more than the tolerance.
    """

    transform: Float[Tensor, "d d"]
    rho: float
    steps: int
    converged: bool


@torch.no_grad()
def optimal_affine(values: Float[Tensor, "n d"], *, tolerance: float = 1e-5) -> OptimalAffine:
    """A matrix after which the values have the largest decodability that can be found from `best_whitening` on.

    Never worse than that; the result depends on the values up to an invertible linear map of them only (as far as the
    optimum does not depend on the start). Computed in float64: 20 to 80 steps, each with the margins of all values and a
    non-negative least-squares problem of n unknowns in d (d + 1) / 2 equations: 3 s at (256, 32), 6 at (512, 32) on one
    core, beyond ten minutes at (1024, 64). A fact MLP built against V W is brought back with
    `mlpswap.constructions.folding`.

    Raises `NotDecodableError` for equal values and for values in the convex hull of the others, which no affine map moves
    out of it, and otherwise as `margin_optimal_outputs`; `EmbeddingsError` for a tolerance outside (0, 1).
    """
    if not 0 < tolerance < 1:
        raise EmbeddingsError(f"tolerance = {tolerance}: expected a small positive share of rho")
    check_table(values, "the table of values")
    d = values.shape[1]
    if len(values) == 1:
        return OptimalAffine(torch.eye(d, dtype=torch.float64, device=values.device), math.inf, 0, True)
    start = best_whitening(values)
    rows = values.double() - values.double().mean(dim=0)
    transform = start.transform
    margin_optimal_outputs(rows @ transform)  # raises
    here = _margins(rows @ transform)
    rho, gain, steps = float(here[0].min()), FIRST_GAIN, 0
    while gain > tolerance and steps < STEPS:
        steps += 1
        change = _smallest_change(*here, gain * rho)
        if change is None:
            gain /= 4
            continue
        moved = transform @ torch.linalg.matrix_exp(change)
        there = _margins(rows @ moved)
        reached = float(there[0].min()) / rho - 1
        if reached > 0.1 * gain:
            gain, transform, here, rho = (
                gain * (2 if reached > 0.6 * gain else 1),
                moved,
                there,
                rho * (1 + reached),
            )
        else:
            gain /= 3
    basis, scales, _ = torch.linalg.svd(transform)
    transform = basis * scales @ basis.T
    transform *= rows.norm() / (rows @ transform).norm()
    return OptimalAffine(transform, decodability(values.double() @ transform), steps, gain <= tolerance)


def _margins(rows: Float[Tensor, "n d"]) -> tuple[Float[Tensor, " n"], Float[Tensor, "n d d"]]:
    """rho_i, 0 where not decodable, and their derivatives G_i."""
    rows = rows / rows.abs().amax()
    start = linear_directions(rows)
    parts = [
        separate(rows, block, start[block], PRECISION)
        for block in torch.arange(len(rows), device=rows.device).split(ROWS)
    ]
    points, upper, lower, moments = (torch.cat(part) for part in zip(*parts, strict=True))
    units = points / upper[:, None]
    return lower.clamp(min=0), lower[:, None, None] * (units[:, :, None] * units[:, None, :] - moments)


def _smallest_change(
    rho: Float[Tensor, " n"], slopes: Float[Tensor, "n d d"], gain: float
) -> Float[Tensor, "d d"] | None:
    """The symmetric D of least norm with rho_i + <G_i, D> >= min rho + gain for all i; None where it is too long."""
    n, d = slopes.shape[:2]
    row, column = torch.triu_indices(d, d)
    weight = torch.where(row == column, 1.0, math.sqrt(2)).to(slopes)  # so that norms are those of matrices
    # In units of the gain, the D of least norm is -r / r_0 with the residual r of a non-negative least-squares problem.
    wanted = 1 - (rho - rho.min()) / gain
    system = torch.cat([wanted[None], (slopes[:, row, column] * weight).T]).cpu().numpy()
    target = np.eye(1, len(system))[0]
    multipliers, distance = nnls(system, target, maxiter=50 * n)
    residual = system @ multipliers - target
    # ||r||^2 = -r_0 = 1 / (1 + ||D||^2)
    if distance**2 * (1 + (LONGEST / gain) ** 2) < 1:
        return None
    upper = torch.zeros_like(slopes[0])
    upper[row, column] = torch.from_numpy(-gain * residual[1:] / residual[0]).to(slopes) / weight
    return upper + upper.T - upper.diagonal().diag()
