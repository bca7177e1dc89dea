"""AlphaEdit: edits within the null space of the preserved keys (Fang et al. 2025, arXiv 2410.02355), in the
single-layer protocol of arXiv 2512.00207, A.3.4, and in its original one, spread over layers as MEMIT's.

The columns of Q (h, q) are the eigenvectors of the preserved keys' second moment with an eigenvalue below a
threshold, and P = Q Q^T. With Kp Kp^T the cache of keys edited before:

    Delta^T = (P (K1 K1^T + Kp Kp^T) + L2 I)^-1 P K1 R^T
    Delta   = R K1^T Q (Q^T (K1 K1^T + Kp Kp^T) Q + L2 I)^-1 Q^T        the same within the null space: q x q
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.config import option
from mlpswap.editing import (
    ClippedConfig,
    SpreadingEditor,
    Statistics,
    SymmetricFactor,
    TargetConfig,
    Writer,
    exact,
)
from mlpswap.errors import ConfigError


def null_basis(
    S: Float[Tensor, "h h"], threshold: float | None = None, *, energy: float | None = None
) -> Float[Tensor, "h q"]:
    """Orthonormal eigenvectors of S with an eigenvalue below `threshold`, or the longest series of smallest
    eigenvalues that holds at most the share `energy` of the trace. Exactly one of the two is given. q may
    be 0.
    """
    values, vectors = torch.linalg.eigh((exact(S) + exact(S).T) / 2)
    return vectors[:, : null_dimension(values, threshold, energy)]


def null_dimension(values: Float[Tensor, " h"], threshold: float | None, energy: float | None) -> int:
    """q for ascending eigenvalues. Raises `ConfigError` unless one positive choice is made."""
    if (threshold is None) == (energy is None):
        raise ConfigError("give null_threshold or null_energy, one of the two")
    if threshold is not None:
        if threshold <= 0:
            raise ConfigError(f"null_threshold must be positive: found {threshold}")
        return int((values < threshold).sum())
    assert energy is not None
    if not 0 < energy <= 1:
        raise ConfigError(f"null_energy must be above 0 and at most 1: found {energy}")
    positive = values.clamp(min=0)
    return int((positive.cumsum(0) <= energy * positive.sum()).sum())


def alphaedit_delta(
    R: Float[Tensor, "d N"],
    K1: Float[Tensor, "h N"],
    Q: Float[Tensor, "h q"],
    l2: float,
    cache: Float[Tensor, "h h"] | None = None,
) -> Float[Tensor, "d h"]:
    """The update, float64; zero if Q has no columns."""
    return exact(R) @ alphaedit_writer(K1, Q, l2, cache).T


def alphaedit_writer(K1: Tensor, Q: Tensor, l2: float, cache: Tensor | None) -> Float[Tensor, "h N"]:
    """X of Delta = R X^T."""
    if l2 <= 0:
        raise ConfigError(f"l2 must be positive: found {l2}")
    Q, inside = exact(Q), exact(Q).T @ exact(K1)  # (h, q), (q, N)
    if not Q.shape[1]:
        return torch.zeros_like(exact(K1))
    gram = inside @ inside.T + l2 * torch.eye(len(inside), dtype=inside.dtype)
    if cache is not None:
        gram += Q.T @ exact(cache) @ Q
    return Q @ SymmetricFactor(gram, name="Gram matrix within the null space").solve(inside)


def check_null_space(config: Any) -> None:
    """Raise `ConfigError` unless exactly one of `null_threshold` and `null_energy` is set, and l2 > 0."""
    null_dimension(torch.zeros(1), config.null_threshold, config.null_energy)
    if config.null_of not in ("sum", "mean"):
        raise ConfigError(f"null_of must be 'sum' or 'mean': found '{config.null_of}'")
    if config.l2 <= 0:
        raise ConfigError(f"l2 must be positive: found {config.l2}")


@dataclass(frozen=True)
class AlphaEditOriginal(TargetConfig):
    """Settings of AlphaEdit's original protocol."""

    clamp: float = option(0.75, "longest change of the hidden state as a multiple of its length, > 0")
    null_threshold: float | None = option(0.02, "eigenvalues below span the null space, > 0; published: 0.02")
    null_energy: float | None = option(None, "instead: share of the trace within the null space, in (0, 1]")
    null_of: str = option("mean", "eigenvalues of the keys' 'sum' of outer products or of their 'mean'")
    l2: float = option(10.0, "L2, ridge within the null space, > 0; published: 10")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_null_space(self)


@dataclass(frozen=True)
class AlphaEditConfig(ClippedConfig):
    """Settings of AlphaEdit. Exactly one of `null_threshold` and `null_energy` is set."""

    original: AlphaEditOriginal | None = option(
        None, "settings of the original protocol, such as {layers: [13, 14]}"
    )
    null_threshold: float | None = option(
        1.0, "eigenvalues below span the null space, > 0; published: 0.01, 1, 10"
    )
    null_energy: float | None = option(None, "instead: share of the trace within the null space, in (0, 1]")
    null_of: str = option("sum", "eigenvalues of the keys' 'sum' of outer products or of their 'mean'")
    l2: float = option(1.0, "L2, ridge within the null space, > 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_null_space(self)


class AlphaEdit(SpreadingEditor):
    """Least squares within the null space of the preserved keys (arXiv 2410.02355). Changes nothing where there is none: in
    a model whose preserved keys span the whole width, unless `null_energy` forces it.

    Its state sums the keys of all batches.
    """

    name = "alphaedit"
    Config = AlphaEditConfig
    writer_fields = ("null_threshold", "null_energy", "null_of", "l2")
    carries_keys = True

    def writer(
        self,
        keys: Tensor,
        statistics: Statistics | None,
        site: int,
        config: AlphaEditConfig | AlphaEditOriginal,
        cache: Tensor | None,
    ) -> Writer:
        h, N = keys.shape
        Q, energy = torch.eye(h, dtype=keys.dtype), 1.0  # nothing to preserve: P = I
        if statistics is not None and site in statistics and statistics[site].count:
            moment = statistics[site]
            values, vectors = moment.spectrum
            values = values / moment.count if config.null_of == "mean" else values
            q = null_dimension(values, config.null_threshold, config.null_energy)
            Q, energy = vectors[:, :q], float(values[:q].sum() / values.sum())
        notes = (
            ()
            if Q.shape[1]
            else (f"alphaedit: the null space is empty at {_choice(config)}: nothing changes",)
        )
        X = alphaedit_writer(keys, Q, config.l2, cache)
        figures = {"null_dimension": Q.shape[1], "null_energy": energy}
        return Writer(X, torch.zeros(N, dtype=torch.bool), notes=notes, figures=figures)

    def grid(self, preset: str = "released") -> list[dict[str, Any]]:
        """The 81 published settings, whose clips differ between the released code and the paper."""
        clips = {"released": (0.75, 0.25, None), "paper": (0.5, 0.75, None)}
        if preset not in clips:
            raise ConfigError(f"no grid '{preset}' of alphaedit: there are {', '.join(clips)}")
        points = product((10, 25, 100), (0.005, 0.05, 0.5), clips[preset], (0.01, 1.0, 10.0))
        return [dict(zip(("steps", "lr", "clip", "null_threshold"), point, strict=True)) for point in points]

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        """Options with which it carries out each of a few edits."""
        return {"steps": 100, "lr": 0.5, "clip": None, "null_threshold": None, "null_energy": 0.5, "l2": 1e-3}


def _choice(config: AlphaEditConfig | AlphaEditOriginal) -> str:
    if config.null_threshold is not None:
        return f"null_threshold = {config.null_threshold} (of the {config.null_of})"
    return f"null_energy = {config.null_energy}"
