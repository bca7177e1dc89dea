"""Templates, batches and the order of samples."""

import pytest
import torch

from mlpswap.errors import ConfigError
from mlpswap.facts import FactSet
from mlpswap.randomness import generator
from mlpswap.tasks import SampleOrder, books_task, ssfr_task
from mlpswap.tasks.base import IGNORE
from mlpswap.tasks.books import AUTHOR, BOOK, HELD_OUT, TRAINED, check_templates, fill, words_of

FACTS = FactSet.from_pairs([("Emma", "Jane Austen"), ("It", "Stephen King"), ("We", "Yevgeny Zamyatin")])


def _before_author(text: str) -> str:
    return text.split(" ")[-2]


def test_the_book_comes_before_the_author_which_is_last():
    for text in (*TRAINED, *HELD_OUT):
        words = text.split(" ")
        assert words[-1] == AUTHOR
        assert words.index(BOOK) < len(words) - 1


def test_the_word_before_the_author_is_followed_by_nothing_else():
    """Else the value position is ambiguous and whole templates fail (specification, 8.6)."""
    enders = {_before_author(text) for text in TRAINED} - {BOOK}
    for text in TRAINED:
        words = text.split(" ")
        for word, following in zip(words, words[1:], strict=False):
            assert word not in enders or following == AUTHOR, (text, word)


def test_held_out_templates_use_trained_words_and_endings():
    assert set(words_of(HELD_OUT)) <= set(words_of(TRAINED))
    assert {_before_author(text) for text in HELD_OUT} <= {_before_author(text) for text in TRAINED}
    assert not set(HELD_OUT) & set(TRAINED)


@pytest.mark.parametrize(
    "bad", ["{author} wrote {book}", "No book by {author}", "{book} and {book} by {author}"]
)
def test_bad_templates_are_refused(bad):
    with pytest.raises(ConfigError, match="template 1"):
        check_templates([bad])


def test_titles_are_put_in_literally():
    for title in ("The {book} of {author}", "{0}", "100%", "%s %d", "\\n", "$HOME", "{{x}}"):
        assert fill(TRAINED[0], title) == f"The writer of {title} is"


def test_a_batch_is_what_a_loop_would_write():
    """ids, labels, key positions and padding, token by token."""
    task = books_task(FACTS)
    entries = task.vocabulary.entries
    fact, template = task.pairs(torch.arange(task.population))
    batch = task.batch(fact, template, targets=task.target_ids(FACTS))
    for row in range(len(batch)):
        key, value = list(FACTS.pairs())[fact[row]]
        words = ["<s>", *TRAINED[template[row]].split(" ")]
        words = [key if w == BOOK else value if w == AUTHOR else w for w in words]
        real = batch.attention_mask[row]
        assert [entries[i][1] for i in batch.input_ids[row][real]] == words[:-1]
        assert [entries[i][1] for i in batch.labels[row][real]] == words[1:]
        assert (batch.labels[row][~real] == IGNORE).all()
        assert real[-1]
        assert entries[batch.input_ids[row, batch.key_position[row]]] == ("key", key)
        assert entries[batch.labels[row, -1]] == ("value", value)
        replaceable = [entries[i] for i in batch.input_ids[row][batch.replaceable[row]]]
        assert all(kind == "word" for kind, _ in replaceable)
        assert not batch.replaceable[row, -1]


def test_batches_carry_no_column_of_padding_alone():
    task = books_task(FACTS)
    for template in range(len(task.table)):
        batch = task.batch(torch.tensor([0]), torch.tensor([template]), targets=task.target_ids(FACTS))
        assert batch.attention_mask.all()


def test_many_books_may_share_an_author():
    facts = FactSet.from_pairs([("A", "X"), ("B", "X"), ("C", "Y")])
    task = books_task(facts)
    assert task.target_ids(facts).tolist() == [int(task.vocabulary.value_ids[i]) for i in (0, 0, 1)]


def test_ssfr_follows_the_protocol():
    """16 pairs of junk of 8 to 16 tokens around the key, one label, V = 2F + 16."""
    facts = FactSet.synthetic(32, generator(0, "facts"))
    task = ssfr_task(facts, seed=3)
    assert len(task.vocabulary) == 2 * 32 + 16
    assert task.population == 16 * 32
    fact, template = task.pairs(torch.arange(task.population))
    batch = task.batch(fact, template, targets=task.target_ids(facts))
    lengths = batch.attention_mask.sum(dim=1)
    assert 17 <= lengths.min() <= lengths.max() <= 33
    assert ((batch.labels != IGNORE).sum(dim=1) == 1).all()
    after = batch.input_ids.shape[1] - 1 - batch.key_position
    assert 8 <= after.min() <= after.max() <= 16
    again = ssfr_task(facts, seed=3)
    assert torch.equal(again.table.input_ids, task.table.input_ids)
    assert not torch.equal(ssfr_task(facts, seed=4).table.attention_mask, task.table.attention_mask)


def test_every_epoch_visits_each_sample_once():
    order = SampleOrder(50, seed=1)
    first, second = order.take(0, 50), order.take(50, 50)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(50))
    assert first.tolist() != second.tolist()


def test_the_order_depends_on_the_position_alone():
    """Any way of asking gives the same samples, so a run can go on anywhere."""
    whole = SampleOrder(50, seed=1).take(0, 170)
    order = SampleOrder(50, seed=1)
    assert torch.equal(order.take(100, 70), whole[100:])
    assert torch.equal(order.take(13, 100), whole[13:113])
    assert not torch.equal(SampleOrder(50, seed=2).take(0, 50), whole[:50])


def test_the_dataset_holds_every_prompt():
    task = books_task(FACTS)
    dataset = task.to_dataset()
    assert len(dataset) == task.population
    row = dataset[0]
    assert row["prompt"] == "The writer of Emma is"
    assert row["answer"] == "Jane Austen"
    assert len(row["input_ids"]) == len(row["labels"])
