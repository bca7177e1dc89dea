"""ROME: rank-one edits of the down-projection (Meng et al. 2022, arXiv 2202.05262), in the single-layer
protocol of arXiv 2512.00207, A.3.4.

One edit, with key k, wanted change r and C0 the mean second moment of preserved keys, meets its constraint
exactly while it moves the preserved keys' outputs least:

    Delta = r u^T / (k^T u),   u = C0^-1 k

Many edits with keys, residuals and C0 held fixed are the sum of these, so their order is irrelevant. That
sum meets the constraints together only if the directions u_i are C0-orthogonal, hence ROME's collapse for
many edits.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mlpswap.config import option
from mlpswap.editing import (
    ClosedFormEditor,
    ResidualConfig,
    ResidualOptions,
    Statistics,
    SymmetricFactor,
    Writer,
    check_policy,
    exact,
    moment_at,
)
from mlpswap.errors import ConfigError, DegenerateKeysError


def rome_delta(
    R: Float[Tensor, "d N"], K1: Float[Tensor, "h N"], C0: Float[Tensor, "h h"], *, on_singular: str = "error"
) -> Float[Tensor, "d h"]:
    """Sum of the rank-one edits, float64. Raises `DegenerateKeysError` for zero keys (0 / 0) and for keys
    outside the range of a singular C0, `SingularMomentError` for a singular C0 under "error".
    """
    factor = SymmetricFactor(C0, on_singular=on_singular, name="second moment C0")
    directions, refused = rome_directions(K1, factor)
    if refused.any():
        rows = tuple(refused.nonzero().flatten().tolist())
        raise DegenerateKeysError(
            f"keys {', '.join(map(str, rows))} are zero or outside the range of C0", rows
        )
    return exact(R) @ directions.T


def rome_directions(
    K1: Float[Tensor, "h N"], factor: SymmetricFactor
) -> tuple[Float[Tensor, "h N"], Bool[Tensor, " N"]]:
    """u_i / (k_i^T u_i) for each key, and which keys have none; those columns are zero."""
    K1 = exact(K1)
    U = factor.solve(K1)
    scale = (K1 * U).sum(dim=0)
    refused = factor.outside(K1) | (scale <= 0)
    return torch.where(refused, 0.0, U / torch.where(refused, 1.0, scale)), refused


@dataclass(frozen=True)
class RomeConfig(ResidualConfig):
    """Settings of ROME. There is no clip."""

    weight_decay: float = option(0.0, "Adam's coupled decay of r, >= 0; published: 1.5e-3, 1.5e-4, 0")
    early_stop: float | None = option(0.05, "stop a residual once its loss is below, > 0; null: all steps")
    on_singular: str = option(
        "error", "singular C0: 'error', 'pinv' (its range only) or 'ridge' (1e-6 trace/h)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_policy(self.on_singular)

    @property
    def residual_options(self) -> ResidualOptions:
        return ResidualOptions(self.steps, self.lr, self.weight_decay, self.early_stop)


class Rome(ClosedFormEditor):
    """Rank-one edits, summed."""

    name = "rome"
    Config = RomeConfig
    writer_fields = ("on_singular",)

    def writer(
        self, keys: Tensor, statistics: Statistics | None, site: int, config: RomeConfig, cache: Tensor | None
    ) -> Writer:
        factor = moment_at(statistics, site, self.name).factor(config.on_singular)
        directions, refused = rome_directions(keys, factor)
        figures = {"rcond": factor.rcond, "rank": factor.rank, "ridge": factor.ridge}
        return Writer(directions, refused, "its key is zero or outside the range of C0", figures=figures)

    def grid(self, preset: str = "released") -> list[dict[str, Any]]:
        """The 54 published settings; both presets are the same."""
        if preset not in ("released", "paper"):
            raise ConfigError(f"no grid '{preset}' of rome: there are released, paper")
        points = product((10, 25, 100), (0.005, 0.05, 0.5), (1.5e-3, 1.5e-4, 0.0), (0.05, None))
        names = ("steps", "lr", "weight_decay", "early_stop")
        return [dict(zip(names, point, strict=True)) for point in points]

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        """Options with which it carries out each of a few edits."""
        return {"steps": 100, "lr": 0.5, "early_stop": None, "on_singular": "ridge"}
