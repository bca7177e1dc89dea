"""EMMET (Gupta et al. 2024, arXiv 2403.14236): MEMIT by another name, and its limit.

It asks that the edited keys meet their targets while preserved outputs move as little as possible, and softens the
equality by a ridge m:

    Delta = R (K1^T C0^-1 K1 + m I)^-1 K1^T C0^-1

By the push-through identity this is MEMIT's Delta with lambda = m; where C0 is weighed by w, with lambda = w m. Only
m = 0, equality itself, is out of MEMIT's reach: there its system is singular, and its least-norm answer ignores C0.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mlpswap.config import option
from mlpswap.editing import Statistics, SymmetricFactor, Writer, exact, moment_at
from mlpswap.errors import ConfigError

from .memit import Memit, MemitConfig, MemitOriginal


@dataclass(frozen=True)
class EmmetConfig(MemitConfig):
    """Settings of EMMET: those of MEMIT."""

    lam: float = option(
        1000.0, "w m, weight of C0 times the ridge, >= 0; published: 10000 x 0.1; 0: equality"
    )


class Emmet(Memit):
    """MEMIT in the form of equality constraints (arXiv 2403.14236): lam = w m; 1000 as published, 1 for a tight base."""

    name = "emmet"
    Config = EmmetConfig

    def writer(
        self,
        keys: Tensor,
        statistics: Statistics | None,
        site: int,
        config: MemitConfig | MemitOriginal,
        cache: Tensor | None,
    ) -> Writer:
        if config.lam:
            return super().writer(keys, statistics, site, config, cache)
        h, count = keys.shape
        if count > h:
            raise ConfigError(
                f"lam must be positive, or 0 with at most {h} edits: found 0 with {count} edits"
            )
        weight = moment_at(statistics, site, self.name).mean
        if config.cache and cache is not None:
            weight = weight + cache
        outer = SymmetricFactor(weight, on_singular=config.on_singular, name="C0")
        spread = outer.solve(exact(keys))
        inner = SymmetricFactor(exact(keys).T @ spread, on_singular=config.on_singular, name="K1^T C0^-1 K1")
        figures = {"rcond": min(outer.rcond, inner.rcond), "rank": inner.rank, "ridge": outer.ridge}
        return Writer(inner.solve(spread.T).T, torch.zeros(count, dtype=torch.bool), figures=figures)

    def grid(self, preset: str = "released") -> list[dict[str, Any]]:
        """The published weight, with MEMIT's published steps, rates and clips: 27 settings."""
        weight = EmmetConfig().lam
        points = super().grid(preset)
        return [point | {"lam": weight} for point in points if point["lam"] == points[0]["lam"]]
