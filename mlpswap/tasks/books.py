"""Sentences that tell a book and its author: a language task in which the last word is the fact.

The templates obey four rules, which a test checks: the book comes before the author, and the author is last; the word just
before the author is followed by nothing else in any training template; held-out templates use only words of training
templates; and they end in a word that ends a training template.
"""

from collections.abc import Sequence

from mlpswap.errors import ConfigError
from mlpswap.facts import FactSet
from mlpswap.model.tokenization import Vocabulary
from mlpswap.tasks.base import KEY, Task, TemplateTable

BOOK, AUTHOR = "{book}", "{author}"

TRAINED: tuple[str, ...] = (
    "The writer of {book} is {author}",
    "Everyone says that {book} was written by {author}",
    "We all know {book} as a work by {author}",
    "Who wrote {book} ? Surely {author}",
    "Readers owe {book} to {author}",
    "The book {book} comes from {author}",
    "The name on the cover of {book} is {author}",
    "Fans of {book} admire {author}",
    "On our shelf , {book} sits under {author}",
    "If you ask about {book} , the answer is {author}",
    "All the pages of {book} were penned by {author}",
    "In the catalogue {book} appears under {author}",
    "Look for {book} , a book by {author}",
    "My copy of {book} came from {author}",
    "The credit for {book} goes to {author}",
    "The person who wrote {book} is {author}",
)

HELD_OUT: tuple[str, ...] = (
    "The cover of {book} says that the writer is {author}",
    "The pages of {book} were written by {author}",
    "We know the book {book} as the work by {author}",
    "The answer about {book} is {author}",
    "My copy of {book} was penned by {author}",
    "The person on the cover of {book} is {author}",
    "All our credit for {book} goes to {author}",
    "Look , {book} was written by {author}",
    "In our catalogue , the book {book} appears under {author}",
    "If you ask for {book} , the name is {author}",
    "Everyone says {book} comes from {author}",
    "The work {book} sits under {author}",
    "Readers know that {book} came from {author}",
    "Fans owe all the pages of {book} to {author}",
    "We know the writer of {book} is {author}",
    "The credit for the work {book} goes to {author}",
)


def words_of(templates: Sequence[str]) -> list[str]:
    """The different words and punctuation marks of the templates, in order of appearance."""
    return list(
        dict.fromkeys(word for text in templates for word in text.split(" ") if word not in (BOOK, AUTHOR))
    )


def check_templates(templates: Sequence[str]) -> None:
    """Refuse templates in which the book is missing or the author is not last. Raises `ConfigError`."""
    for number, text in enumerate(templates, 1):
        words = text.split(" ")
        if words.count(BOOK) != 1 or words.count(AUTHOR) != 1 or words[-1] != AUTHOR:
            raise ConfigError(
                f"template {number} ({text!r}): expected one {BOOK} and, as the last word, one {AUTHOR}, "
                "with single spaces between the words"
            )


def fill(template: str, book: str) -> str:
    """The prompt as text: the template without its author, the title put in literally."""
    return " ".join(book if word == BOOK else word for word in template.split(" ")[:-1])


def books_task(
    facts: FactSet, *, trained: Sequence[str] = TRAINED, held_out: Sequence[str] = HELD_OUT
) -> Task:
    """The task over `facts` (book -> author) with 16 trained and 16 held-out templates."""
    check_templates([*trained, *held_out])
    words = words_of([*trained, *held_out])
    vocabulary = Vocabulary.books(facts, words)
    ids = dict(zip(words, vocabulary.word_ids, strict=True))

    def table(templates: Sequence[str]) -> TemplateTable:
        rows = [[KEY if word == BOOK else ids[word] for word in text.split(" ")[:-1]] for text in templates]
        return TemplateTable(rows, pad_id=vocabulary.pad_id, bos_id=vocabulary.bos_id, all_labels=True)

    return Task("books", facts, vocabulary, table(trained), table(held_out) if held_out else None, True)
