"""The strict CSV reader: nothing lost silently, nothing mangled, every refusal with its file and line."""

import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlpswap.errors import FactsError
from mlpswap.facts import text_fault
from mlpswap.readers import read_csv

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
    with pytest.raises(FactsError, match=r"line 3: empty value; .* facts.policy=skip drops such rows"):
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
    assert not any("on_conflict" in note for note in report.notes)  # advice that was taken already
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
    assert report.notes == ("facts.one_per_value=false keeps every key of a value",)


def test_count_takes_the_first_that_are_kept(write):
    path = write("book,author\nEmma,Jane Austen\nX,\nHamlet,Shakespeare\nUlysses,James Joyce\n")
    facts, report = read(path, policy="skip", count=2)
    assert facts.keys == ("Emma", "Hamlet")
    assert report.dropped == {"empty value": 1, "beyond count": 1}
    with pytest.raises(FactsError, match="expected 4 facts, found 3 in 4 rows; 1 dropped: empty value"):
        read(path, policy="skip", count=4)


def test_too_few_facts_come_with_the_options_that_help(write):
    path = write("book,author\nEmma,Jane Austen\nPersuasion,Jane Austen\nHamlet,Shakespeare\n")
    with pytest.raises(FactsError, match="found 3 in 3 rows; facts.count=3 takes all there are$"):
        read(path, count=4)
    with pytest.raises(
        FactsError, match="1 dropped: value taken; facts.one_per_value=false .*; facts.count=2 takes"
    ):
        read(path, count=4, one_per_value=True)


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
        ({"count": 0}, "count must be a whole number of at least 1: found 0"),
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
