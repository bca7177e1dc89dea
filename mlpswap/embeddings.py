"""Random tables of embeddings, and tables made harder on purpose (arXiv 2512.00207, sections 2, A.1.1 and A.2.2).

`KINDS` names the random tables for configs. `ill_condition` and `spike` turn any table into one whose rows prefer some
directions; neither brings rows back to their length, except where `spike` says so.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.errors import ConfigError, EmbeddingsError, NonFiniteError

PROFILES = ("log", "linear")


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


def kaiming_uniform(
    n: int, d: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "n d"]:
    """Entries of U(-b, b) with b = 1 / sqrt(d): torch's own start of a linear layer; norms are about 1 / sqrt(3)."""
    uniform = torch.rand(n, d, generator=generator, device=generator.device, dtype=dtype)
    return (2 * uniform - 1) / math.sqrt(d)


KINDS: dict[str, Callable[..., Tensor]] = {
    "spherical": spherical,
    "gaussian": gaussian,
    "kaiming_uniform": kaiming_uniform,
}


def draw(
    kind: str, n: int, d: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "n d"]:
    """The random table that a config calls `kind`. Raises `EmbeddingsError` for a name that is not in `KINDS`."""
    if kind not in KINDS:
        raise EmbeddingsError(f"unknown kind of embeddings '{kind}': expected one of {', '.join(KINDS)}")
    return KINDS[kind](n, d, generator, dtype)


@torch.no_grad()
def ill_condition(table: Float[Tensor, "n d"], kappa: float, profile: str = "log") -> Float[Tensor, "n d"]:
    """A table with the same singular vectors and the condition number `kappa`. Computed in float64.

    profile "log": the largest singular value stays, and the others are spread so that their logarithms keep their
    relative distances; equal ones become evenly spaced (arXiv 2512.00207, A.2.2). "linear": evenly spaced values
    at the same Frobenius norm. Rows are not brought back to their length: that would change `kappa`.

    In float32 `kappa` is met to a relative kappa * 1e-7. Raises `EmbeddingsError` for kappa < 1, fewer rows than
    columns, or a table of lower rank than d, and `NonFiniteError` for NaN or infinity.
    """
    check_table(table)
    n, d = table.shape
    if not 1 <= kappa < math.inf:
        raise EmbeddingsError(f"kappa = {kappa}: a condition number is finite and at least 1")
    if kappa * torch.finfo(table.dtype).eps > 0.1:
        raise EmbeddingsError(f"kappa = {kappa:.3g} is beyond {table.dtype}: the table must be float64")
    if profile not in PROFILES:
        raise EmbeddingsError(f"unknown profile '{profile}': expected one of {', '.join(PROFILES)}")
    if n < d:
        raise EmbeddingsError(
            f"a table of {n} rows has no condition number in {d} dimensions: it needs n >= d"
        )
    if d == 1 and kappa > 1:
        raise EmbeddingsError(f"kappa = {kappa}: the condition number of a single column is 1")
    left, old, right = torch.linalg.svd(table.double(), full_matrices=False)
    rounding = max(torch.finfo(table.dtype).eps, n * torch.finfo(torch.float64).eps)
    rank = int((old > old[0] * rounding).sum())
    if rank < d:
        raise EmbeddingsError(
            f"the table has rank {rank} in {d} dimensions: its condition number is infinite"
        )
    even = torch.linspace(0, 1, d, dtype=old.dtype, device=old.device)
    if profile == "log":
        share = (old / old[0]).log() / (old[-1] / old[0]).log()
        if old[0] / old[-1] - 1 < 1e-12 * d:  # equal up to rounding
            share = even
        new = old[0] * torch.exp(-math.log(kappa) * share)
    else:
        new = 1 + even * (1 / kappa - 1)
        new *= old.norm() / new.norm()
    return ((left * new) @ right).to(table.dtype)


@torch.no_grad()
def spike(table: Float[Tensor, "n d"], beta: float, generator: torch.Generator) -> Float[Tensor, "n d"]:
    """Unit rows e + beta <e, u> u, normalised, for one random unit direction u: anisotropic, with one long axis.

    Raises `EmbeddingsError` for a row that becomes zero (a zero row; beta = -1 and a row along u).
    """
    check_table(table)
    u = spherical(1, table.shape[1], generator, table.dtype)[0].to(table.device)
    rows = table + beta * (table @ u)[:, None] * u
    norms = rows.norm(dim=1, keepdim=True)
    zero = (norms[:, 0] == 0).nonzero().flatten().tolist()
    if zero:
        raise EmbeddingsError(f"row {zero[0]} is zero and has no direction")
    return rows / norms


def condition_number(table: Float[Tensor, "n d"]) -> float:
    """Largest over smallest singular value of a table with n >= d; infinite below full rank."""
    check_table(table)
    values = torch.linalg.svdvals(table.double())
    return float(values[0] / values[-1])


def check_table(table: Tensor, noun: str = "the table") -> None:
    """Raise `EmbeddingsError` unless `table` is (n, d) with a row and a column, `NonFiniteError` for NaN or infinity,
    `ConfigError` as `check_floating`.
    """
    check_floating(table, noun)
    if table.ndim != 2 or 0 in table.shape:
        raise EmbeddingsError(f"{noun} must be (n, d), one row at least: found shape {tuple(table.shape)}")
    finite = torch.isfinite(table).all(dim=1)
    if not bool(finite.all()):
        raise NonFiniteError(f"row {int((~finite).nonzero()[0])} of {noun} holds NaN or infinity")


def check_floating(rows: object, noun: str) -> None:
    """Raise `ConfigError` unless `rows` is a tensor of real floating-point numbers."""
    if not (isinstance(rows, Tensor) and rows.is_floating_point()):
        raise ConfigError(f"{noun} must be a tensor of floating-point numbers: found {kind_of(rows)}")


def kind_of(found: object) -> str:
    """In words: the dtype of a tensor, the type of anything else."""
    return f"a tensor of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
