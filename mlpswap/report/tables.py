"""The parts that reports are put together from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup


@dataclass(frozen=True)
class Column:
    """A heading. `metric` is the name under which the glossary explains it."""

    heading: str
    metric: str | None = None
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of finished texts; the first cell of a row is its heading."""

    caption: str
    columns: list[Column]
    rows: list[list[str | Markup]]


@dataclass(frozen=True)
class Tile:
    """A headline figure, what it means in a sentence, and its name."""

    label: str
    value: str
    note: str
    metric: str


def glossary(
    definitions: Mapping[str, str], labels: Mapping[str, str], shown: Iterable[str] | Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """(name, label, definition) of the metrics that a report shows, in the order of their definitions."""
    shown = set(shown)
    return [(name, labels.get(name, ""), text) for name, text in definitions.items() if name in shown]
