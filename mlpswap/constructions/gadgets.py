"""Two encoders written down by hand, for study: exact on paper, and of no use to a model.

two_hot   for keys e_i - e_j only: d neurons for each code coordinate whose weights are a table of the codes.
baum      for keys in general position, 4 ReLU neurons per d keys and code coordinate (Baum 1988; Bubeck et al.,
          arXiv 2006.02855). Weights grow like the inverse of the thinnest slab between a block of keys and the
          others, so that it is exact in float64 and wrong in float32 from a few hundred keys on.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.constructions.encoders import Encoder
from mlpswap.errors import InfeasibleConstructionError


def two_hot_encoder(keys: Float[Tensor, "F d"], codes: Float[Tensor, "F m"], *, gated: bool) -> Encoder:
    """Reads entry (i, j) of a table for the key e_i - e_j, or for a common multiple of it.

    Gated: sum_p relu(x_p) (A x)_p with A_ij = -code. Non-gated: relu(x_i - <code, x> - 1) with codes in [0, 1], to
    which they are brought and from which they are brought back on the way out.

    Raises `InfeasibleConstructionError` for keys of another kind, naming the first.
    """
    size = keys.amax()
    rows = keys / size
    plus, minus = rows.argmax(dim=1), rows.argmin(dim=1)
    two_hot = torch.zeros_like(rows)
    two_hot.scatter_(1, plus[:, None], 1.0).scatter_(1, minus[:, None], -1.0)
    strange = ((rows - two_hot).abs().amax(dim=1) > 1e-6).nonzero().flatten().tolist()
    if strange:
        raise InfeasibleConstructionError(
            f"a two_hot encoder needs keys e_i - e_j, all of one length: key {strange[0]} is not"
        )
    d, m = keys.shape[1], codes.shape[1]
    low, span = torch.zeros_like(codes[0]), torch.ones_like(codes[0])
    if not gated:
        low, span = codes.amin(dim=0), (codes.amax(dim=0) - codes.amin(dim=0)).clamp(min=1e-12)
    table = keys.new_zeros(m, d, d)
    table[:, plus, minus] = -((codes - low) / span).T
    read = torch.eye(m, dtype=keys.dtype, device=keys.device).repeat_interleave(d, dim=1)  # (m, m d)
    unit = torch.eye(d, dtype=keys.dtype, device=keys.device)
    if gated:
        return Encoder("relu", unit.repeat(m, 1) / size, table.flatten(0, 1) / size, read)
    up = (table + unit).flatten(0, 1) / size
    return Encoder("relu", None, up, read * span[:, None], -torch.ones_like(up[:, 0]), low)


def baum_encoder(keys: Float[Tensor, "F d"], codes: Float[Tensor, "F m"]) -> Encoder:
    """Per block of d keys a slab around the plane <z, x> = 1 that holds them and no other key; within it a slope.

    Raises `InfeasibleConstructionError` where d keys of a block are linearly dependent, or another key lies in
    their plane.
    """
    facts, d = keys.shape
    ups, biases, reads = [], [], []
    unit = torch.eye(codes.shape[1], dtype=keys.dtype, device=keys.device)
    for start in range(0, facts, d):
        block = slice(start, min(start + d, facts))
        inverse = torch.linalg.pinv(keys[block])  # (d, block)
        z, v = inverse.sum(dim=1), (inverse @ codes[block]).T  # (d,), (m, d)
        height = keys @ z
        inside = torch.zeros(facts, dtype=torch.bool, device=keys.device)
        inside[block] = True
        off = (height[block] - 1).abs().amax()
        distance = (height[~inside] - 1).abs()
        tau = 0.5 * float(distance.amin()) if len(distance) else 0.5
        if not tau > 1e3 * float(off) or not tau > 0:
            raise InfeasibleConstructionError(
                f"a baum encoder needs keys in general position: the plane through keys {block.start} to "
                f"{block.stop - 1} misses them by {float(off):.1g} or comes within {2 * tau:.1g} of another key"
            )
        for slope, row in zip(v, unit, strict=True):
            delta = tau / (2 * float((keys @ slope).abs().amax()))
            ups += [z + delta * slope, z, z + delta * slope, z]
            biases += [tau - 1, tau - 1, -tau - 1, -tau - 1]
            reads += [sign / delta * row for sign in (1, -1, -1, 1)]
    return Encoder("relu", None, torch.stack(ups), torch.stack(reads, dim=1), keys.new_tensor(biases))
