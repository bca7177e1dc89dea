"""Strict readers: nothing lost silently, nothing mangled, every refusal with its file and line."""

import csv
import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlpswap.errors import FactsError
from mlpswap.facts import text_fault
from mlpswap.readers import read_csv, read_goodreads

names = st.text(min_size=1, max_size=15).filter(lambda text: text_fault(text) is None)


@pytest.fixture
def write(tmp_path):
    """Write the text or bytes of a CSV file and give its path."""

    def _write(content: str | bytes) -> Path:
        path = tmp_path / "books.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return _write


def read(path, **options):
    facts, report = read_csv(path, "book", "author", **options)
    assert report.rows == report.kept + sum(report.dropped.values())
    assert report.kept == len(facts)
    return facts, report


# ---- CSV ----

AWKWARD = (
    "\ufeff,book,author\r\n"
    '0,"Emma, or not",Jane Austen\r\n'
    '1,"The ""Tempest""",William Shakespeare\r\n'
    '2,"Two\nlines",Émile Zola\r\n'
    "3,NA,None\r\n"
    '4,"",Nobody\r\n'
)


def test_awkward_but_sound_file_is_read_whole(write):
    """Probe 1, and "NA" and "None" stay text."""
    facts, report = read(write(AWKWARD.rpartition("4,")[0]))
    assert list(facts.pairs()) == [
        ("Emma, or not", "Jane Austen"),
        ('The "Tempest"', "William Shakespeare"),
        ("Two\nlines", "Émile Zola"),
        ("NA", "None"),
    ]
    assert (report.rows, report.dropped, report.warnings) == (4, {}, ())
    assert report.notes == ("ignored: column 1 (unnamed)",)


def test_line_numbers_count_the_lines_of_the_file(write):
    """A record with a line break inside moves what follows: the empty title is on line 7."""
    with pytest.raises(FactsError, match=r"books\.csv, line 7: empty key; expected 3 fields with text"):
        read(write(AWKWARD))


def test_latin_1_is_refused_at_its_byte(write):
    """Probe 2: the byte counts from the file's start, mark included."""
    content = b"\xef\xbb\xbfbook,author\r\nTherese Raquin,\xc9mile Zola\r\n"
    with pytest.raises(FactsError, match=r"books\.csv, line 2: not UTF-8 at byte 31; save the file as UTF-8"):
        read(write(content))
    assert content[31] == 0xC9


def test_file_cut_in_a_quoted_field_is_refused(write):
    """Probe 2: never a short read called success."""
    with pytest.raises(FactsError, match=r"books\.csv, line 3: not a complete CSV record"):
        read(write('book,author\nEmma,Jane Austen\n"The ""Tem\npest'))


def test_text_after_a_closing_quote_is_refused(write):
    with pytest.raises(FactsError, match="line 2: not a complete CSV record"):
        read(write('book,author\n"Emma"a,Jane Austen\n'))


def test_missing_line_end_is_noted(write):
    """A file cut between quotes can look whole: the reader cannot tell, and says so."""
    facts, report = read(write("book,author\nEmma,Jane Au"))
    assert facts.value_of("Emma") == "Jane Au"
    assert "no line end" in report.notes[0]


FAULTY = """book,author
Emma,Jane Austen
Hamlet,
   ,Somebody
Ulysses
Dubliners,James Joyce,1914
,Nobody
Middlemarch," "
Othello,William Shakespeare
"""


def test_faulty_rows_are_an_error_by_default(write):
    """Probe 3."""
    with pytest.raises(FactsError, match=r"line 3: empty value; .* policy=skip drops such rows"):
        read(write(FAULTY))


def test_faulty_rows_are_counted_with_their_lines(write):
    """Probe 3: policy skip."""
    facts, report = read(write(FAULTY), policy="skip")
    assert facts.keys == ("Emma", "Othello")
    assert report.lines == {
        "empty value": (3,),
        "blank key": (4,),
        "too few fields": (5,),
        "too many fields": (6,),
        "empty key": (7,),
        "blank value": (8,),
    }
    assert "dropped 1: too few fields (line 5)" in report.summary()


def test_only_the_first_lines_are_kept_but_all_are_counted(write):
    rows = "".join(f"book {i},\n" for i in range(50))
    _, report = read(write(f"book,author\nEmma,Jane Austen\n{rows}"), policy="skip")
    assert report.dropped == {"empty value": 50}
    assert report.lines["empty value"] == tuple(range(3, 23))
    assert "dropped 50: empty value (lines 3, 4, 5, 6, 7 and 45 more)" in report.summary()


def test_repeated_fact_is_merged_with_a_note(write):
    """Probe 4, first part."""
    facts, report = read(write("book,author\nEmma,Jane Austen\nHamlet,Shakespeare\nEmma,Jane Austen\n"))
    assert facts.keys == ("Emma", "Hamlet")
    assert report.lines == {"duplicate": (4,)}
    assert report.notes == ("repeated facts, merged: 1",)


CONTRADICTORY = "book,author\nEmma,Jane Austen\nEmma,Alexander McCall Smith\n"


def test_contradiction_is_refused(write):
    """Probe 4, second part."""
    with pytest.raises(FactsError, match="line 3: 'Emma' has the value 'Alexander.*'Jane Austen' on line 2"):
        read(write(CONTRADICTORY))


def test_first_of_a_contradiction_may_win(write):
    facts, report = read(write(CONTRADICTORY), on_conflict="first")
    assert list(facts.pairs()) == [("Emma", "Jane Austen")]
    assert report.lines == {"contradiction": (3,)}


def test_contradiction_with_a_dropped_row_is_one_too(write):
    """Rows beyond the count or without a free author still speak of their book."""
    text = "book,author\nEmma,Jane Austen\nPersuasion,Jane Austen\nPersuasion,Mary Shelley\n"
    for options in ({"count": 1}, {"one_per_value": True}):
        with pytest.raises(FactsError, match="line 4: 'Persuasion' has the value 'Mary Shelley'"):
            read(write(text), **options)


def test_titles_equal_up_to_case_or_form_stay_apart_with_a_warning(write):
    """Probe 4, third part: the second pair differs only in Unicode form."""
    facts, report = read(write("book,author\nEMMA,A\nEmma,B\nCaf\u00e9,C\nCafe\u0301,D\nOther,a\n"))
    assert len(facts) == 5
    assert report.warnings == (
        "keys equal to another up to case or Unicode form: 2, such as 'Emma' and 'EMMA'",
        "values equal to another up to case or Unicode form: 1, such as 'a' and 'A'",
    )


def test_edge_blanks_are_kept_with_a_warning(write):
    facts, report = read(write("book,author\n Emma,Jane Austen\nHamlet,Shakespeare\u00a0\n"))
    assert list(facts.pairs()) == [(" Emma", "Jane Austen"), ("Hamlet", "Shakespeare\u00a0")]
    assert [warning.split(",")[0] for warning in report.warnings] == [
        "keys that begin or end with a blank: 1",
        "values that begin or end with a blank: 1",
    ]


def test_many_books_of_one_author_are_fine_unless_one_is_asked_for(write):
    """Probe 5: many-to-one, or the first book of each author."""
    path = write("book,author\nEmma,Jane Austen\nPersuasion,Jane Austen\nHamlet,Shakespeare\n")
    assert read(path)[0].mapping == (0, 0, 1)
    facts, report = read(path, one_per_value=True)
    assert facts.keys == ("Emma", "Hamlet")
    assert report.lines == {"value taken": (3,)}


def test_count_takes_the_first_that_are_kept(write):
    path = write("book,author\nEmma,Jane Austen\nX,\nHamlet,Shakespeare\nUlysses,James Joyce\n")
    facts, report = read(path, policy="skip", count=2)
    assert facts.keys == ("Emma", "Hamlet")
    assert report.dropped == {"empty value": 1, "beyond count": 1}
    with pytest.raises(FactsError, match="expected 4 facts, found 3 in 4 rows; 1 dropped: empty value"):
        read(path, policy="skip", count=4)


def test_faults_beyond_the_count_are_found(write):
    with pytest.raises(FactsError, match="line 3: empty value"):
        read(write("book,author\nEmma,Jane Austen\nHamlet,\n"), count=1)


@pytest.mark.parametrize(
    "title",
    [
        *(
            "The {book} of {author}",
            "{0}",
            "100%",
            "%s %d",
            "\\n",
            "$HOME",
            "{{x}}",
            "1984",
            "#1",
            "'",
            "=1+1",
        ),
        *("ألف ليلة وليلة", "👩\u200d🚀", "a\u200bb", "a\tb", "\x1b[31mred", "\u202egnirts"),
    ],
)
def test_titles_keep_their_exact_text(write, title):
    """Probes 6 and 7."""
    facts, _ = read(write(f"book,author\n{title},Somebody\n"))
    assert facts.keys == (title,)


def test_nul_is_refused_with_its_line(write):
    with pytest.raises(FactsError, match="line 3: a NUL character"):
        read(write("book,author\nEmma,Jane Austen\nHam\0let,Shakespeare\n"), policy="skip")


def test_empty_lines_are_no_rows(write):
    facts, report = read(write("\nbook,author\n\nEmma,Jane Austen\n\n\n"))
    assert (len(facts), report.rows) == (1, 1)
    assert report.notes == ("empty lines, ignored: 3",)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("Book,author", "expected one column 'book', found 'Book', 'author'; did you mean 'Book'"),
        ("book,writer", "expected one column 'author', found 'book', 'writer'$"),
        ("book,author,book", "expected one column 'book', found 'book', 'author', 'book'$"),
        ("book;author", "found 'book;author'"),
    ],
)
def test_header_must_name_each_column_once(write, header, message):
    with pytest.raises(FactsError, match=rf"books\.csv, header: .*{message}"):
        read(write(f"{header}\nEmma,Jane Austen\n"))


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "found an empty file"), ("book,author\n", "expected some facts, found 0 in 0 rows")],
)
def test_file_without_facts_is_refused(write, content, message):
    with pytest.raises(FactsError, match=message):
        read(write(content))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "ignore"}, "policy must be one of error, skip: found 'ignore'"),
        ({"on_conflict": "last"}, "on_conflict must be one of error, first: found 'last'"),
        ({"count": 0}, "count must be positive: found 0"),
    ],
)
def test_wrong_options_are_refused(write, options, message):
    with pytest.raises(FactsError, match=message):
        read(write("book,author\nEmma,Jane Austen\n"), **options)


def test_key_and_value_must_differ(write):
    with pytest.raises(FactsError, match="must be two columns: found 'book' for both"):
        read_csv(write("book,author\nEmma,Jane Austen\n"), "book", "book")


@pytest.mark.parametrize("missing", [True, False])
def test_unreadable_path_is_named(tmp_path, missing):
    path = tmp_path / "none.csv" if missing else tmp_path
    with pytest.raises(FactsError, match=f"{path.name} cannot be read: .* \\(working directory: "):
        read(path)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(facts=st.dictionaries(names, names, min_size=1, max_size=10), quoting=st.sampled_from([0, 1]))
def test_what_csv_writes_is_read_back(tmp_path, facts, quoting):
    """Any text at all: quotes, line breaks, emoji, right-to-left, control characters."""
    path = tmp_path / "facts.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=quoting).writerows([("book", "author"), *facts.items()])
    assert dict(read(path)[0].pairs()) == facts


# ---- UCSD Goodreads Book Graph ----

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
    with pytest.raises(FactsError, match="min_ratings must not be negative: found -1"):
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
