"""Make a CSV file of books and authors from the UCSD Goodreads Book Graph, which may not be passed on itself.

Download its two files from https://cseweb.ucsd.edu/~jmcauley/datasets/goodreads.html, then

    python data/prepare_goodreads.py goodreads_books.json.gz goodreads_book_authors.json.gz books.csv

The result is read with `facts.path=books.csv facts.key=book facts.value=author`. `--help` lists the options.
"""

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from mlpswap.errors import FactsError, MlpSwapError
from mlpswap.facts import FactSet, printable
from mlpswap.readers import read_goodreads

COLUMNS = ("book", "author")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; 0, or 2 after one sentence on what the user can mend."""
    options = _parser().parse_args(arguments)
    try:
        with _atomic(options.output, options.overwrite) as file:
            facts, report = read_goodreads(
                options.books,
                options.authors,
                one_book_per_author=options.one_book_per_author,
                min_ratings=options.min_ratings,
                language=options.language,
                count=options.count,
            )
            write_csv(facts, file)
    except MlpSwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report.summary())
    print(
        f"wrote {printable(str(options.output))}: {len(facts)} books by {len(facts.values)} authors; "
        f"the commonest has {facts.majority_share:.2%}"
    )
    return 0


def write_csv(facts: FactSet, file: TextIO) -> None:
    """Write the facts with the header book,author to a text file opened with newline=""."""
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    writer.writerows(facts.pairs())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Books and authors of the UCSD Goodreads Book Graph as a CSV file, most rated first."
    )
    parser.add_argument("books", type=Path, help="goodreads_books.json.gz")
    parser.add_argument("authors", type=Path, help="goodreads_book_authors.json.gz")
    parser.add_argument("output", type=Path, help="the CSV file to write, with the columns book and author")
    parser.add_argument("--one-book-per-author", action="store_true", help="only the most rated")
    parser.add_argument("--min-ratings", type=int, default=0, metavar="N", help="least ratings of an edition")
    parser.add_argument("--language", metavar="CODE", help="such as eng (takes eng, en-US, en-GB), spa, ger")
    parser.add_argument("--count", type=int, metavar="N", help="the first N facts, no fewer")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    return parser


@contextmanager
def _atomic(path: Path, overwrite: bool) -> Iterator[TextIO]:
    """A file that becomes `path` only once the block has ended well; what cannot be written shows at once."""
    where = printable(str(path))
    if path.exists() and not overwrite:
        raise FactsError(f"{where} exists already: choose another name or give --overwrite")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            with open(temporary, "w", encoding="utf-8", newline="") as file:
                yield file
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise FactsError(f"{where} cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
