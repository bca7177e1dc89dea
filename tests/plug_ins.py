"""What other people might plug in: a construction with no options of its own, and editors that are broken in many ways."""

from dataclasses import dataclass

import torch
from mlpswap_baselines.rome import Rome

from mlpswap import registry
from mlpswap.config import option
from mlpswap.editing import EditConfig, EditResult
from mlpswap.errors import ConfigError
from mlpswap.model.patch import ModuleChange, Patch

CONSTRUCTIONS, EDITORS = registry.CONSTRUCTIONS, registry.EDITORS


@dataclass(frozen=True)
class NoOptions:
    pass


class Plain:
    """A construction without h, kind, noise or match_output_norm."""

    name = "plain"
    Config = NoOptions

    def build(self, keys, values, mapping, config, *, competitors=None, generator):
        hebbian = registry.get(CONSTRUCTIONS, "hebbian")
        return hebbian.build(
            keys, values, mapping, hebbian.Config(h=96), competitors=competitors, generator=generator
        )


class Coloured:
    """Red \x1b[31m text
    and a second line"""

    name = "coloured"
    Config = EditConfig

    def edit(self, adapter, requests, config, *, statistics=None, state=None, generator=None):
        raise AssertionError


class NoDataclass(Coloured):
    Config = 5


class Own(Coloured):
    """Its configuration refuses everything, in its own words."""

    @dataclass
    class Config:
        size: int = option(1, "size")

        def __post_init__(self):
            raise KeyError("no size is right")


@dataclass(frozen=True)
class BrokenConfig(EditConfig):
    how: str = option("raise", "what it does instead of editing")


class Broken:
    """An editor that does what its configuration says, none of which is right."""

    name = "broken"
    Config = BrokenConfig

    def edit(self, adapter, requests, config, *, statistics=None, state=None, generator=None):
        empty = adapter.patch(0, None, editor="broken")
        with torch.no_grad():
            match config.how:
                case "raise":
                    raise ZeroDivisionError("\x1b[31mno\nway")
                case "refuse":
                    raise ConfigError("not with this host")
                case "exit":
                    raise SystemExit(3)
                case "nothing":
                    return None
                case "patch":
                    return empty
                case "diagnostics":
                    return EditResult(empty, None, None)
                case "in place":
                    adapter.model.fact_mlp.down.weight.zero_()
                    return EditResult(empty, None, {})
                case "hook":
                    adapter.model.fact_mlp.register_forward_hook(lambda *_: None)
                    return EditResult(empty, None, {})
                case "requests":
                    requests.clear()
                    raise ValueError("nothing left to do")
                case "types":
                    weight = adapter.weight(0)
                    old, new = {"down.weight": weight}, {"down.weight": weight.double()}
                    return EditResult(Patch((ModuleChange("m", old, new),), "broken"), None, {})
                case "shape":
                    return EditResult(adapter.patch(0, torch.zeros(2, 2), editor="broken"), None, {})
                case "infinite":
                    weight = adapter.weight(0)
                    module, bad = adapter.model.fact_mlp_name, torch.full_like(weight, torch.inf)
                    change = ModuleChange(module, {"down.weight": weight}, {"down.weight": bad})
                    return EditResult(Patch((change,), "broken"), None, {})


class BrokenGrid(Broken):
    """The same for a whole grid, which it stops in the middle of."""

    name = "broken_grid"

    def grid(self, preset="released"):
        return [{"how": "fine"}, {"how": "raise"}, {"how": "fine"}]

    def edit_grid(self, adapter, requests, configs, *, statistics=None, state=None, generator=None):
        for config in configs:
            self.edit(adapter, requests, config)
            yield EditResult(adapter.patch(0, None, editor="broken_grid"), None, {"notes": ["did nothing"]})


class Picky(Rome):
    """ROME that refuses the first request."""

    name = "picky"

    def edit(self, adapter, requests, config, *, statistics=None, state=None, generator=None):
        result = super().edit(adapter, requests[1:], config, statistics=statistics, state=state)
        result.diagnostics["refused"][requests[0].id] = "not this one"
        return result
