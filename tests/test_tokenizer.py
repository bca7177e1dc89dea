"""Vocabulary and tokenizer: one id per title and author, whatever their text holds."""

import logging
import unicodedata

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlpswap.errors import CheckpointError, FactsError
from mlpswap.facts import FactSet, text_fault
from mlpswap.model import MlpSwapTokenizer, Vocabulary
from mlpswap.model.tokenization import boundary

WORDS = ("The", "writer", "of", "is", "wrote", "We", ",", "?", "all", "know", "as")
TITLES = (
    "Emma",
    "emma",
    "EMMA",
    "It",
    "We",  # a template word too
    "King",  # an author too
    "The Waves",
    "The Waves of Mars",
    "100%",
    "%s %d",
    "{0} {book}",
    "C++ (2nd ed.)",
    "a|b.*[c]$^\\d",
    "$HOME",
    r"\n",
    " leading",
    "trailing ",
    "tab\tinside",
    "line\nbreak",
    "two  blanks",
    "\N{NO-BREAK SPACE}odd",
    "<pad>",
    "<s>",
    "<unk>",
    "key:Emma",
    "value:King",
    "שלום עולם",
    "\u202eoverride",
    "zero\u200bwidth",
    "\x1b[31mred",
    "👩\u200d🚀",
    "👩",
    "Caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    "Cafe\N{COMBINING ACUTE ACCENT}",
    "Cafe",
    "1984",
    "?",  # a punctuation mark of the templates too
    "NA",
)
AUTHORS = ("Jane Austen", "King", "Stephen King", "O'Brien", "<s>", "is not known")
FACTS = FactSet.from_pairs([(title, AUTHORS[i % len(AUTHORS)]) for i, title in enumerate(TITLES)])
VOCABULARY = Vocabulary.books(FACTS, WORDS)


@pytest.fixture(scope="module")
def tokenizer():
    return MlpSwapTokenizer(vocabulary=VOCABULARY)


def entries(tokenizer, text):
    return [tokenizer.entry(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def test_layout_of_the_book_vocabulary():
    assert VOCABULARY.entries[:3] == (("special", "<pad>"), ("special", "<unk>"), ("special", "<s>"))
    assert VOCABULARY.surfaces("word") == WORDS
    assert [VOCABULARY.entries[i] for i in VOCABULARY.key_ids] == [("key", title) for title in TITLES]
    assert [VOCABULARY.entries[i] for i in VOCABULARY.value_ids] == [("value", v) for v in FACTS.values]
    assert len(VOCABULARY) == 3 + len(WORDS) + len(TITLES) + len(FACTS.values)
    assert (VOCABULARY.pad_id, VOCABULARY.unk_id, VOCABULARY.bos_id) == (0, 1, 2)


def test_layout_of_the_ssfr_vocabulary():
    """Keys 0..F-1, values, then junk, of which the first pads; no special tokens."""
    facts = FactSet.synthetic(5, torch.Generator().manual_seed(0))
    vocabulary = Vocabulary.ssfr(facts, junk=3)
    assert (vocabulary.key_ids, vocabulary.value_ids, vocabulary.word_ids) == (
        range(5),
        range(5, 10),
        range(10, 13),
    )
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id) == (10, None, None)
    tokenizer = MlpSwapTokenizer(vocabulary=vocabulary)
    assert tokenizer.encode("j0 k3 j2") == [10, 3, 12]
    assert tokenizer.decode([10, 3, 5]) == "j0 k3 v0"
    with pytest.raises(FactsError, match="unknown to this model: 'k7'"):
        tokenizer.encode("k7")


def test_every_entry_has_an_id_of_its_own_and_comes_back(tokenizer):
    """Equal surfaces are distinct by kind; a surface is never taken apart."""
    assert tokenizer.get_vocab() == {
        t: i for i, t in enumerate(tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)))
    }
    assert len(tokenizer) == len(VOCABULARY)
    for number, (kind, surface) in enumerate(VOCABULARY.entries):
        assert VOCABULARY.id_of(kind, surface) == number
        assert tokenizer.entry(number) == (kind, surface)
        assert tokenizer.decode([number]) == surface


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize(
    "template", ["The writer of {} is", "{} is", "We all know {} as", "is {}", "of {} , is"]
)
def test_a_title_in_a_prompt_is_one_token(tokenizer, template, title):
    """What is printed is what is read: words, the title, words."""
    words = template.split(" ")
    prompt = " ".join(title if word == "{}" else word for word in words)
    wanted = [("key", title) if word == "{}" else ("word", word) for word in words]
    if title in WORDS:  # a title only if it is the only one there; then wherever it stands
        only = not {"We", "?"} <= set(prompt.split(" "))
        wanted = [("key" if word == title and only else "word", word) for word in prompt.split(" ")]
    assert entries(tokenizer, prompt) == wanted
    assert tokenizer.decode(tokenizer.encode(prompt, add_special_tokens=False)) == prompt


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The Waves of Mars is", [("key", "The Waves of Mars"), ("word", "is")]),
        ("The Waves of Emma is", [("key", "The Waves"), ("word", "of"), ("key", "Emma"), ("word", "is")]),
        ("Stephen King wrote It", [("value", "Stephen King"), ("word", "wrote"), ("key", "It")]),
        ("King wrote", [("key", "King"), ("word", "wrote")]),  # a title before an author
        ("We all know Emma", [("word", "We"), ("word", "all"), ("word", "know"), ("key", "Emma")]),
        ("We know Jane Austen", [("word", "We"), ("word", "know"), ("value", "Jane Austen")]),
        ("We know", [("key", "We"), ("word", "know")]),
        ("We know ?", [("word", "We"), ("word", "know"), ("word", "?")]),  # two such titles: neither
        ("Emma,is", [("key", "Emma"), ("word", ","), ("word", "is")]),
        ("of <s> is", [("word", "of"), ("key", "<s>"), ("word", "is")]),
        ("\n The  writer ", [("word", "The"), ("word", "writer")]),
        ("is not known", [("value", "is not known")]),
        ("", []),
    ],
)
def test_collisions_follow_the_rules(tokenizer, text, wanted):
    """Longest match; titles, then authors, then words; a title that is a word only where no other name is."""
    assert entries(tokenizer, text) == wanted


@pytest.mark.parametrize(
    "text", ["Itself", "_It", "It1", "Emma\N{COMBINING ACUTE ACCENT}", "👩\u200d🔬", "Emmas"]
)
def test_no_name_is_found_inside_a_word_or_an_emoji(tokenizer, text):
    assert not any(kind in ("key", "value") for kind, _ in entries(tokenizer, text))


def test_unknown_words_become_unk_with_one_warning(caplog):
    tokenizer = MlpSwapTokenizer(vocabulary=VOCABULARY)
    with caplog.at_level(logging.WARNING):
        assert entries(tokenizer, "The painter of \x1bEmma is") == [
            ("word", "The"), ("special", "<unk>"), ("word", "of"), ("special", "<unk>"), ("key", "Emma"), ("word", "is")
        ]  # fmt: skip
        tokenizer.encode("painter wrote")
    assert len(caplog.records) == 1
    assert r"'painter', '\x1b'" in caplog.text
    assert "\x1b" not in caplog.text


def test_strict_refuses_unknown_words_with_a_hint(tmp_path):
    """And says so in the saved files, so that the setting comes back."""
    tokenizer = MlpSwapTokenizer(vocabulary=VOCABULARY, strict=True)
    tokenizer.save_pretrained(tmp_path)
    for strict in (tokenizer, MlpSwapTokenizer.from_pretrained(tmp_path)):
        with pytest.raises(FactsError, match="'Ema' in 'The writer of Ema is'; did you mean 'Emma'"):
            strict.encode("The writer of Ema is")
        assert not MlpSwapTokenizer.from_pretrained(tmp_path, strict=False).strict


def test_start_token_and_padding(tokenizer):
    """<s> in front of the text, padding in front of <s>."""
    batch = tokenizer(["The writer of Emma is", "Emma is"], padding=True, return_tensors="pt")
    assert batch["input_ids"][:, 0].tolist() == [2, 0]
    assert batch["input_ids"][1].tolist()[-3:] == tokenizer.encode("Emma is")
    assert batch["attention_mask"].sum(dim=1).tolist() == [6, 3]
    assert tokenizer.decode(batch["input_ids"][1], skip_special_tokens=True) == "Emma is"
    assert set(batch) == {"input_ids", "attention_mask"}


def test_everything_comes_back_from_disk(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = MlpSwapTokenizer.from_pretrained(tmp_path)
    assert loaded.vocabulary == VOCABULARY
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.all_special_ids == tokenizer.all_special_ids
    assert (tmp_path / "vocabulary.json").read_bytes().isascii()
    for title in TITLES:
        prompt = f"The writer of {title} is"
        assert loaded.encode(prompt) == tokenizer.encode(prompt)


def test_sixty_thousand_facts_are_no_added_tokens(tmp_path):
    """Added tokens take minutes to load in bulk (huggingface/tokenizers #1635); only the three special ones may be."""
    facts = FactSet.from_pairs([(f"Book {i}", f"Author {i % 40_000}") for i in range(60_000)])
    tokenizer = MlpSwapTokenizer(vocabulary=Vocabulary.books(facts, WORDS))
    tokenizer.save_pretrained(tmp_path)
    loaded = MlpSwapTokenizer.from_pretrained(tmp_path)
    assert set(loaded.get_added_vocab()) == {"<pad>", "<unk>", "<s>"}
    assert loaded.vocabulary == tokenizer.vocabulary
    assert entries(loaded, "The writer of Book 59999 is")[3] == ("key", "Book 59999")


def test_a_vocabulary_refuses_what_is_ambiguous():
    for entries, message in (
        ((("word", "a"), ("word", "a")), "word 'a' stands twice"),
        ((("noun", "a"),), "kind 'noun'"),
        ((("key", "a"), ("word", "b"), ("key", "c")), "must follow one another"),
    ):
        with pytest.raises(FactsError, match=message):
            len(Vocabulary(entries).key_ids)
    with pytest.raises(FactsError, match="holds no blanks: found 'two words'"):
        Vocabulary.books(FACTS, ["two words"])
    with pytest.raises(FactsError, match="junk must be a whole number of at least 1: found 0"):
        Vocabulary.ssfr(FACTS, junk=0)


def test_ids_out_of_range_and_bad_files_are_refused(tokenizer, tmp_path):
    for token in (-1, len(VOCABULARY)):
        with pytest.raises(FactsError, match=f"no token {token}"):
            tokenizer.decode([token])
    with pytest.raises(FactsError, match="no key 'emmA'"):
        VOCABULARY.id_of("key", "emmA")
    (tmp_path / "vocabulary.json").write_text('[["key"]]')
    with pytest.raises(CheckpointError, match="is not a vocabulary"):
        MlpSwapTokenizer(str(tmp_path / "vocabulary.json"))
    with pytest.raises(FactsError, match="needs a vocabulary"):
        MlpSwapTokenizer()


names = st.text(min_size=1, max_size=12).filter(lambda text: text_fault(text) is None)


@given(st.lists(names, min_size=1, max_size=4, unique=True))
def test_any_title_alone_is_read_as_itself(titles):
    """Whatever Unicode holds, and whatever other titles hide in it."""
    facts = FactSet.from_pairs([(title, "An Author") for title in titles])
    tokenizer = MlpSwapTokenizer(vocabulary=Vocabulary.books(facts, ["a", "!"]))
    for title in titles:
        assert entries(tokenizer, title) == [("key", title)]


@given(st.text(max_size=20))
def test_boundaries_split_no_letters(text):
    for i in range(1, len(text)):
        if boundary(text, i):
            assert not (text[i - 1].isalnum() and text[i].isalnum())
            assert text[i - 1].isspace() or not unicodedata.combining(text[i])
