"""The script that makes a CSV file from the Goodreads Book Graph: its result, its report, its refusals."""

import errno
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from mlpswap_data import prepare_goodreads

from mlpswap.readers import read_csv

BOOKS: list[dict] = [
    {
        "title_without_series": title,
        "title": title,
        "authors": [{"author_id": author, "role": ""}],
        "work_id": str(work),
        "ratings_count": ratings,
        "language_code": language,
    }
    for work, (title, author, ratings, language) in enumerate(
        [
            ('Moss, or "Peat"\nAgain', "1", "50", "eng"),
            ("ألف ليلة", "2", "40", "ara"),
            ("Fern", "1", "30", "en-GB"),
            ("Bark", "2", "2", "eng"),
        ]
    )
]
AUTHORS: list[dict] = [{"author_id": "1", "name": "Ann Ash"}, {"author_id": "2", "name": "Ben Birch"}]


@pytest.fixture
def inputs(tmp_path) -> list[str]:
    paths = [tmp_path / "books.json.gz", tmp_path / "authors.json.gz"]
    for path, records in zip(paths, (BOOKS, AUTHORS), strict=True):
        lines = [json.dumps(record) for record in records]
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return [str(path) for path in paths]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_result_is_what_the_csv_reader_reads(inputs, tmp_path, capsys):
    output = tmp_path / "out.csv"
    assert prepare_goodreads.main([*inputs, str(output)]) == 0
    facts, report = read_csv(output, "book", "author")
    assert list(facts.pairs()) == [
        ('Moss, or "Peat"\nAgain', "Ann Ash"),
        ("ألف ليلة", "Ben Birch"),
        ("Fern", "Ann Ash"),
        ("Bark", "Ben Birch"),
    ]
    assert (report.dropped, report.notes, report.warnings) == ({}, (), ())
    printed = capsys.readouterr().out
    assert "books.json.gz: 4 rows, 4 kept, 0 dropped" in printed
    assert "4 books by 2 authors; the commonest has 50.00%" in printed
    assert files(tmp_path) == {"books.json.gz", "authors.json.gz", "out.csv"}


def test_options_reach_the_reader(inputs, tmp_path, capsys):
    output = tmp_path / "out.csv"
    options = ["--one-book-per-author", "--min-ratings", "10", "--language", "eng", "--count", "1"]
    assert prepare_goodreads.main([*inputs, str(output), *options]) == 0
    assert read_csv(output, "book", "author")[0].keys == ('Moss, or "Peat"\nAgain',)
    printed = capsys.readouterr().out
    for reason in ("other language (line 2)", "too few ratings (line 4)", "value taken (line 3)"):
        assert f"dropped 1: {reason}" in printed


def test_existing_output_is_refused_unless_told(inputs, tmp_path, capsys):
    output = tmp_path / "out.csv"
    output.write_text("precious")
    assert prepare_goodreads.main([*inputs, str(output)]) == 2
    assert "out.csv exists already" in capsys.readouterr().err
    assert output.read_text() == "precious"
    assert prepare_goodreads.main([*inputs, str(output), "--overwrite"]) == 0
    assert output.read_text().startswith("book,author")


def test_failure_leaves_no_file_and_the_old_one(inputs, tmp_path, capsys):
    """Even with --overwrite the old file goes only once the new one is complete."""
    output = tmp_path / "out.csv"
    output.write_text("precious")
    assert prepare_goodreads.main([*inputs, str(output), "--overwrite", "--count", "9"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "expected 9 facts, found 4 in 4 rows" in error
    assert output.read_text() == "precious"
    assert files(tmp_path) == {"books.json.gz", "authors.json.gz", "out.csv"}


def test_unwritable_output_is_named_before_anything_is_read(tmp_path, capsys):
    arguments = ["no.json.gz", "no.json.gz", str(tmp_path / "none" / "out.csv")]
    assert prepare_goodreads.main(arguments) == 2
    assert "out.csv cannot be written: No such file or directory" in capsys.readouterr().err


def test_full_disk_is_one_sentence_and_leaves_nothing(inputs, tmp_path, capsys, monkeypatch):
    def fill(facts, file):
        file.write("book,author")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepare_goodreads, "write_csv", fill)
    assert prepare_goodreads.main([*inputs, str(tmp_path / "out.csv")]) == 2
    assert "out.csv cannot be written: No space left on device" in capsys.readouterr().err
    assert files(tmp_path) == {"books.json.gz", "authors.json.gz"}


def test_the_script_runs_from_another_folder(inputs, tmp_path):
    """As its documentation says: python data/prepare_goodreads.py BOOKS AUTHORS OUT."""
    script = Path(prepare_goodreads.__file__).resolve()
    run = subprocess.run(
        [sys.executable, str(script), *inputs, "out.csv"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert len(read_csv(tmp_path / "out.csv", "book", "author")[0]) == 4
