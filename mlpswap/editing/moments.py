"""Second moments of keys, and solves with symmetric matrices that say when they cannot be trusted.

A general LU solver returns arbitrary numbers for a singular matrix, without complaint. Here every system is
symmetrised, factored by Cholesky in float64 on the CPU, and its condition tested; a singular one is
refused, regularised or restricted to its range, as asked.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError, safe_open
from scipy.linalg.lapack import dpocon
from torch import Tensor

from mlpswap.errors import CheckpointError, ConfigError, NonFiniteError, SingularMomentError
from mlpswap.model.saving import tensor_sha256
from mlpswap.runs import write_tensors

SINGULAR = 1e-12  # reciprocal condition below which a matrix counts as singular
OUTSIDE = 1e-6  # share of a vector's length that may lie outside the range
RIDGE = 1e-6  # of the mean eigenvalue
POLICIES = ("error", "pinv", "ridge")


def exact(tensor: Tensor) -> Tensor:
    """`tensor` in float64 on the CPU, where every closed form is computed."""
    return tensor.detach().to("cpu", torch.float64)


def check_policy(on_singular: str) -> None:
    """Raise `ConfigError` for a way to treat singular matrices that does not exist."""
    if on_singular not in POLICIES:
        raise ConfigError(f"on_singular must be one of {', '.join(POLICIES)}: found '{on_singular}'")


class SymmetricFactor:
    """A positive semi-definite matrix M (h, h), ready to solve M x = b many times.

    `on_singular` says what happens if the reciprocal condition is below 1e-12: "error" raises
    `SingularMomentError`, "pinv" takes the least-norm solution within the range of M, "ridge" adds 1e-6
    trace(M)/h to the diagonal. `singular` tells whether that was necessary, `rcond` the condition of M as
    it was given, `rank` its rank, `ridge` what was added.
    """

    def __init__(self, matrix: Float[Tensor, "h h"], *, on_singular: str = "error", name: str = "matrix"):
        check_policy(on_singular)
        matrix = exact(matrix)
        matrix = (matrix + matrix.T) / 2
        if not torch.isfinite(matrix).all():
            raise NonFiniteError(f"the {name} holds NaN or infinity")
        self.width = self.rank = len(matrix)
        self.ridge = 0.0
        self._lower: Tensor | None
        self._lower, self.rcond = _cholesky(matrix)
        self.singular = self.rcond < SINGULAR
        if not self.singular:
            return
        eigenvalues, vectors = torch.linalg.eigh(matrix)
        kept = eigenvalues > SINGULAR * eigenvalues[-1].clamp(min=0)
        self.rank = int(kept.sum())
        if on_singular == "ridge" and eigenvalues[-1] > 0:
            self.ridge = RIDGE * float(matrix.trace()) / self.width
            self._lower, _ = _cholesky(matrix + self.ridge * torch.eye(self.width, dtype=matrix.dtype))
        elif on_singular == "pinv":
            self._lower, self._values, self._range = None, eigenvalues[kept], vectors[:, kept]
        else:
            raise SingularMomentError(
                f"the {name} is singular: rank {self.rank} of {self.width} (reciprocal condition "
                f"{self.rcond:.1e}, needed {SINGULAR:.0e}); use at least {self.width} different keys, "
                "or on_singular=pinv or ridge",
                self.rank,
                self.width,
            )

    def solve(self, rhs: Float[Tensor, "h n"]) -> Float[Tensor, "h n"]:
        """M^-1 rhs; under "pinv" for a singular M, M^+ rhs."""
        rhs = exact(rhs)
        if self._lower is not None:
            return torch.cholesky_solve(rhs, self._lower)
        return self._range @ ((self._range.T @ rhs) / self._values[:, None])

    def outside(self, rhs: Float[Tensor, "h n"]) -> Bool[Tensor, " n"]:
        """Columns that have no solution because they leave the range of M (only under "pinv")."""
        rhs = exact(rhs)
        if self._lower is not None:
            return torch.zeros(rhs.shape[1], dtype=torch.bool)
        rest = rhs - self._range @ (self._range.T @ rhs)
        return rest.norm(dim=0) > OUTSIDE * rhs.norm(dim=0)


def _cholesky(matrix: Tensor) -> tuple[Tensor | None, float]:
    """Lower factor and estimated reciprocal condition (1-norm), or (None, 0) if not positive definite."""
    lower, info = torch.linalg.cholesky_ex(matrix)
    if info > 0:
        return None, 0.0
    rcond, _ = dpocon(lower.T.numpy(), float(matrix.abs().sum(dim=0).max()))
    return lower, float(rcond)


@dataclass(frozen=True, eq=False)
class SecondMoment:
    """Sum of the outer products of `count` keys, float64. Moments of disjoint key sets add up."""

    sum: Float[Tensor, "h h"]
    count: int
    _factors: dict[str, SymmetricFactor] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_keys(
        cls, keys: Float[Tensor, "n h"] | Iterable[Float[Tensor, "n h"]], *, chunk: int = 4096
    ) -> "SecondMoment":
        """The moment of keys given as one tensor or as a stream of batches, in one pass."""
        batches = keys.split(chunk) if isinstance(keys, Tensor) else keys
        total, count = torch.zeros(0, 0, dtype=torch.float64), 0
        for batch in batches:
            rows = exact(batch)
            if not torch.isfinite(rows).all():
                raise NonFiniteError(
                    f"keys hold NaN or infinity among rows {count} to {count + len(rows) - 1}"
                )
            if not count:
                total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
            total.addmm_(rows.T, rows)
            count += len(rows)
        return cls(total, count)

    def __add__(self, other: "SecondMoment") -> "SecondMoment":
        return SecondMoment(self.sum + other.sum, self.count + other.count)

    @property
    def mean(self) -> Float[Tensor, "h h"]:
        """C0, the mean outer product. Raises `ConfigError` for a moment of no keys."""
        if self.count < 1:
            raise ConfigError("a second moment of no keys has no mean: give at least one preserved fact")
        return self.sum / self.count

    def factor(self, on_singular: str = "error") -> SymmetricFactor:
        """The factored mean; computed once for each policy."""
        if on_singular not in self._factors:
            name = f"second moment of {self.count} keys"
            self._factors[on_singular] = SymmetricFactor(self.mean, on_singular=on_singular, name=name)
        return self._factors[on_singular]

    @cached_property
    def spectrum(self) -> tuple[Float[Tensor, " h"], Float[Tensor, "h h"]]:
        """Eigenvalues of the sum in ascending order, and the eigenvectors as columns."""
        values, vectors = torch.linalg.eigh((self.sum + self.sum.T) / 2)
        return values, vectors

    def save(self, path: str | Path) -> None:
        """Write as safetensors: tensor `sum`, and its count and SHA-256 in the metadata."""
        write_tensors(path, {"sum": self.sum}, {"count": str(self.count), "sha256": tensor_sha256(self.sum)})

    @classmethod
    def load(cls, path: str | Path) -> "SecondMoment":
        """The inverse of `save`. Raises `CheckpointError` for anything else."""
        try:
            with safe_open(path, framework="pt") as file:
                total, about = file.get_tensor("sum"), file.metadata() or {}
            return cls.checked(path, total, int(about["count"]), about["sha256"])
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path} is no saved second moment: {error}") from error

    @classmethod
    def checked(cls, path: str | Path, total: Tensor, count: int, sha256: str) -> "SecondMoment":
        """As it was read from a file. Raises `CheckpointError` for what cannot be one, or is not the one that was saved."""
        if total.dtype != torch.float64 or total.ndim != 2 or total.shape[0] != total.shape[1]:
            raise CheckpointError(
                f"{path}: expected a square float64 matrix, found {total.dtype} {tuple(total.shape)}"
            )
        if not isinstance(count, int) or count < 0:
            raise CheckpointError(f"{path}: expected a number of keys, found {count!r:.40}")
        if tensor_sha256(total) != sha256:
            raise CheckpointError(f"{path}: the sum is not the one that was saved (SHA-256 differs)")
        return cls(total, count)
