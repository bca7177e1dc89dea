"""What every reader of fact files shares: the collector of facts and the report that accounts for every row."""

import os
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mlpswap.errors import FactsError
from mlpswap.facts import FactSet, check_count, printable

OnConflict = Literal["error", "first"]

LINES_KEPT = 20
LINES_SHOWN = 5

# Reasons of an error: a faulty row, and a key with a second value.
FAULT, CONFLICT = "fault", "conflict"
# Reasons for which a sound row is not kept; a faulty row's reason is the fault.
DUPLICATE = "duplicate"
CONTRADICTION = "contradiction"
VALUE_TAKEN = "value taken"
BEYOND_COUNT = "beyond count"
TOO_FEW = "fewer than count"  # of the whole file


@dataclass(frozen=True)
class ReadReport:
    """What a reader did with each row of `source`; `rows == kept + sum(dropped.values())`.

    dropped: number of rows by reason; lines: the first 20 lines of the file, counted from 1, where such rows
    start; notes: what was ignored; warnings: what the user should look at.
    """

    source: str
    rows: int
    kept: int
    dropped: dict[str, int]
    lines: dict[str, tuple[int, ...]]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def summary(self) -> str:
        """The report as terminal-safe text, one line for each reason, note and warning."""
        dropped = sum(self.dropped.values())
        text = [f"{printable(self.source)}: {self.rows} rows, {self.kept} kept, {dropped} dropped"]
        for reason, n in self.dropped.items():
            text.append(f"  dropped {n}: {reason} ({shown_lines(self.lines[reason], n)})")
        text += [f"  note: {note}" for note in self.notes]
        text += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(text)


@dataclass
class Collector:
    """Gathers the facts of one file in order, and the reason for every row that is not among them."""

    source: str
    count: int | None = None
    on_conflict: OnConflict = "error"
    one_per_value: bool = False
    advice: Mapping[str, str] = field(default_factory=dict)  # reason -> the option that changes it
    rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    lines: dict[str, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    # Every sound row is remembered, kept or not: the whole file must be free of contradictions.
    _seen: dict[str, tuple[str, int]] = field(default_factory=dict)  # key -> value, line
    _taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.count is not None:
            check_count("count", self.count, 1)

    def drop(self, reason: str, line: int) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        lines = self.lines.setdefault(reason, [])
        if len(lines) < LINES_KEPT:
            lines.append(line)

    def add(self, key: str, value: str, line: int) -> None:
        """Keep a sound row, or drop it with its reason. A contradiction is refused unless the first wins."""
        old_value, old_line = self._seen.setdefault(key, (value, line))
        if old_line != line and old_value == value:
            self.drop(DUPLICATE, line)
        elif old_line != line:
            if self.on_conflict == "error":
                raise FactsError(
                    f"{printable(self.source)}, line {line}: '{printable(key)}' has the value "
                    f"'{printable(value)}', but '{printable(old_value)}' on line {old_line}"
                    f"{self.hint(CONFLICT)}"
                )
            self.drop(CONTRADICTION, line)
        elif self.one_per_value and value in self._taken:
            self.drop(VALUE_TAKEN, line)
        elif self.count is not None and len(self.facts) == self.count:
            self.drop(BEYOND_COUNT, line)
        else:
            self._taken.add(value)
            self.facts[key] = value

    def hint(self, reason: str) -> str:
        """The end of an error for this reason; empty without advice."""
        return "".join(f"; {text}" for text in self._advice(reason))

    def finish(self) -> tuple[FactSet, ReadReport]:
        kept = len(self.facts)
        if kept < (self.count or 1):
            reasons = "".join(f"; {n} dropped: {reason}" for reason, n in self.dropped.items())
            advice = self._advice(*self.dropped, *([TOO_FEW] if kept else []))
            raise FactsError(
                f"{printable(self.source)}: expected {self.count or 'some'} facts, found {kept} "
                f"in {self.rows} rows{reasons}{''.join(f'; {text}' for text in advice)}"
            )
        self.notes += self._advice(*self.dropped)
        if DUPLICATE in self.dropped:
            self.notes.append(f"repeated facts, merged: {self.dropped[DUPLICATE]}")
        facts = FactSet.from_pairs(self.facts.items())
        lines = {reason: tuple(lines) for reason, lines in self.lines.items()}
        notes, warnings = tuple(self.notes), tuple(_warnings(facts))
        return facts, ReadReport(self.source, self.rows, kept, self.dropped, lines, notes, warnings)

    def _advice(self, *reasons: str) -> list[str]:
        kept = len(self.facts)
        return [self.advice[reason].format(kept=kept) for reason in reasons if reason in self.advice]


def _warnings(facts: FactSet) -> Iterator[str]:
    for noun, names in (("keys", facts.keys), ("values", facts.values)):
        edged = [name for name in names if name != name.strip()]
        if edged:
            yield f"{noun} that begin or end with a blank: {len(edged)}, such as '{printable(edged[0])}'"
        first: dict[str, str] = {}
        twins = []
        for name in names:
            folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
            if (twin := first.setdefault(folded, name)) is not name:
                twins.append((twin, name))
        if twins:
            a, b = map(printable, twins[0])
            yield f"{noun} equal to another up to case or Unicode form: {len(twins)}, such as '{b}' and '{a}'"


def shown_lines(lines: tuple[int, ...], total: int) -> str:
    shown = lines[:LINES_SHOWN]
    more = f" and {total - len(shown)} more" if total > len(shown) else ""
    return f"line{'s' if total > 1 else ''} {', '.join(map(str, shown))}{more}"


def unreadable(path: str | Path, error: Exception) -> FactsError:
    reason = getattr(error, "strerror", None) or str(error)
    return FactsError(f"{printable(str(path))} cannot be read: {reason} (working directory: {os.getcwd()})")
