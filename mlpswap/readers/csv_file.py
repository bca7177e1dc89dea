"""Any CSV file with two named columns."""

import csv
import difflib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args

from mlpswap.errors import FactsError
from mlpswap.facts import FactSet, check_text, printable, text_fault
from mlpswap.readers.collector import (
    CONFLICT,
    FAULT,
    TOO_FEW,
    VALUE_TAKEN,
    Collector,
    OnConflict,
    ReadReport,
    unreadable,
)

Policy = Literal["error", "skip"]
ADVICE = {
    FAULT: "facts.policy=skip drops such rows",
    CONFLICT: "facts.on_conflict=first keeps the first",
    VALUE_TAKEN: "facts.one_per_value=false keeps every key of a value",
    TOO_FEW: "facts.count={kept} takes all there are",
}


def read_csv(
    path: str | Path,
    key: str,
    value: str,
    *,
    count: int | None = None,
    policy: Policy = "error",
    on_conflict: OnConflict = "error",
    one_per_value: bool = False,
    advice: Mapping[str, str] = ADVICE,
) -> tuple[FactSet, ReadReport]:
    """Facts from the columns called `key` and `value` of a UTF-8 CSV file with a header; others are ignored.

    count: the first so many facts; `FactsError` if there are fewer. policy: a row with an empty or blank
    cell, or with too few or too many fields, is an "error", or "skip" counts it. on_conflict: a key with a
    second value is an "error", or the "first" row wins. one_per_value: only the first key of each value. advice: what an
    error suggests, by its reason.
    The whole file is read and checked, also beyond `count`.
    """
    for name, found, known in (("policy", policy, Policy), ("on_conflict", on_conflict, OnConflict)):
        if found not in get_args(known):
            raise FactsError(f"{name} must be one of {', '.join(get_args(known))}: found '{found}'")
    check_text("key", key)
    check_text("value", value)
    if key == value:
        raise FactsError(f"key and value must be two columns: found '{printable(key)}' for both")
    where = printable(str(path))
    out = Collector(str(path), count, on_conflict, one_per_value, advice)
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
                f"'{printable(key)}' and '{printable(value)}'{out.hint(FAULT)}"
            )
    if empty_lines:
        out.notes.append(f"empty lines, ignored: {empty_lines}")
    return out.finish()


def _text(path: str | Path) -> str:
    """The file's text without its byte order mark (the codec `utf-8-sig` would miscount the offset)."""
    where = printable(str(path))
    try:
        raw = Path(path).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        raise unreadable(path, error) from error
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
            expected = "every quote to be closed and followed by a comma or the line's end"
            if "field larger" in str(error):
                expected = f"fields of at most {csv.field_size_limit():,} characters"
            raise FactsError(
                f"{where}, line {line}: not a complete CSV record ({error}); expected {expected}"
            ) from error


def _column(where: str, header: list[str], name: str) -> int:
    if header.count(name) != 1:
        columns = ", ".join(f"'{printable(column)}'" for column in header) or "an empty file"
        near = difflib.get_close_matches(name, header, n=1)
        hint = f"; did you mean '{printable(near[0])}'?" if near and name not in header else ""
        if len(header) == 1 and (found := next((each for each in ";\t|" if each in header[0]), None)):
            hint = f"; the columns seem to be separated by {found!r}, where a comma is expected"
        raise FactsError(f"{where}, header: expected one column '{printable(name)}', found {columns}{hint}")
    return header.index(name)


def _row_fault(row: list[str], width: int, columns: dict[str, int]) -> str | None:
    if len(row) != width:
        return "too few fields" if len(row) < width else "too many fields"
    for noun, column in columns.items():
        if fault := text_fault(row[column]):
            return f"{fault} {noun}"
    return None
