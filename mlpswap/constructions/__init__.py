"""Ways to make a fact MLP, found by name through `mlpswap.registry`."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap import registry
from mlpswap.config import build_options
from mlpswap.constructions.base import BuildReport, Construction, FactMLP, FactMLPConfig
from mlpswap.constructions.checks import check_tensors
from mlpswap.errors import InfeasibleConstructionError
from mlpswap.randomness import require_generator

__all__ = ["BuildReport", "Construction", "FactMLP", "FactMLPConfig", "build_fact_mlp"]


def build_fact_mlp(
    keys: Float[Tensor, "F d"],
    values: Float[Tensor, "n_v d"],
    mapping: Int[Tensor, " F"],
    construction: str = "hebbian",
    *,
    competitors: Float[Tensor, "n_c d"] | None = None,
    generator: torch.Generator,
    strict: bool = False,
    **options: Any,
) -> FactMLP:
    """Build an MLP g with argmax_j <g(k_i), v_j> = mapping[i]; `report` of the result says how far it
    succeeded.

    construction: a registered name; `options` are the fields of its `Config` (`mlpswap list` shows them).
    competitors: rows, none of them a value, whose scores must lose as well: the rest of a host's vocabulary.
    strict: raise `InfeasibleConstructionError` if not every fact is stored. Raises `RegistryError`,
    `ConfigError` and `DegenerateKeysError` (equal or zero keys, named by index) besides.
    """
    maker = registry.get(registry.CONSTRUCTIONS, construction)
    config = build_options(maker.Config, options, f"construction '{construction}'")
    require_generator(generator)
    check_tensors(keys, values, mapping, competitors)
    keys, values, mapping = keys.detach(), values.detach(), mapping.long()
    competitors = None if competitors is None else competitors.detach()
    mlp = maker.build(keys, values, mapping, config, competitors=competitors, generator=generator)
    if strict and mlp.report.capacity < 1:
        raise InfeasibleConstructionError(
            f"'{construction}' with h = {mlp.config.h} stores {mlp.report.capacity:.2%} of {len(keys)} "
            f"facts, not all: smallest margin {mlp.report.margin:.3g}"
        )
    return mlp
