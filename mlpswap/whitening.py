"""Whitening of a table of embeddings, fully or in part (arXiv 2512.00207, section 3.3).

With S = E^T E / n = Q diag(lambda) Q^T, the whitening of strength alpha is the symmetric W = Q diag(lambda^(-alpha / 2)) Q^T,
applied to rows: E W. alpha = 0 is the identity, and alpha = 1 gives a table whose second moment is I. Since W is computed in
the eigenbasis, it is accurate at any condition number that float64 can hold.

A fact MLP built against E W is brought back to E with `mlpswap.constructions.folding`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.embeddings import check_table
from mlpswap.errors import EmbeddingsError

EPS = 1e-12  # of the mean eigenvalue, added to each: keeps directions that a table does not use in bounds


@torch.no_grad()
def whitening(
    table: Float[Tensor, "n d"], alpha: float = 1.0, *, center: bool = False, eps: float = EPS
) -> Float[Tensor, "d d"]:
    """W_alpha of the table: symmetric, positive definite, float64; `table.double() @ W` is whitened.

    center: use the covariance rather than the second moment. Values need no shift besides: it would add the same
    to all scores of a key. Raises `EmbeddingsError` for alpha outside [0, 1] and for a table of zeros.
    """
    check_table(table)
    if not 0 <= alpha <= 1:
        raise EmbeddingsError(f"alpha = {alpha}: the strength of a whitening lies between 0 and 1")
    if not 0 < eps < 1:
        raise EmbeddingsError(f"eps = {eps}: expected a small positive share of the mean eigenvalue")
    rows = table.double()
    if center:
        rows = rows - rows.mean(dim=0)
    moment = rows.T @ rows / len(rows)
    mean = float(moment.trace()) / len(moment)
    if mean == 0:
        raise EmbeddingsError("a table of equal rows has no covariance" if center else "the table is zero")
    eigenvalues, basis = torch.linalg.eigh(moment)
    eigenvalues = eigenvalues.clamp(min=0) + eps * mean
    return (basis * eigenvalues ** (-alpha / 2)) @ basis.T
