"""The packaged facts: one author a book, one book an author, clean text, and the names that examples use."""

import unicodedata

import pytest

from mlpswap.config import packaged_books
from mlpswap.facts import FactSet, printable
from mlpswap.readers import ReadReport, read_csv


@pytest.fixture(scope="module")
def books() -> tuple[FactSet, ReadReport]:
    return read_csv(packaged_books(), "book", "author")


def test_the_file_is_complete_and_clean(books):
    """Every row is a fact: nothing dropped, no note, no warning (edge blanks, names equal up to case)."""
    facts, report = books
    assert len(facts) >= 1024
    assert (report.kept, report.dropped, report.notes, report.warnings) == (report.rows, {}, (), ())


def test_every_author_stands_once(books):
    """Permuting authors then changes nearly every fact, and the majority class is one fact."""
    facts, _ = books
    assert len(facts.values) == len(facts)


@pytest.mark.parametrize("column", ["keys", "values"])
def test_names_are_distinct_to_a_reader(books, column):
    facts, _ = books
    names = getattr(facts, column)
    assert len({name.casefold() for name in names}) == len(names)
    assert [name for name in names if unicodedata.normalize("NFC", name) != name] == []
    assert [name for name in names if printable(name) != name or name != name.strip()] == []


def test_no_title_is_an_author(books):
    """An answer that repeats the title cannot be right by accident."""
    facts, _ = books
    assert {key.casefold() for key in facts.keys} & {value.casefold() for value in facts.values} == set()


@pytest.mark.parametrize(("book", "author"), [("Emma", "Jane Austen"), ("Frankenstein", "Mary Shelley")])
def test_the_small_preset_knows_the_books_of_the_examples(books, book, author):
    facts, _ = books
    assert facts.take(256).value_of(book) == author
