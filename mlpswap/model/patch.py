"""A change of weights as a thing of its own: apply it, undo it bit for bit, save it, load it."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mlpswap.constructions.base import FactMLP, FactMLPConfig
from mlpswap.errors import CheckpointError, ConfigError, RunFolderError
from mlpswap.facts import FactSet, counted
from mlpswap.model.lookup import FactLookup
from mlpswap.model.saving import json_sha256, read_json, read_tensors, require_finite, tensor_sha256
from mlpswap.runs import replacing, write_tensors, write_text

if TYPE_CHECKING:
    from mlpswap.model.modeling import MlpSwapForCausalLM

SCHEMA = 1


@dataclass(frozen=True, eq=False)
class ModuleChange:
    """Old and new tensors of one module, by parameter name, as exact copies.

    module: its name as in `get_submodule`. The configs are there where a fact MLP's kind or width changes;
    then both sides hold all of its parameters. Raises `CheckpointError` for tensors that do not correspond.
    """

    module: str
    old: dict[str, Tensor]
    new: dict[str, Tensor]
    old_config: dict[str, Any] | None = None
    new_config: dict[str, Any] | None = None

    @classmethod
    def between(cls, module: str, old: FactMLP, new: FactMLP) -> "ModuleChange":
        """From one fact MLP to another; the new one takes dtype and device of the old one."""
        like = old.down.weight
        configs = (None, None) if old.config == new.config else (old.config.to_dict(), new.config.to_dict())
        return cls(
            module,
            {name: parameter.detach().clone() for name, parameter in old.named_parameters()},
            {name: parameter.detach().to(like, copy=True) for name, parameter in new.named_parameters()},
            *configs,
        )

    def __post_init__(self) -> None:
        if (self.old_config is None) != (self.new_config is None):
            raise CheckpointError(f"a change of {self.module} needs both configurations or none")
        for config, tensors in ((self.old_config, self.old), (self.new_config, self.new)):
            shapes = _shapes(self.old) if config is None else _shapes_of_config(config)
            if _shapes(tensors) != shapes:
                raise CheckpointError(
                    f"a change of {self.module} has other tensors than announced: expected {shapes}"
                )
        for name, tensor in self.new.items():
            wanted = self.old[name if name in self.old else next(iter(self.old))].dtype
            if tensor.dtype != wanted:
                raise CheckpointError(
                    f"a change of {self.module}.{name} is of type {tensor.dtype}, where the model has {wanted}"
                )

    @property
    def reshapes(self) -> bool:
        """Whether the module is replaced by one of another shape."""
        return self.old_config != self.new_config

    def reversed(self) -> "ModuleChange":
        return ModuleChange(self.module, self.new, self.old, self.new_config, self.old_config)


@dataclass(frozen=True, eq=False)
class Patch:
    """What an editor returns. Empty `changes` are a patch that changes nothing.

    altered: (key, old value, new value) of each edited fact. facts_before, facts_after: fingerprints of the
    fact sets, None for a model without one.
    """

    changes: tuple[ModuleChange, ...]
    editor: str
    altered: tuple[tuple[str, str, str], ...] = ()
    facts_before: str | None = None
    facts_after: str | None = None

    @classmethod
    def between_mlps(
        cls, model: "MlpSwapForCausalLM", mlp: FactMLP, *, editor: str, facts: FactSet
    ) -> "Patch":
        """Put `mlp`, which stores `facts`, in the place of the model's fact MLP. Changes neither."""
        old = model.known_facts()
        change = ModuleChange.between(model.fact_mlp_name, model.fact_mlp, mlp)
        changed = [old.keys[i] for i in old.changed(facts)]
        altered = tuple((key, old.value_of(key), facts.value_of(key)) for key in changed)
        return cls((change,), editor, altered, old.fingerprint, facts.fingerprint)

    def __repr__(self) -> str:
        modules = ", ".join(change.module for change in self.changes) or "no module"
        return f"Patch({self.editor}, {counted(len(self.altered), 'fact')} altered, {modules}, norm {self.norm():.4g})"

    @property
    def is_empty(self) -> bool:
        """Whether applying it would change not a single bit."""
        return not any(
            change.reshapes or not all(same_bits(change.old[name], new) for name, new in change.new.items())
            for change in self.changes
        )

    def norm(self) -> float:
        """Frobenius norm of the change.

        A tensor whose shape changes counts as taken away and put in: ||old||^2 + ||new||^2.
        """
        squares = 0.0
        for change in self.changes:
            for name in change.old.keys() | change.new.keys():
                sides = [side[name].double() for side in (change.old, change.new) if name in side]
                if len(sides) == 2 and sides[0].shape == sides[1].shape:
                    sides = [sides[1] - sides[0]]
                squares += sum(float(side.square().sum()) for side in sides)
        return math.sqrt(squares)

    def apply(self, model: nn.Module, *, allow_nonfinite: bool = False) -> None:
        """Change the model in place: tensors, configuration, `facts` and `history`.

        Raises `CheckpointError`, having changed nothing, unless every old tensor is there to the last bit, the
        fact set is the one that the patch was made on, and the altered facts lead to the one that it announces;
        `NonFiniteError` if it would put in NaN or infinity and `allow_nonfinite` is off.
        """
        if not allow_nonfinite:
            require_finite(dict(self._tensors("new")), "the patch cannot be applied")
        changes = {key: new for key, _, new in self.altered}
        facts = _facts_after(model, changes, self.facts_before, self.facts_after)
        _put(model, self.changes)
        if isinstance(model, FactLookup):
            model.facts, model.history = facts, (*model.history, self._event("patched", self.facts_after))

    def undo(self, model: nn.Module) -> None:
        """The inverse of `apply`, under the same conditions."""
        changes = {key: old for key, old, _ in self.altered}
        try:
            facts = _facts_after(model, changes, self.facts_after, self.facts_before)
            _put(model, tuple(change.reversed() for change in self.changes))
        except CheckpointError as error:
            raise CheckpointError(f"{error}{self._later(model)}") from error
        if isinstance(model, FactLookup):
            latest = model.history[-1:] == (self._event("patched", self.facts_after),)
            undone = self._event("undone", self.facts_before)
            model.facts, model.history = facts, model.history[:-1] if latest else (*model.history, undone)

    def _later(self, model: nn.Module) -> str:
        """A hint at the patches that have been put on this one; empty if there are none."""
        history = model.history if isinstance(model, FactLookup) else ()
        mine = self._event("patched", self.facts_after)
        after = history[history.index(mine) + 1 :] if mine in history else ()
        names = [str(each["by"]) for each in reversed(after) if each["event"] == "patched"]
        return f"; undo first what was put on it later, by {', '.join(names)}" if names else ""

    def _event(self, event: str, facts: str | None) -> dict[str, Any]:
        return {"event": event, "by": self.editor, "altered": len(self.altered), "facts": facts}

    def save(self, path: str | Path, *, allow_nonfinite: bool = False) -> None:
        """Write tensors to `path`, which ends in .safetensors, and all else to a .json file beside it.

        Raises `NonFiniteError` for NaN or infinity among the new tensors unless `allow_nonfinite`,
        `RunFolderError` if the files cannot be written.
        """
        path = _checked(path)
        if not allow_nonfinite:
            require_finite(dict(self._tensors("new")), f"the patch cannot be saved to {path}")
        tensors = dict(self._tensors("old", "new"))
        content = {
            "schema": SCHEMA,
            "editor": self.editor,
            "altered": self.altered,
            "facts_before": self.facts_before,
            "facts_after": self.facts_after,
            "changes": [
                {"module": each.module, "old_config": each.old_config, "new_config": each.new_config}
                for each in self.changes
            ],
            "tensors": {name: tensor_sha256(tensor) for name, tensor in tensors.items()},
        }
        sidecar = content | {"sha256": json_sha256(content)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                write_tensors(temporary, tensors)
                write_text(path.with_suffix(".json"), json.dumps(sidecar, indent=1) + "\n")
        except (OSError, RunFolderError) as error:
            raise RunFolderError(f"the patch cannot be saved to {path}: {error}") from error

    def _tensors(self, *sides: Literal["old", "new"]) -> Iterator[tuple[str, Tensor]]:
        for number, change in enumerate(self.changes):
            for side in sides:
                for name, tensor in getattr(change, side).items():
                    yield f"{number}.{side}.{name}", tensor.contiguous()

    @classmethod
    def load(cls, path: str | Path) -> "Patch":
        """Read a saved patch, on the CPU. Raises `CheckpointError` for damaged or mismatched files."""
        path = _checked(path)
        if not path.is_file():
            raise CheckpointError(f"{path} cannot be read: there is no such file")
        beside = path.with_suffix(".json")
        sidecar = read_json(beside)
        if not isinstance(sidecar, dict) or sidecar.get("schema") != SCHEMA:
            raise CheckpointError(f"{beside} does not describe a patch of schema {SCHEMA}")
        if sidecar.pop("sha256", None) != json_sha256(sidecar):
            raise CheckpointError(f"{beside} is not the one that was saved (SHA-256 differs)")
        try:
            tensors = read_tensors(path, sidecar["tensors"])
            changes = tuple(
                ModuleChange(
                    each["module"],
                    _with_prefix(tensors, f"{number}.old."),
                    _with_prefix(tensors, f"{number}.new."),
                    each["old_config"],
                    each["new_config"],
                )
                for number, each in enumerate(sidecar["changes"])
            )
            altered = tuple((key, old, new) for key, old, new in sidecar["altered"])
            return cls(changes, sidecar["editor"], altered, sidecar["facts_before"], sidecar["facts_after"])
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{beside} does not describe a patch: {error}") from error


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _shapes_of_config(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return _shapes(dict(FactMLP(FactMLPConfig(**config)).named_parameters()))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors agree in type, shape and every bit (NaN included)."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = (tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in (one, other))
    return torch.equal(one, other.to(one.device))


def _facts_after(
    model: nn.Module, changes: dict[str, str], before: str | None, after: str | None
) -> FactSet | None:
    """The model's fact set with `changes`, if it has one and the patch knows of it."""
    facts = model.facts if isinstance(model, FactLookup) else None
    if facts is None or before is None:
        return facts
    if facts.fingerprint != before:
        raise CheckpointError(
            f"the patch does not fit: it expects the facts {before[:12]}, "
            f"the model has {facts.fingerprint[:12]}"
        )
    altered = facts.alter(changes)
    if after is not None and altered.fingerprint != after:
        raise CheckpointError(
            f"the patch contradicts itself: its {counted(len(changes), 'altered fact')} lead to the facts "
            f"{altered.fingerprint[:12]}, it announces {after[:12]}"
        )
    return altered


@torch.no_grad()
def _put(model: nn.Module, changes: tuple[ModuleChange, ...]) -> None:
    """Check all, then write all."""
    for change in changes:
        _check(model, change)
    for change in changes:
        module = model.get_submodule(change.module)
        if change.reshapes:
            module = _reshape(model, change)
        for name, tensor in change.new.items():
            module.get_parameter(name).copy_(tensor)
        if isinstance(module, FactMLP):
            module.report = None  # it measured other weights


def _check(model: nn.Module, change: ModuleChange) -> None:
    try:
        module = model.get_submodule(change.module)
        current = {name: module.get_parameter(name) for name in change.old}
    except AttributeError as error:
        raise CheckpointError(f"the patch does not fit the model: {error}") from error
    for name, old in change.old.items():
        if not same_bits(current[name], old):
            done = name in change.new and same_bits(current[name], change.new[name])
            hint = "; it holds the new values already" if done else ""
            raise CheckpointError(
                f"the patch does not fit: {change.module}.{name} is not the tensor that it replaces{hint}"
            )


def _reshape(model: nn.Module, change: ModuleChange) -> nn.Module:
    """Put an MLP of the new shape where the old one is."""
    assert change.new_config is not None
    place = model.get_submodule(change.module)
    like = next(place.parameters())
    module = FactMLP(FactMLPConfig(**change.new_config), dtype=like.dtype).to(like.device)
    model.set_submodule(change.module, module.train(place.training))
    if isinstance(model, PreTrainedModel):
        model.config.fact_mlp = dict(change.new_config)
    return module


def _checked(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ConfigError(f"the file of a patch ends in .safetensors: found {path}")
    return path


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
