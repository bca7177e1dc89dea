"""Random tables of embeddings (arXiv 2512.00207, sections 2 and A.2.2)."""

import torch
from jaxtyping import Float
from torch import Tensor


def gaussian(
    n: int, d: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "n d"]:
    """n rows of N(0, I), on the generator's device; norms are about sqrt(d)."""
    return torch.randn(n, d, generator=generator, device=generator.device, dtype=dtype)


def spherical(
    n: int, d: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "n d"]:
    """n rows uniform on the unit sphere: `gaussian` divided by the rows' norms."""
    rows = gaussian(n, d, generator, dtype)
    return rows / rows.norm(dim=1, keepdim=True)
