"""Find constructions and editors by name, built in or from any installed package, without importing what is not used.

Both kinds are entry points. A name of this distribution wins over the same name of another one, and a plug-in that
cannot be imported is listed as broken and harms nothing else.
"""

import difflib
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from itertools import count
from typing import Any

from mlpswap.errors import MlpSwapError, RegistryError

logger = logging.getLogger(__name__)

CONSTRUCTIONS = "mlpswap.constructions"
EDITORS = "mlpswap.editors"

_REQUIRED = {CONSTRUCTIONS: ("name", "Config", "build"), EDITORS: ("name", "Config", "edit")}
_NOUN = {CONSTRUCTIONS: "construction", EDITORS: "editor"}
_NAME = re.compile(r"\w[\w.-]*")


@contextmanager
def plug_in(what: str) -> Iterator[None]:
    """Run code that may be anybody's: whatever it raises becomes a `RegistryError` that begins with `what`."""
    try:
        yield
    except MlpSwapError as error:  # it is a sentence already
        raise RegistryError(f"{what}: {error}") from error
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        raise RegistryError(f"{what}: {type(error).__name__}: {text}".removesuffix(": ")) from error


def labels_of(names: Sequence[str]) -> list[str]:
    """The names, each further one of a kind with its number: rome, swap, rome-2. All are distinct."""
    labels: list[str] = []
    taken, seen = {name.lower() for name in names}, set()  # files may not tell capitals apart
    for name in names:
        label = name
        if name in seen:
            label = next(each for number in count(2) if (each := f"{name}-{number}").lower() not in taken)
        seen.add(name)
        taken.add(label.lower())
        labels.append(label)
    return labels


@dataclass(frozen=True)
class Entry:
    """One registered name. `origin` is "built-in" or "plugin"; `shadowed` names plug-ins that lost to it."""

    name: str
    group: str
    origin: str
    distribution: str
    version: str
    point: EntryPoint
    shadowed: tuple[str, ...] = ()

    def load(self) -> Any:
        """Import the class, check its members and return an instance. Raises `RegistryError`."""
        what = f"{_NOUN[self.group]} '{self.name}' of {self.distribution}"
        if not _NAME.fullmatch(self.name):  # it becomes part of file names
            raise RegistryError(f"{what}: expected a name of letters, digits, '_', '.' and '-'")
        with plug_in(f"{what} {self.version} cannot be loaded"):
            thing = self.point.load()
            thing = thing() if isinstance(thing, type) else thing
            missing = [member for member in _REQUIRED[self.group] if not hasattr(thing, member)]
        if missing:
            raise RegistryError(f"{what} lacks {', '.join(missing)}")
        if not (isinstance(thing.Config, type) and is_dataclass(thing.Config)):
            raise RegistryError(f"{what}: expected a dataclass as its Config, found {thing.Config!r}")
        return thing

    def problem(self) -> str | None:
        """Why the entry cannot be used, or None."""
        try:
            self.load()
        except RegistryError as error:
            return str(error)
        return None


@cache
def _entries(group: str) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    shadowed: dict[str, list[str]] = {}
    points = sorted(entry_points(group=group), key=lambda point: (not _is_built_in(point), point.name))
    for point in points:
        dist = point.dist
        distribution, version = (dist.name, dist.version) if dist else ("unknown", "?")
        if point.name in found:
            if found[point.name].distribution != distribution:
                shadowed.setdefault(point.name, []).append(distribution)
                logger.warning(
                    "%s '%s' of %r is ignored: %s has that name already",
                    _NOUN[group], point.name, distribution, found[point.name].distribution,
                )  # fmt: skip
            continue
        origin = "built-in" if _is_built_in(point) else "plugin"
        found[point.name] = Entry(point.name, group, origin, distribution, version, point)
    for name, losers in shadowed.items():
        old = found[name]
        found[name] = Entry(name, group, old.origin, old.distribution, old.version, old.point, tuple(losers))
    return found


def _is_built_in(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == "mlpswap"


def entries(group: str) -> Iterator[Entry]:
    """All registered entries of `group`, built-in first."""
    yield from _entries(group).values()


def get(group: str, name: str) -> Any:
    """The construction or editor called `name`. Raises `RegistryError` with near names."""
    known = _entries(group)
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise RegistryError(f"no {_NOUN[group]} '{name}': there are {', '.join(sorted(known))}{hint}")
    return known[name].load()
