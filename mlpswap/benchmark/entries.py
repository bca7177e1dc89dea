"""The editors that a configuration enters, each with the settings that it is tried at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from mlpswap.benchmark.config import ENTRY_KEYS
from mlpswap.config import build_options
from mlpswap.errors import ConfigError
from mlpswap.registry import EDITORS, get, labels_of, plug_in


@dataclass(frozen=True)
class Contender:
    """An editor by its label in the tables, and the settings that it is tried at."""

    label: str
    editor: Any
    settings: list[Any]


def contenders(entries: Sequence[Mapping[str, Any]]) -> list[Contender]:
    """The editors of a configuration by their labels, otherwise by their names; the second of one name gets a number.

    Raises `RegistryError` for an unknown editor and `ConfigError` for a bad option.
    """
    labels = labels_of([str(entry.get("label", entry["name"])) for entry in entries])
    return [Contender(label, *settings_of(entry)) for label, entry in zip(labels, entries, strict=True)]


def settings_of(entry: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """(editor, its settings): one from the options in the configuration, or a grid."""
    name = str(entry["name"])
    editor = get(EDITORS, name)
    where = f"editor {name}"
    points = [{key: value for key, value in entry.items() if key not in ENTRY_KEYS}]
    if isinstance(grid := entry.get("grid"), Mapping):
        points = [points[0] | dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    elif grid is not None:
        if not hasattr(editor, "grid"):
            raise ConfigError(f"{where} has no grid; give its options instead")
        with plug_in(f"{where}, grid {grid}"):
            points = list(editor.grid(str(grid)))
            if not points:
                raise ConfigError("expected at least one setting, found none")
    return editor, [build_options(editor.Config, point, where) for point in points]
