"""Bring a fact MLP that was built against transformed embeddings back to the original ones.

If g' stores facts against the rows of V W, its scores are <g', W^T v_j> = <W g', v_j>: for the rows of V the output must be
multiplied by W. (The source's "fold the inverse transform" is right in the other direction only; at a condition number of
1000 it loses nine facts of ten.) If g' expects keys k W (rows), then g'(W^T k) is folded into the first matrices.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.constructions.base import FactMLP
from mlpswap.errors import InfeasibleConstructionError


@torch.no_grad()
def fold(
    mlp: FactMLP, *, values: Float[Tensor, "d d"] | None = None, keys: Float[Tensor, "d d"] | None = None
) -> FactMLP:
    """A new MLP g with the scores <g(k), v> = <mlp(k W_k), v W_v>, for any keys k and values v (rows).

    values: W_v, the matrix that the value embeddings were multiplied by; B becomes W_v B, and b_B becomes W_v b_B.
    keys: W_k, likewise; G becomes G W_k^T, and A becomes A W_k^T. The two may differ; None is the identity.
    Computed in float64 and returned in the MLP's dtype, without a report: the caller measures again.

    Raises `InfeasibleConstructionError` for a matrix that is not (d, d).
    """
    d = mlp.config.d
    for name, matrix in (("values", values), ("keys", keys)):
        if matrix is not None and matrix.shape != (d, d):
            raise InfeasibleConstructionError(
                f"{name} must be transformed by a ({d}, {d}) matrix: found {tuple(matrix.shape)}"
            )
    folded = FactMLP(mlp.config, dtype=mlp.down.weight.dtype).to(mlp.down.weight.device)
    folded.load_state_dict(mlp.state_dict())
    if values is not None:
        for parameter in folded.down.parameters():  # B (d, h) and b_B (d,)
            parameter.copy_(values.double() @ parameter.double())
    if keys is not None:
        for layer in (folded.gate, folded.up):
            if layer is not None:
                layer.weight.copy_(layer.weight.double() @ keys.double().T)
    return folded
