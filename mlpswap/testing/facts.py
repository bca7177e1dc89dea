"""Fact sets as tensors, and the example of a construction with its variations."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mlpswap import registry
from mlpswap.config import to_plain
from mlpswap.constructions import FactMLP, build_fact_mlp
from mlpswap.embeddings import spherical
from mlpswap.errors import InfeasibleConstructionError

ARGUMENTS = ("keys", "values", "mapping", "competitors")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def facts(count: int, d: int, values: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and a mapping: a bijection, or many to one where `values` says how many there are."""
    draw = generator(seed)
    keys = spherical(count, d, draw)
    if values is None:
        return keys, keys, torch.randperm(count, generator=draw)
    return keys, spherical(values, d, draw), torch.randint(values, (count,), generator=draw)


class Example:
    """What a construction's `example` offers: `arguments` of `build_fact_mlp` with the facts, and `options`."""

    def __init__(self, name: str):
        self.name = name
        found = registry.get(registry.CONSTRUCTIONS, name).example(generator())
        self.options = to_plain(found["config"])
        self.arguments = {key: found[key] for key in ARGUMENTS if key in found}
        self.keys, self.values, self.mapping = (self.arguments[key] for key in ARGUMENTS[:3])

    def build(self, *, seed: int = 1, **changes: Any) -> FactMLP:
        """The example with other arguments or options."""
        arguments = self.arguments | {key: changes.pop(key) for key in ARGUMENTS if key in changes}
        options = self.options | changes
        return build_fact_mlp(**arguments, construction=self.name, generator=generator(seed), **options)

    def attempt(self, **changes: Any) -> FactMLP:
        """The same; the test is skipped where the construction says clearly that there can be no such MLP."""
        try:
            return self.build(**changes)
        except InfeasibleConstructionError as error:
            pytest.skip(str(error))

    def offered(self, **options: Any) -> dict[str, Any]:
        """Those of `options` that the construction has."""
        return {key: value for key, value in options.items() if key in self.options}

    def different(self) -> tuple[int, int]:
        """Two facts with different values."""
        other = (self.mapping != self.mapping[0]).nonzero()
        if not len(other):
            pytest.skip("its example has one value only")
        return 0, int(other[0])
