"""`mlpswap list`: what there is to choose from, plug-ins and broken ones included."""

import sys
from typing import Any

from mlpswap.commands.config import LISTS, ListConfig
from mlpswap.commands.validate import check
from mlpswap.config import keys_of, packaged_presets
from mlpswap.errors import ConfigError
from mlpswap.facts import printable
from mlpswap.registry import CONSTRUCTIONS, EDITORS, entries, get


def list_things(config: ListConfig, **_: Any) -> None:
    kinds = {
        "constructions": _constructions,
        "editors": _editors,
        "methods": _methods,
        "presets": _presets,
        "metrics": _metrics,
    }
    kinds.get(config.what, lambda: _options(config.what))()
    if config.what in ("constructions", "editors", "methods"):
        hint = f"`mlpswap list NAME` shows the options of one; other lists: {', '.join(LISTS)}"
        print(hint, file=sys.stderr)  # the list itself may go into a pipe


def _registered(group: str) -> None:
    for entry in entries(group):
        problem = entry.problem()
        text = f"BROKEN: {problem}" if problem else _first_paragraph(type(entry.load()).__doc__)
        print(printable(f"{entry.name:12} [{entry.origin}, {entry.distribution} {entry.version}] {text}"))
        for other in entry.shadowed:
            print(printable(f"{'':12} ({other} offers the same name and is ignored)"))


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def _constructions() -> None:
    _registered(CONSTRUCTIONS)


def _editors() -> None:
    _registered(EDITORS)


def _methods() -> None:
    from mlpswap.sequences.methods import METHODS, get_method

    for name in METHODS:
        method = get_method(name)
        print(f"{name:16} [{method.column}; {method.source}] {_first_paragraph(type(method).__doc__)}")


def _options(name: str) -> None:
    """Of the construction, the editor and the method that are called `name`."""
    from mlpswap.sequences.methods import METHODS, get_method

    found: dict[str, Any] = {}
    for noun, group in (("construction", CONSTRUCTIONS), ("editor", EDITORS)):
        if name in [entry.name for entry in entries(group)]:
            found[noun] = get(group, name)
    if name in METHODS:
        found["method"] = get_method(name)
    if not found:
        raise ConfigError(
            f"what = {name}: expected one of {', '.join(LISTS)}, or a name that one of these shows"
        )
    for noun, thing in found.items():
        print(f"options of the {noun} {name}, with defaults:")
        for line in keys_of(thing.Config):
            print(printable(line))


def _presets() -> None:
    for path in packaged_presets():
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = " ".join(line[2:] for line in lines if line.startswith("# "))
        kind, _ = check(path)
        print(f"{path.stem:16} [{kind}] {comment}")


def _metrics() -> None:
    from mlpswap.benchmark.retention import DEFINITIONS as SEQUENTIAL
    from mlpswap.editing.evaluation import DEFINITIONS as EDITING
    from mlpswap.metrics import DEFINITIONS

    for name, text in (DEFINITIONS | EDITING | SEQUENTIAL).items():
        print(f"{name:28} {text}")
