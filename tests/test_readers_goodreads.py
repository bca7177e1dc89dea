"""The reader of the UCSD Goodreads Book Graph, on small invented libraries in its schema."""

import gzip
import json
import os
from pathlib import Path

import pytest

from mlpswap.errors import FactsError
from mlpswap.readers import read_goodreads

AUTHORS = {"1": "Ann Ash", "2": "Ben Birch", "3": "Cleo Cedar"}


def book(title="Moss", author="1", work="10", ratings="5", language="eng", **more):
    """One line of `goodreads_books.json.gz`; `more` replaces fields."""
    return {
        "title": title,
        "title_without_series": title,
        "authors": [{"author_id": author, "role": ""}],
        "work_id": work,
        "ratings_count": ratings,
        "language_code": language,
        **more,
    }


@pytest.fixture
def graph(tmp_path):
    """Write the two files of the book graph and read them."""
    authors, books = tmp_path / "authors.json.gz", tmp_path / "books.json.gz"

    def _graph(*lines, names=AUTHORS, **options):
        people = [{"author_id": number, "name": name} for number, name in names.items()]
        authors.write_bytes(gzip.compress("\n".join(map(json.dumps, people)).encode()))
        raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        books.write_bytes(gzip.compress(b"\n".join(raw) + b"\n"))
        facts, report = read_goodreads(books, authors, **options)
        assert report.rows == len(lines) == report.kept + sum(report.dropped.values())
        return list(facts.pairs()), report

    return _graph


def test_editions_of_a_work_are_merged_into_the_most_rated(graph):
    """Equal ratings: the first; no number of ratings: none."""
    pairs, report = graph(
        book("Moos", ratings="3"),
        book("Moss", ratings="9"),
        book("MOSS", ratings="9"),
        book("Musgo", ratings=""),
    )
    assert pairs == [("Moss", "Ann Ash")]
    assert report.dropped == {"other edition": 3}
    assert sorted(report.lines["other edition"]) == [1, 3, 4]


def test_order_is_by_ratings_as_numbers_then_title(graph):
    pairs, _ = graph(
        book("Beta", work="1", ratings="9"),
        book("Alpha", work="2", ratings="9"),
        book("Gamma", work="3", ratings="100"),
    )
    assert [title for title, _ in pairs] == ["Gamma", "Alpha", "Beta"]


def test_title_without_series_and_first_author_without_a_role(graph):
    people = [{"author_id": "2", "role": "Illustrator"}, {"author_id": "3", "role": ""}]
    pairs, _ = graph(
        book("Moss (Wood, #1)", title_without_series="Moss", authors=people),
        book("Fern", work="11", title_without_series=""),
    )
    assert sorted(pairs) == [("Fern", "Ann Ash"), ("Moss", "Cleo Cedar")]


def test_unusable_lines_are_counted_by_reason(graph):
    pairs, report = graph(
        book(""),
        book(title="  "),
        book(authors=[]),
        book(authors=[{"author_id": "1", "role": "Translator"}]),
        book(author="99"),
        book(work=""),
        b'{"title": "Moss", "auth',
        b'{"title": "M\xf6ss"}',
        b'["a list"]',
        book(ratings="many"),
        book(title="\ud800"),
        book("Fern"),
    )
    assert pairs == [("Fern", "Ann Ash")]
    assert report.lines == {
        "no title": (1, 2, 11),
        "no author": (3, 4),
        "unknown author": (5,),
        "no work id": (6,),
        "undecodable line": (7, 8, 9),
        "undecodable ratings": (10,),
    }


def test_one_title_by_two_authors_keeps_the_most_rated(graph):
    """Probe 4: a contradiction between works, and the merge of works of one author."""
    pairs, report = graph(
        book("Moss", "1", work="1", ratings="5"),
        book("Moss", "2", work="2", ratings="8"),
        book("Moss", "2", work="3", ratings="2"),
    )
    assert pairs == [("Moss", "Ben Birch")]
    assert report.lines == {"contradiction": (1,), "duplicate": (3,)}


def test_one_book_per_author_keeps_the_most_rated(graph):
    lines = [
        book("Moss", "1", work="1", ratings="5"),
        book("Fern", "1", work="2", ratings="8"),
        book("Bark", "2", work="3"),
    ]
    assert len(graph(*lines)[0]) == 3
    pairs, report = graph(*lines, one_book_per_author=True)
    assert pairs == [("Fern", "Ann Ash"), ("Bark", "Ben Birch")]
    assert report.lines == {"value taken": (1,)}


@pytest.mark.parametrize("language", ["eng", "en", "en-US"])
def test_language_takes_its_regions_and_chooses_the_edition(graph, language):
    """The most rated edition may be in another language: the filter comes before the merge."""
    pairs, report = graph(
        book("Moos", ratings="9", language="ger"),
        book("Moss", ratings="5", language="en-GB"),
        book("Fern", work="11", language="eng"),
        book("Bark", work="12", language="enm"),
        book("Leaf", work="13", language=""),
        language=language,
    )
    assert sorted(title for title, _ in pairs) == ["Fern", "Moss"]
    assert report.lines == {"other language": (1, 4, 5)}


def test_min_ratings_and_count(graph):
    lines = [book(f"Moss {i}", work=str(i), ratings=str(i)) for i in range(1, 11)]
    pairs, report = graph(*lines, min_ratings=4, count=3)
    assert [title for title, _ in pairs] == ["Moss 10", "Moss 9", "Moss 8"]
    assert report.dropped == {"too few ratings": 3, "beyond count": 4}
    with pytest.raises(FactsError, match="expected 8 facts, found 7 in 10 rows; 3 dropped: too few ratings"):
        graph(*lines, min_ratings=4, count=8)
    with pytest.raises(FactsError, match="min_ratings must be a whole number of at least 0: found -1"):
        graph(*lines, min_ratings=-1)


def test_nameless_authors_are_noted(graph):
    _, report = graph(book("Moss", "1"), names={**AUTHORS, "4": " "})
    assert report.notes[0].startswith("authors without id or name, ignored: 1 in ")
    assert report.notes[0].endswith("authors.json.gz (line 4)")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda raw: raw[:-40], id="cut"),
        pytest.param(lambda raw: raw[:100] + b"\xff" * 40 + raw[140:], id="overwritten"),
        pytest.param(lambda raw: gzip.decompress(raw), id="not gzip"),
    ],
)
def test_damaged_gzip_file_is_refused_by_name(graph, tmp_path, damage):
    """A cut download must never pass for a small library."""
    lines = [book(f"Moss {i * 7919}", work=str(i), ratings=str(i)) for i in range(200)]
    graph(*lines)
    path = tmp_path / "books.json.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FactsError, match=r"books\.json\.gz, after line \d+: damaged or cut gzip file"):
        read_goodreads(path, tmp_path / "authors.json.gz")


def test_missing_goodreads_file_is_named(tmp_path):
    with pytest.raises(FactsError, match=r"authors\.json\.gz cannot be read: No such file"):
        read_goodreads(tmp_path / "books.json.gz", tmp_path / "authors.json.gz")


@pytest.mark.skipif(
    "MLPSWAP_GOODREADS_SAMPLE" not in os.environ, reason="needs a sample of the real book graph"
)
def test_sample_of_the_real_schema():
    folder = Path(os.environ["MLPSWAP_GOODREADS_SAMPLE"])
    books, authors = folder / "goodreads_books.json.gz", folder / "goodreads_book_authors.json.gz"
    facts, report = read_goodreads(books, authors, one_book_per_author=True, language="eng")
    with gzip.open(books) as file:
        assert report.rows == sum(1 for _ in file)
    assert report.rows == report.kept + sum(report.dropped.values())
    assert len(facts) == len(facts.values) > 1000
