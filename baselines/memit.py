"""MEMIT: many edits at once by regularised least squares (Meng et al. 2023, arXiv 2210.07229), in the
single-layer protocol of arXiv 2512.00207, A.3.4, and in its original one, which spreads over several layers.

With edited keys K1, wanted changes R and the mean second moment C0 of preserved keys weighed by lambda:

    Delta = argmin ||Delta K1 - R||^2 + lambda tr(Delta C0 Delta^T) = R K1^T (lambda C0 + K1 K1^T)^-1

With a cache Kp Kp^T of keys edited before, these are weighed against as well: it is added inside the inverse.
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
    check_policy,
    exact,
    moment_at,
)
from mlpswap.errors import ConfigError


def memit_delta(
    R: Float[Tensor, "d N"],
    K1: Float[Tensor, "h N"],
    C0: Float[Tensor, "h h"],
    lam: float,
    *,
    on_singular: str = "pinv",
    cache: Float[Tensor, "h h"] | None = None,
) -> Float[Tensor, "d h"]:
    """R K1^T (lam C0 + K1 K1^T + cache)^-1, float64. For a singular system the least-norm solution by default: K1
    lies in its range, so that is well defined. lam = 0 needs N <= h.
    """
    return exact(R) @ memit_factor(K1, C0, lam, on_singular, cache).solve(K1).T


def memit_factor(
    K1: Tensor, C0: Tensor, lam: float, on_singular: str, cache: Tensor | None = None
) -> SymmetricFactor:
    """lam C0 + K1 K1^T + cache, factored. Raises `ConfigError` for a lam that cannot be."""
    K1 = exact(K1)
    h, N = K1.shape
    if lam < 0 or (lam == 0 and h < N):
        raise ConfigError(f"lam must be positive, or 0 with at most {h} edits: found {lam} with {N} edits")
    system = lam * exact(C0) + K1 @ K1.T
    if cache is not None:
        system += exact(cache)
    return SymmetricFactor(system, on_singular=on_singular, name="lam C0 + K1 K1^T")


@dataclass(frozen=True)
class MemitOriginal(TargetConfig):
    """Settings of MEMIT's original protocol."""

    clamp: float = option(0.75, "longest change of the hidden state as a multiple of its length, > 0")
    lam: float = option(20000.0, "lambda, >= 0; published: 20000 (GPT-2 XL), 15000 (GPT-J)")
    on_singular: str = option("pinv", "singular lam C0 + K1 K1^T: 'pinv' (least norm), 'ridge' or 'error'")
    cache: bool = option(False, "weigh against the keys of earlier batches too, in sequential editing")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam < 0:
            raise ConfigError(f"original.lam must not be negative: found {self.lam}")
        check_policy(self.on_singular)


@dataclass(frozen=True)
class MemitConfig(ClippedConfig):
    """Settings of MEMIT."""

    original: MemitOriginal | None = option(
        None, "settings of the original protocol, such as {layers: [13, 14]}"
    )
    lam: float = option(1.0, "lambda, weight of the mean second moment, > 0; published: 15000, 1500, 150, 1")
    on_singular: str = option("pinv", "singular lam C0 + K1 K1^T: 'pinv' (least norm), 'ridge' or 'error'")
    cache: bool = option(False, "weigh against the keys of earlier batches too, in sequential editing")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam < 0:
            raise ConfigError(f"lam must not be negative: found {self.lam}")
        check_policy(self.on_singular)


class Memit(SpreadingEditor):
    """Least squares over all edits, weighed against the preserved keys by `lam` (arXiv 2210.07229). For many edits at once.

    Its state sums the keys of all batches.
    """

    name = "memit"
    Config = MemitConfig
    writer_fields = ("lam", "on_singular", "cache")
    carries_keys = True

    def writer(
        self,
        keys: Tensor,
        statistics: Statistics | None,
        site: int,
        config: MemitConfig | MemitOriginal,
        cache: Tensor | None,
    ) -> Writer:
        C0 = moment_at(statistics, site, self.name).mean
        factor = memit_factor(keys, C0, config.lam, config.on_singular, cache if config.cache else None)
        none = torch.zeros(keys.shape[1], dtype=torch.bool)
        figures = {"rcond": factor.rcond, "rank": factor.rank, "ridge": factor.ridge}
        return Writer(factor.solve(keys), none, figures=figures)

    def grid(self, preset: str = "released") -> list[dict[str, Any]]:
        """The 108 published settings; both presets are the same."""
        if preset not in ("released", "paper"):
            raise ConfigError(f"no grid '{preset}' of memit: there are released, paper")
        points = product((10, 25, 100), (0.005, 0.05, 0.5), (15000.0, 1500.0, 150.0, 1.0), (0.5, 0.75, 1.0))
        return [dict(zip(("steps", "lr", "lam", "clip"), point, strict=True)) for point in points]

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        """Options with which it carries out each of a few edits."""
        return {"steps": 100, "lr": 0.5, "clip": None, "lam": 1e-3}
