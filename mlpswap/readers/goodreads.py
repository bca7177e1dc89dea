"""The UCSD Goodreads Book Graph."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlpswap.errors import FactsError
from mlpswap.facts import FactSet, check_count, printable, text_fault
from mlpswap.readers.collector import Collector, ReadReport, shown_lines, unreadable


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
    check_count("min_ratings", min_ratings, 0)
    out = Collector(str(books_path), count, on_conflict="first", one_per_value=one_book_per_author)
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
        where = shown_lines(tuple(unusable), len(unusable))
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
    except (OSError, TypeError, ValueError) as error:
        raise unreadable(path, error) from error


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
