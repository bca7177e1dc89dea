"""A closed vocabulary in which every title and every author is one token, whatever its text holds.

Equal texts keep distinct ids: an entry is a pair (kind, surface). Data sets work on ids; text is for people.
"""

import difflib
import json
import logging
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedTokenizer

from mlpswap.errors import CheckpointError, FactsError
from mlpswap.facts import FactSet, check_count, check_list, check_text, printable

logger = logging.getLogger(__name__)

SPECIAL, WORD, KEY, VALUE = KINDS = ("special", "word", "key", "value")
PAD, UNK, BOS = "<pad>", "<unk>", "<s>"
_JOINER = "\u200d"  # zero-width joiner: the emoji on its sides are one


@dataclass(frozen=True)
class Vocabulary:
    """Entry i, a pair (kind, surface), is the token with id i. Kinds: special, word, key, value.

    Keys and values stand in the order of their fact set, each kind in one piece. Raises `FactsError` for an
    entry that stands twice.
    """

    entries: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        entries = tuple(
            tuple(entry) for entry in check_list("entries", self.entries, "(kind, surface) pairs")
        )
        object.__setattr__(self, "entries", entries)
        for token, entry in enumerate(self.entries):
            if list(map(type, entry)) != [str, str]:
                raise FactsError(f"token {token} must be a pair of texts, (kind, surface): found {entry}")
            kind, surface = entry
            if kind not in KINDS:
                raise FactsError(f"token {token} has the kind '{kind}': expected one of {', '.join(KINDS)}")
            if self._ids[kind, surface] != token:
                raise FactsError(f"{kind} '{printable(surface)}' stands twice in the vocabulary")

    @classmethod
    def books(cls, facts: FactSet, words: Sequence[str]) -> "Vocabulary":
        """[<pad>, <unk>, <s>, words, keys, values]; words and punctuation marks come from the templates."""
        for word in check_list("words", words, "texts"):
            check_text("a word", word)
            if not word or any(character.isspace() for character in word):
                raise FactsError(f"a word of the vocabulary holds no blanks: found '{printable(word)}'")
        return cls(
            tuple(
                _entries((SPECIAL, (PAD, UNK, BOS)), (WORD, words), (KEY, facts.keys), (VALUE, facts.values))
            )
        )

    @classmethod
    def ssfr(cls, facts: FactSet, junk: int = 16) -> "Vocabulary":
        """[keys, values, junk words "j0", "j1", ...], without special tokens; the first junk word pads."""
        check_count("junk", junk, 1)
        words = [f"j{i}" for i in range(junk)]
        return cls(tuple(_entries((KEY, facts.keys), (VALUE, facts.values), (WORD, words))))

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def _ids(self) -> dict[tuple[str, str], int]:
        return {entry: token for token, entry in enumerate(self.entries)}

    def _range(self, kind: str) -> range:
        found = [token for token, entry in enumerate(self.entries) if entry[0] == kind]
        whole = range(found[0], found[-1] + 1) if found else range(0)
        if len(whole) != len(found):
            raise FactsError(f"the {kind}s of a vocabulary must follow one another: found a gap")
        return whole

    @cached_property
    def key_ids(self) -> range:
        """Ids of the keys, in the order of the fact set."""
        return self._range(KEY)

    @cached_property
    def value_ids(self) -> range:
        """Ids of the values, in the order of the fact set."""
        return self._range(VALUE)

    @cached_property
    def word_ids(self) -> range:
        """Ids of the words (SSFR: of the junk)."""
        return self._range(WORD)

    @property
    def pad_id(self) -> int:
        return self._ids.get((SPECIAL, PAD), self.word_ids.start)

    @property
    def unk_id(self) -> int | None:
        return self._ids.get((SPECIAL, UNK))

    @property
    def bos_id(self) -> int | None:
        return self._ids.get((SPECIAL, BOS))

    def id_of(self, kind: str, surface: str) -> int:
        """The id of an entry. Raises `FactsError` if there is none."""
        if (kind, surface) not in self._ids:
            raise FactsError(f"no {kind} '{printable(surface)}' in the vocabulary")
        return self._ids[kind, surface]

    def surfaces(self, kind: str) -> tuple[str, ...]:
        """All surfaces of a kind, in the order of their ids."""
        return tuple(surface for each, surface in self.entries if each == kind)


def _entries(*groups: tuple[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    for kind, surfaces in groups:
        for surface in surfaces:
            yield kind, surface


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")


def boundary(text: str, i: int) -> bool:
    """Whether a token may begin or end between text[i - 1] and text[i]: never within a word or an emoji."""
    if i in (0, len(text)):
        return True
    before, after = text[i - 1], text[i]
    if before.isspace() or after.isspace():
        return True
    if _JOINER in (before, after) or unicodedata.category(after).startswith("M"):
        return False
    return not (_in_word(before) and _in_word(after))


class MlpSwapTokenizer(PreTrainedTokenizer):
    """Text to ids of a `Vocabulary` and back.

    A span of text is a title (key) first, then an author (value), then a word; the longest match wins, and it
    begins and ends at token boundaries. A title that is also a template word is a title only where no other
    title or author occurs. One blank between two tokens separates them; further ones may belong to a title.
    What is not known becomes <unk>, with a warning for each new word, or is refused with `FactsError` if
    `strict` or if there is no <unk>. <s> is put in front where the vocabulary has it. `decode` prints the
    surfaces, separated by blanks.
    """

    vocab_files_names: ClassVar[dict[str, str]] = {"vocab_file": "vocabulary.json"}
    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask"]
    padding_side = "left"

    def __init__(
        self,
        vocab_file: str | None = None,
        *,
        vocabulary: Vocabulary | None = None,
        strict: bool = False,
        **kwargs: Any,
    ):
        if vocabulary is None:
            if vocab_file is None:
                raise FactsError("MlpSwapTokenizer needs a vocabulary or a vocabulary file")
            vocabulary = _read(Path(vocab_file))
        self.vocabulary, self.strict = vocabulary, strict
        # transformers wants one distinct text per id: the kind in front of the surface makes it so.
        self._tokens = [_token(kind, surface) for kind, surface in vocabulary.entries]
        self._token_ids = {token: number for number, token in enumerate(self._tokens)}
        self._warned: set[str] = set()
        pad, unk, bos = (
            None if number is None else self._tokens[number]
            for number in (vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id)
        )
        # Saved files name the special tokens too; the vocabulary decides.
        kwargs |= {"pad_token": pad, "unk_token": unk, "bos_token": bos, "eos_token": pad}
        super().__init__(**kwargs | {"strict": strict, "clean_up_tokenization_spaces": False})

    @property
    def key_ids(self) -> range:
        return self.vocabulary.key_ids

    @property
    def value_ids(self) -> range:
        return self.vocabulary.value_ids

    def entry(self, token_id: int) -> tuple[str, str]:
        """(kind, surface) of an id. Raises `FactsError` for a number that is none."""
        if not 0 <= token_id < len(self.vocabulary):
            raise FactsError(f"no token {token_id}: ids go from 0 to {len(self.vocabulary) - 1}")
        return self.vocabulary.entries[token_id]

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._token_ids)

    @cached_property
    def _names(self) -> dict[str, int]:
        """Surface to id of keys and values; a key goes before a value of the same surface."""
        entries = self.vocabulary.entries
        return {entries[number][1]: number for number in (*self.value_ids, *self.key_ids)}

    @cached_property
    def _words(self) -> dict[str, int]:
        """Surface to id of words and special tokens; a word goes before a special token."""
        entries, words = enumerate(self.vocabulary.entries), self.vocabulary.word_ids
        special = {surface: number for number, (kind, surface) in entries if kind == SPECIAL}
        return special | {self.vocabulary.entries[number][1]: number for number in words}

    @cached_property
    def _titles_and_words(self) -> frozenset[str]:
        """Titles that are template words too."""
        words = self.vocabulary.surfaces(WORD)
        return frozenset(word for word in words if self._names.get(word, -1) in self.key_ids)

    @cached_property
    def _longest_surface(self) -> int:
        return max(len(surface) for _, surface in self.vocabulary.entries)

    def tokenize(self, text: str, **_: Any) -> list[str]:
        """The tokens of `text`, one text per id; `entry` tells their surfaces."""
        spans = self._spans(text, as_words=self._titles_and_words)
        if not any(number in self.key_ids or number in self.value_ids for _, number in spans):
            met = {surface for surface, _ in spans} & self._titles_and_words
            if len(met) == 1:  # the only name there is
                spans = self._spans(text, as_words=self._titles_and_words - met)
        unknown = [surface for surface, number in spans if number is None]
        if unknown:
            self._report(unknown, text)
        unk = self.vocabulary.unk_id
        return [self._tokens[unk if number is None else number] for _, number in spans]  # type: ignore[index]

    def _spans(self, text: str, as_words: frozenset[str]) -> list[tuple[str, int | None]]:
        """(surface, id or None if unknown) from left to right; titles in `as_words` count as words."""
        boundaries = [i for i in range(1, len(text) + 1) if boundary(text, i)]
        spans: list[tuple[str, int | None]] = []
        start = 0
        while start < len(text):
            first = bisect_right(boundaries, start)
            last = bisect_right(boundaries, start + self._longest_surface)
            candidates = [text[start:stop] for stop in reversed(boundaries[first:last])]
            names = (name for name in candidates if name in self._names and name not in as_words)
            surface = next((name for name in names if _own_blanks(text, start, start + len(name))), None)
            number = self._names.get(surface) if surface is not None else None
            if surface is None and text[start].isspace():
                start += 1
                continue
            if surface is None:
                surface = next((word for word in candidates if word in self._words), None)
                number = self._words.get(surface) if surface is not None else None
            if surface is None:
                surface = text[start : boundaries[first]]
            spans.append((surface, number))
            start += len(surface)
            if text[start : start + 1] == " ":  # the separator; further blanks may belong to a title
                start += 1
        return spans

    def _report(self, unknown: list[str], text: str) -> None:
        words = ", ".join(f"'{printable(surface)}'" for surface in unknown)
        found = f"unknown to this model: {words} in '{printable(text)}'"
        if self.strict or self.vocabulary.unk_id is None:
            raise FactsError(found + self._hint(unknown[0]))
        if not self._warned.issuperset(unknown):
            self._warned.update(unknown)
            logger.warning("%s; read as %s", found, UNK)

    def _hint(self, surface: str) -> str:
        def comparable(name: str) -> bool:  # comparing with all of 100,000 names takes seconds
            return abs(len(name) - len(surface)) <= 2 and name[0].casefold() == surface[0].casefold()

        candidates = [name for name in (*self._names, *self._words) if comparable(name)]
        near = difflib.get_close_matches(surface, candidates, n=1)
        return f"; did you mean '{printable(near[0])}'?" if near else ""

    def _convert_token_to_id(self, token: str) -> int | None:
        return self._token_ids.get(token, self.vocabulary.unk_id)

    def _convert_id_to_token(self, index: int) -> str:
        self.entry(index)
        return self._tokens[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return " ".join(self.vocabulary.entries[self._token_ids[token]][1] for token in tokens)

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        bos = [] if self.vocabulary.bos_id is None else [self.vocabulary.bos_id]
        return bos + token_ids_0 + (token_ids_1 or [])

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str]:
        name = self.vocab_files_names["vocab_file"]
        path = Path(save_directory) / (f"{filename_prefix}-{name}" if filename_prefix else name)
        # Escaped, one entry a line: nothing in a title can disturb a terminal or an editor.
        lines = ",\n".join(json.dumps(entry) for entry in self.vocabulary.entries)
        path.write_text(f"[\n{lines}\n]\n", encoding="ascii")
        return (str(path),)


def _token(kind: str, surface: str) -> str:
    return surface if kind == SPECIAL else f"{kind}:{surface}"


def _own_blanks(text: str, start: int, stop: int) -> bool:
    """Whether blanks at the edges of text[start:stop] are its own rather than separators."""
    begins = not text[start].isspace() or start == 0 or text[start - 1].isspace()
    ends = not text[stop - 1].isspace() or stop == len(text) or text[stop].isspace()
    return begins and ends


def _read(path: Path) -> Vocabulary:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return Vocabulary(tuple((kind, surface) for kind, surface in entries))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not a vocabulary: {error}") from error
