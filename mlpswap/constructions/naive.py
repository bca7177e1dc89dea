"""One ReLU neuron for each key: the table written out as an MLP (arXiv 2512.00207, section 4, the naive baseline).

    g(x) = sum_i u_i relu(<z_i, x> - b_i) / s_i

Neuron i has a plane that keeps key i from all others, halfway between it and the nearest of them: it is silent on
every other key, and s_i makes it 1 on its own. So g(k_i) = u_i exactly, for any number of facts.

Parameters: 2 d F + F. Assumes that no key lies in the convex hull of the others, which always holds for different
keys of equal length; there z_i = k_i. Use it as the yardstick that cleverer constructions must beat, or where
F is small and nothing but exactness matters; it bears little noise on the keys.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.config import option
from mlpswap.constructions.base import FactMLP, FactMLPConfig, finish
from mlpswap.constructions.checks import check_inputs, some
from mlpswap.constructions.outputs import OUTPUTS_HELP, check_outputs, distinct, output_rows
from mlpswap.embeddings import spherical
from mlpswap.errors import ConfigError, InfeasibleConstructionError, NotDecodableError
from mlpswap.geometry import margin_optimal_outputs


@dataclass(frozen=True)
class NaiveConfig:
    """Options of the construction `naive`."""

    h: int | None = option(
        None, "most neurons allowed; null: one for each different key, which it uses anyway"
    )
    outputs: str = option("auto", OUTPUTS_HELP)
    match_output_norm: bool = option(False, "scale B: mean output norm on the keys = mean norm of the values")

    def __post_init__(self) -> None:
        if self.h is not None and self.h < 1:
            raise ConfigError(f"naive: h must be positive or null, found {self.h}")
        check_outputs("naive", self.outputs)


class Naive:
    """One ReLU neuron per key (arXiv 2512.00207, section 4, the baseline). Parameters 2 d F + F, h = F. Keys: none in
    the convex hull of the others, as different keys of one length are; values: any. Use it as the yardstick, or for a
    few facts that must be exact.

    Float64 until the last cast.
    """

    name = "naive"
    Config = NaiveConfig

    @torch.no_grad()
    def build(
        self,
        keys: Float[Tensor, "F d"],
        values: Float[Tensor, "n_v d"],
        mapping: Int[Tensor, " F"],
        config: NaiveConfig,
        *,
        competitors: Float[Tensor, "n_c d"] | None = None,
        generator: torch.Generator,
    ) -> FactMLP:
        """See `Construction.build`. Nothing is random; competitors are measured, not used.

        Raises `InfeasibleConstructionError` if `h` is below the number of different keys and for keys in the convex
        hull of the others, `NotDecodableError` for such values.
        """
        started = time.perf_counter()
        check_inputs(keys, values, mapping, competitors)
        first = distinct(keys)
        h = len(first)
        if config.h is not None and config.h < h:
            raise InfeasibleConstructionError(
                f"naive needs one neuron for each different key: found h = {config.h} < {h}; h = null takes {h}"
            )
        x = keys[first].double()
        scale = x.norm(dim=1).mean()
        try:
            planes, bias, peak = separating_planes(x / scale)
        except NotDecodableError as error:
            hidden = first[list(error.indices)].tolist()
            raise InfeasibleConstructionError(
                f"naive needs a plane that keeps each key from all others: none exists for keys {some(hidden)}, "
                "which lie in the convex hull of the others; give all keys the same length"
            ) from error
        outputs = output_rows(values, mapping, config.outputs)
        mlp = FactMLP(FactMLPConfig.of_kind("relu", keys.shape[1], h), dtype=torch.float64).to(keys.device)
        mlp.up.weight.copy_(planes / scale)
        mlp.up.bias.copy_(bias)
        mlp.down.weight.copy_((outputs.rows[mapping[first]] / peak[:, None]).T)
        return finish(
            self.name, mlp, keys, values, mapping, started=started, norm_matched=config.match_output_norm,
            competitors=competitors, details={"outputs": outputs.kind},
        )  # fmt: skip

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        keys = spherical(64, 16, generator)
        mapping = torch.randperm(len(keys), generator=generator)
        return {"keys": keys, "values": keys, "mapping": mapping, "config": NaiveConfig()}


def separating_planes(
    keys: Float[Tensor, "n d"],
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Unit vectors z, biases b and peaks s with <z_i, k_i> + b_i = s_i and <z_i, k_j> + b_i <= -s_i elsewhere.

    z_i is the key's own direction where that works for all, as it does for keys of equal length; else the
    direction of widest margin. Raises `NotDecodableError` naming the keys that no plane keeps from all others.
    """
    directions = keys / keys.norm(dim=1, keepdim=True)
    own, nearest = _similarities(directions, keys)
    if not (own > nearest).all():
        directions = margin_optimal_outputs(keys).outputs
        own, nearest = _similarities(directions, keys)
    return directions, -(own + nearest) / 2, (own - nearest) / 2


def _similarities(directions: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """For each direction the product with its own key, and the largest with another or minus its own."""
    products = directions @ keys.T  # (n, n)
    own = products.diagonal().clone()
    products.fill_diagonal_(float("-inf"))
    return own, torch.maximum(products.amax(dim=1), -own.abs())
