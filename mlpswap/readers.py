"""Strict readers of fact files: any CSV file with two named columns, and the UCSD Goodreads Book Graph.

Nothing is lost silently: each reader returns the facts and a `ReadReport` that accounts for every row. Keys
and values keep their exact text; "NA" and "None" are text like any other.
"""

import csv
import difflib
import gzip
import io
import json
import os
import re
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from mlpswap.errors import FactsError
from mlpswap.facts import FactSet, printable, text_fault

Policy = Literal["error", "skip"]
OnConflict = Literal["error", "first"]

LINES_KEPT = 20
LINES_SHOWN = 5

# Reasons for which a sound row is not kept; a faulty row's reason is the fault.
DUPLICATE = "duplicate"
CONTRADICTION = "contradiction"
VALUE_TAKEN = "value taken"
BEYOND_COUNT = "beyond count"


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
            text.append(f"  dropped {n}: {reason} ({_lines(self.lines[reason], n)})")
        text += [f"  note: {note}" for note in self.notes]
        text += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(text)


@dataclass
class _Collector:
    """Gathers the facts of one file in order, and the reason for every row that is not among them."""

    source: str
    count: int | None = None
    on_conflict: OnConflict = "error"
    one_per_value: bool = False
    rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    lines: dict[str, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    # Every sound row is remembered, kept or not: the whole file must be free of contradictions.
    _seen: dict[str, tuple[str, int]] = field(default_factory=dict)  # key -> value, line
    _taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise FactsError(f"count must be positive: found {self.count}")

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
                    f"'{printable(value)}', but '{printable(old_value)}' on line {old_line}; "
                    "on_conflict=first keeps the first"
                )
            self.drop(CONTRADICTION, line)
        elif self.one_per_value and value in self._taken:
            self.drop(VALUE_TAKEN, line)
        elif self.count is not None and len(self.facts) == self.count:
            self.drop(BEYOND_COUNT, line)
        else:
            self._taken.add(value)
            self.facts[key] = value

    def finish(self) -> tuple[FactSet, ReadReport]:
        kept = len(self.facts)
        if kept < (self.count or 1):
            reasons = "".join(f"; {n} dropped: {reason}" for reason, n in self.dropped.items())
            raise FactsError(
                f"{printable(self.source)}: expected {self.count or 'some'} facts, found {kept} "
                f"in {self.rows} rows{reasons}"
            )
        if DUPLICATE in self.dropped:
            self.notes.append(f"repeated facts, merged: {self.dropped[DUPLICATE]}")
        facts = FactSet.from_pairs(self.facts.items())
        lines = {reason: tuple(lines) for reason, lines in self.lines.items()}
        notes, warnings = tuple(self.notes), tuple(_warnings(facts))
        return facts, ReadReport(self.source, self.rows, kept, self.dropped, lines, notes, warnings)


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


def _lines(lines: tuple[int, ...], total: int) -> str:
    shown = lines[:LINES_SHOWN]
    more = f" and {total - len(shown)} more" if total > len(shown) else ""
    return f"line{'s' if total > 1 else ''} {', '.join(map(str, shown))}{more}"


# ---- CSV ----


def read_csv(
    path: str | Path,
    key: str,
    value: str,
    *,
    count: int | None = None,
    policy: Policy = "error",
    on_conflict: OnConflict = "error",
    one_per_value: bool = False,
) -> tuple[FactSet, ReadReport]:
    """Facts from the columns called `key` and `value` of a UTF-8 CSV file with a header; others are ignored.

    count: the first so many facts; `FactsError` if there are fewer. policy: a row with an empty or blank
    cell, or with too few or too many fields, is an "error", or "skip" counts it. on_conflict: a key with a
    second value is an "error", or the "first" row wins. one_per_value: only the first key of each value.
    The whole file is read and checked, also beyond `count`.
    """
    for name, found, known in (("policy", policy, Policy), ("on_conflict", on_conflict, OnConflict)):
        if found not in get_args(known):
            raise FactsError(f"{name} must be one of {', '.join(get_args(known))}: found '{found}'")
    if key == value:
        raise FactsError(f"key and value must be two columns: found '{printable(key)}' for both")
    where = printable(str(path))
    out = _Collector(str(path), count, on_conflict, one_per_value)
    text = _text(path)
    if not text.endswith(("\n", "\r")):
        out.notes.append("the last line has no line end: whether the file is complete cannot be told")
    records = _records(where, text)
    header = next((row for row, _ in records if row), [])
    columns = {"key": _column(where, header, key), "value": _column(where, header, value)}
    others = [
        name or f"column {i + 1} (unnamed)" for i, name in enumerate(header) if name not in (key, value)
    ]
    if others:
        out.notes.append(f"ignored: {', '.join(map(printable, others))}")
    empty_lines = 0
    for row, line in records:
        if not row:
            empty_lines += 1
            continue
        out.rows += 1
        fault = _row_fault(row, len(header), columns)
        if fault is None:
            out.add(row[columns["key"]], row[columns["value"]], line)
        elif policy == "skip":
            out.drop(fault, line)
        else:
            raise FactsError(
                f"{where}, line {line}: {fault}; expected {len(header)} fields with text in "
                f"'{printable(key)}' and '{printable(value)}'; policy=skip drops such rows"
            )
    if empty_lines:
        out.notes.append(f"empty lines, ignored: {empty_lines}")
    return out.finish()


def _text(path: str | Path) -> str:
    """The file's text without its byte order mark (the codec `utf-8-sig` would miscount the offset)."""
    where = printable(str(path))
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        hint = "save the file as UTF-8"
        raise FactsError(f"{where}, line {line}: not UTF-8 at byte {error.start}; {hint}") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise FactsError(f"{where}, line {line}: a NUL character; expected text")
    return text.removeprefix("\ufeff")


def _records(where: str, text: str) -> Iterator[tuple[list[str], int]]:
    """(fields, line where the record starts) of each record, in strict CSV."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            yield next(reader), line
        except StopIteration:
            return
        except csv.Error as error:
            raise FactsError(
                f"{where}, line {line}: not a complete CSV record ({error}); expected every quote to be "
                "closed and followed by a comma or the line's end"
            ) from error


def _column(where: str, header: list[str], name: str) -> int:
    if header.count(name) != 1:
        columns = ", ".join(f"'{printable(column)}'" for column in header) or "an empty file"
        near = difflib.get_close_matches(name, header, n=1)
        hint = f"; did you mean '{printable(near[0])}'?" if near and name not in header else ""
        raise FactsError(f"{where}, header: expected one column '{printable(name)}', found {columns}{hint}")
    return header.index(name)


def _row_fault(row: list[str], width: int, columns: dict[str, int]) -> str | None:
    if len(row) != width:
        return "too few fields" if len(row) < width else "too many fields"
    for noun, column in columns.items():
        if fault := text_fault(row[column]):
            return f"{fault} {noun}"
    return None


def _unreadable(path: str | Path, error: OSError) -> FactsError:
    reason = error.strerror or str(error)
    return FactsError(f"{printable(str(path))} cannot be read: {reason} (working directory: {os.getcwd()})")


# ---- UCSD Goodreads Book Graph ----


def read_goodreads(
    books_path: str | Path,
    authors_path: str | Path,
    *,
    one_book_per_author: bool = False,
    min_ratings: int = 0,
    language: str | None = None,
    count: int | None = None,
) -> tuple[FactSet, ReadReport]:
    """Title -> author from `goodreads_books.json.gz` and `goodreads_book_authors.json.gz`, most rated first.

    The author is the first one without a role; authors are told apart by name. The title is
    `title_without_series`, or `title` where that is missing. Of the editions of one work (`work_id`), and
    then of the works of one title, the most rated is kept (ties: the first edition; the title, then the
    author, first in order).

    one_book_per_author: only the most rated book of each. min_ratings: least `ratings_count` of an edition,
    where none means 0. language: what `language_code` must say before its hyphen; "eng" and "en" are the
    same, so that "eng" takes "eng", "en-US" and "en-GB", while an edition without a language is dropped.
    Both are asked of each edition before editions are merged. count: the first so many facts; `FactsError`
    if there are fewer.

    Memory: the authors' names and one small record for each work. A line that cannot be used is counted
    with its reason; a file that is cut or damaged raises `FactsError`.
    """
    if min_ratings < 0:
        raise FactsError(f"min_ratings must not be negative: found {min_ratings}")
    out = _Collector(str(books_path), count, on_conflict="first", one_per_value=one_book_per_author)
    names = _author_names(authors_path, out.notes)
    wanted = None if language is None else _main_language(language)
    works: dict[str, tuple[int, str, str, int]] = {}  # work id -> ratings, title, author, line
    for line, book in _json_lines(books_path):
        out.rows += 1
        edition = _edition(book, names)
        if isinstance(edition, str):
            out.drop(edition, line)
            continue
        work, ratings, title, author = edition
        if wanted is not None and _main_language(str(book.get("language_code") or "")) != wanted:
            out.drop("other language", line)
        elif ratings < min_ratings:
            out.drop("too few ratings", line)
        elif work in works and works[work][0] >= ratings:
            out.drop("other edition", line)
        else:
            if work in works:
                out.drop("other edition", works[work][3])
            works[work] = (ratings, title, author, line)
    for _, title, author, line in sorted(works.values(), key=lambda record: (-record[0], record[1:])):
        out.add(title, author, line)
    return out.finish()


def _edition(book: Any, names: dict[str, str]) -> tuple[str, int, str, str] | str:
    """(work id, ratings, title, author) of one line, or the reason why it cannot be used."""
    if not isinstance(book, dict):
        return "undecodable line"
    title = _text_of(book, "title_without_series") or _text_of(book, "title")
    if title is None:
        return "no title"
    people = book.get("authors")
    author_id = _first_author(people) if isinstance(people, list) else None
    if author_id is None:
        return "no author"
    if author_id not in names:
        return "unknown author"
    work = _text_of(book, "work_id")
    if work is None:
        return "no work id"
    ratings = book.get("ratings_count") or "0"
    if not re.fullmatch("[0-9]{1,18}", str(ratings)):
        return "undecodable ratings"
    return work, int(ratings), title, names[author_id]


def _first_author(people: list[Any]) -> str | None:
    for person in people:
        if isinstance(person, dict) and not person.get("role"):
            return _text_of(person, "author_id")
    return None


def _text_of(record: dict[str, Any], name: str) -> str | None:
    found = record.get(name)
    return found if isinstance(found, str) and text_fault(found) is None else None


def _main_language(code: str) -> str:
    main = code.partition("-")[0]
    return "eng" if main == "en" else main


def _author_names(path: str | Path, notes: list[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    unusable: list[int] = []
    for line, author in _json_lines(path):
        author_id = _text_of(author, "author_id") if isinstance(author, dict) else None
        name = _text_of(author, "name") if isinstance(author, dict) else None
        if author_id is None or name is None:
            unusable.append(line)
        else:
            names.setdefault(author_id, name)
    if unusable:
        where = _lines(tuple(unusable), len(unusable))
        notes.append(
            f"authors without id or name, ignored: {len(unusable)} in {printable(str(path))} ({where})"
        )
    return names


def _json_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """(line, object) of a gzip file with one JSON object a line, streamed; None where a line is not JSON."""
    line = 0
    try:
        with gzip.open(path, "rb") as file:
            for line, raw in enumerate(file, start=1):
                yield line, _json(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FactsError(
            f"{printable(str(path))}, after line {line}: damaged or cut gzip file ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
