"""Plug-ins with one fault each; tests/test_plugin_example.py installs this file beside the example, as a package."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from my_package import Nudge, RandomFeatures

from mlpswap.editing import ClippedConfig


class InPlace(Nudge):
    """Changes the model."""

    name = "in_place"

    def edit(self, adapter, requests, config, **others):
        with torch.no_grad():
            adapter.model.fact_mlp.down.weight.mul_(1.001)
        return super().edit(adapter, requests, config, **others)


class Chance(Nudge):
    """Draws from torch's global generator."""

    name = "chance"

    def writer(self, keys, *others):
        return super().writer(keys * torch.rand(1), *others)


class Remembers(Nudge):
    """Carries the number of its edits from one to the next."""

    name = "remembers"
    edits: ClassVar[list[int]] = []

    def writer(self, keys, *others):
        self.edits.append(1)
        return super().writer(keys * len(self.edits), *others)


class Silent(Nudge):
    """Does not say what became of a request."""

    name = "silent"

    def edit(self, *arguments, **others):
        result = super().edit(*arguments, **others)
        return replace(result, diagnostics=result.diagnostics | {"refused": {}})


class Weak(Nudge):
    """Its example does not edit."""

    name = "weak"

    def example(self, generator):
        return {"steps": 1, "lr": 1e-6}


class Terse(Nudge):
    """An option without help."""

    name = "terse"

    @dataclass(frozen=True)
    class Config(ClippedConfig):
        strength: float = 1.0


class Rough(Nudge):
    """A bad value ends in an error of Python's own."""

    name = "rough"

    @dataclass(frozen=True)
    class Config(ClippedConfig):
        def __post_init__(self):
            assert self.steps > 0


class Fails(Nudge):
    """Takes three requests and no more."""

    name = "fails"

    def writer(self, keys, *others):
        if keys.shape[1] > 3:
            raise KeyError("too many")
        return super().writer(keys, *others)


class Boasts(RandomFeatures):
    """A report that is not what the module does."""

    name = "boasts"

    def build(self, *arguments, **others):
        mlp = super().build(*arguments, **others)
        mlp.report = replace(mlp.report, accuracy=1.0, wrong=())
        return mlp


class Careless(RandomFeatures):
    """Draws from torch's global generator."""

    name = "careless"

    def build(self, *arguments, generator, **others):
        return super().build(*arguments, generator=torch.default_generator, **others)
