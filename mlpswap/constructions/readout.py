"""Least-squares read-out from hidden features to targets, shared by the constructions that solve for B."""

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.errors import InfeasibleConstructionError

RIDGE = 1e-6  # relative to the mean diagonal of the matrix that is inverted


def ridge_readout(phi: Float[Tensor, "F h"], targets: Float[Tensor, "F d"]) -> Float[Tensor, "d h"]:
    """B = argmin sum_i ||B phi_i - t_i||^2 + ridge ||B||^2, ridge = 1e-6 of the Gram matrix's mean diagonal.

    Solves the smaller of the two equivalent systems, h x h or F x F. Expects float64: features outnumber
    their rank as soon as h > d (d + 1) / 2 (bilinear), and the ridge alone then keeps the matrix definite.
    Raises `InfeasibleConstructionError` where it does not.
    """
    primal = phi.shape[1] <= phi.shape[0]
    gram = phi.T @ phi if primal else phi @ phi.T
    diagonal = gram.diagonal()  # a view
    diagonal += RIDGE * diagonal.mean()
    try:
        factor = torch.linalg.cholesky(gram)
    except torch.linalg.LinAlgError as error:
        raise InfeasibleConstructionError(
            f"no least-squares read-out: the Gram matrix of {phi.shape[1]} features of {phi.shape[0]} keys "
            "is not positive definite, as the features are zero or not finite"
        ) from error
    if primal:
        return torch.cholesky_solve(phi.T @ targets, factor).T
    return torch.cholesky_solve(targets, factor).T @ phi
