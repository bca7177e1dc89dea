"""Fact sets: what they refuse, how they change, and that they are themselves again after every round trip."""

import hashlib
import json
import logging
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlpswap.errors import FactsError, MlpSwapError
from mlpswap.facts import FactSet, printable, text_fault

names = st.text(min_size=1, max_size=12).filter(lambda text: text_fault(text) is None)
values = st.lists(names, min_size=1, max_size=8, unique=True)
fact_sets = st.dictionaries(names, st.integers(0, 7), min_size=1, max_size=20).flatmap(
    lambda choice: values.map(
        lambda known: FactSet.from_pairs((key, known[i % len(known)]) for key, i in choice.items())
    )
)
seeds = st.integers(0, 2**31)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def books() -> FactSet:
    return FactSet.from_pairs(
        [("Emma", "Jane Austen"), ("Hamlet", "William Shakespeare"), ("Persuasion", "Jane Austen")]
    )


def test_pairs_share_values_in_order_of_appearance(books):
    assert books.values == ("Jane Austen", "William Shakespeare")
    assert books.mapping == (0, 1, 0)
    assert books.targets().tolist() == [0, 1, 0]
    assert books.targets().dtype == torch.long
    assert len(books) == 3
    assert books.value_of("Persuasion") == "Jane Austen"


def test_equal_content_is_equal_and_other_content_is_not(books):
    """Results of edits are compared and cached by fact set."""
    same = FactSet(list(books.keys), list(books.values), list(books.mapping))  # type: ignore[arg-type]
    other = books.alter({"Emma": "William Shakespeare"})
    assert same == books
    assert hash(same) == hash(books)
    assert same.fingerprint == books.fingerprint
    assert other != books
    assert other.fingerprint != books.fingerprint


def test_fingerprint_is_fixed():
    """Saved patches hold fingerprints: they must mean the same in every release."""
    facts = FactSet(("Émile", "b"), ("x",), (0, 0))
    text = '{"keys":["Émile","b"],"mapping":[0,0],"values":["x"]}'
    assert facts.fingerprint == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("keys", "values", "mapping", "message"),
    [
        ((), (), (), "at least one fact"),
        (("a", "a"), ("x",), (0, 0), "key 'a' stands twice, at positions 0 and 1"),
        (("a",), ("x", "x"), (0,), "value 'x' stands twice"),
        (("a", "b"), ("x",), (0,), "for each of 2 keys: found 1"),
        (("a",), ("x",), (1,), r"mapping\[0\] must be an index below 1, from 0: found 1"),
        (("a",), ("x",), (-1,), "found -1"),
        (("a",), ("x",), (True,), "found True"),
        (("a", ""), ("x",), (0, 0), "key 1 '' cannot be a name: empty"),
        (("a",), (" \t",), (0,), r"value 0 ' \\x09' cannot be a name: blank"),
        (("a\0",), ("x",), (0,), "NUL"),
        (("\ud800",), ("x",), (0,), "surrogate"),
        ((1,), ("x",), (0,), r"key 0 must be text: found 1 \(int\)"),
        ((["a"],), ("x",), (0,), r"key 0 must be text: found \['a'\] \(list\)"),
        ("abc", ("x",), (0, 0, 0), r"keys must be a list of texts: found 'abc' \(str\)"),
        (("a",), "x", (0,), r"values must be a list of texts: found 'x' \(str\)"),
        ({"a": 1}, ("x",), (0,), "keys must be a list of texts: found .*dict"),
        ({"a"}, ("x",), (0,), "keys must be a list of texts: found .*set"),
        (None, ("x",), (0,), "keys must be a list of texts: found None"),
        (("a",), ("x",), 0, "mapping must be a list of indices of values: found 0"),
        (("a",), ("x",), {0: 0}, "mapping must be a list of indices of values: found .*dict"),
    ],
)
def test_what_is_no_fact_set_is_refused(keys, values, mapping, message):
    with pytest.raises(FactsError, match=message):
        FactSet(keys, values, mapping)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda facts: FactSet.from_pairs({"ab": "xy"}), "pairs must be a list of .key, value. pairs: found .*dict"),
        (lambda facts: FactSet.from_pairs(["ab"]), r"pair 0 must be a tuple \(key, value\): found 'ab' \(str\)"),
        (lambda facts: FactSet.from_pairs([("a", "x"), ("b",)]), "pair 1 must be a tuple"),
        (lambda facts: FactSet.from_pairs([("a", ["x"])]), "value 0 must be text: found .*list"),
        (lambda facts: FactSet.from_pairs([(3, "x")]), "key 0 must be text: found 3"),
        (lambda facts: FactSet.from_pairs(3), "pairs must be a list"),
        (lambda facts: FactSet.synthetic(-1, generator()), "count must be a whole number of at least 1: found -1"),
        (lambda facts: FactSet.synthetic(0, generator()), "count must be"),
        (lambda facts: FactSet.synthetic(2.0, generator()), r"count must be .*found 2.0 \(float\)"),
        (lambda facts: FactSet.synthetic(2, None), "generator must be a torch.Generator"),
        (lambda facts: facts.permute(7), "generator must be a torch.Generator.*found int"),
        (lambda facts: facts.permute(generator(), indices=[0.0]), "indices of facts must be distinct and from 0"),
        (lambda facts: facts.permute(generator(), indices=[[0]]), "indices of facts must be distinct and from 0"),
        (lambda facts: facts.permute(generator(), indices=1), "indices must be a list of whole numbers: found 1"),
        (lambda facts: facts.split(generator(), 1.0), "cannot split 3 facts into groups of 1.0"),
        (lambda facts: facts.split(generator(), "2"), "cannot split 3 facts into groups of 2"),
        (lambda facts: facts.take("2"), "cannot take 2 of 3 facts"),
        (lambda facts: facts.alter({"Emma": 3}), r"a value must be text: found 3 \(int\)"),
        (lambda facts: facts.alter({("Emma",): "Jane Austen"}), "a key must be text: found .*tuple"),
        (lambda facts: facts.alter([("Emma", "Jane Austen")]), "changes must be a mapping.*found .*list"),
        (lambda facts: facts.alter("Emma"), "changes must be a mapping"),
        (lambda facts: facts.index(0), "a key must be text: found 0"),
        (lambda facts: facts.value_of(["Emma"]), "a key must be text: found .*list"),
        (lambda facts: facts.changed(["Emma"]), "compared with a fact set: found .*list"),
        (lambda facts: FactSet.from_csv(None, "a", "b"), "None cannot be read"),
        (lambda facts: FactSet.from_csv("a\0b", "a", "b"), "cannot be read: embedded null"),
        (lambda facts: FactSet.from_csv("x.csv", 0, "b"), "key must be text: found 0"),
        (lambda facts: FactSet.from_csv("x.csv", "a", "b", count="3"), "count must be a whole number"),
        (lambda facts: FactSet.from_csv("x.csv", "a", "b", count=True), "count must be a whole number"),
    ],
)  # fmt: skip
def test_arguments_of_another_type_are_refused_with_what_was_expected(books, call, message):
    with pytest.raises(MlpSwapError, match=message):
        call(books)


def test_a_value_need_not_be_in_use_and_a_text_may_be_key_and_value():
    facts = FactSet(("Emma", "Ulysses"), ("Ulysses", "Emma", "Homer"), (1, 0))
    assert facts.value_of("Emma") == "Emma"


@pytest.mark.parametrize("asked", ["Ema", "EMMA", "emma"])
def test_unknown_key_names_the_near_one(books, asked):
    with pytest.raises(FactsError, match=f"no key '{asked}' among the 3 keys.*did you mean 'Emma'"):
        books.value_of(asked)


def test_error_text_cannot_act_on_a_terminal(books):
    with pytest.raises(FactsError, match=r"no key '\\x1b\[31mEmma' among"):
        books.index("\x1b[31mEmma")


def test_alter_changes_only_what_was_asked(books):
    altered = books.alter({"Emma": "William Shakespeare"})
    assert altered.value_of("Emma") == "William Shakespeare"
    assert altered.changed(books) == books.changed(altered) == (0,)
    assert (altered.keys, altered.values) == (books.keys, books.values)
    assert books.value_of("Emma") == "Jane Austen"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Emmma": "Jane Austen"}, "no key 'Emmma'.*did you mean 'Emma'"),
        ({"Emma": "Jane Austin"}, "no value 'Jane Austin'.*did you mean 'Jane Austen'"),
        ({"Emma": "Mary Shelley"}, "no value 'Mary Shelley' among the 2 values"),
    ],
)
def test_alter_refuses_unknown_names(books, changes, message):
    with pytest.raises(FactsError, match=message):
        books.alter(changes)


def test_take_keeps_only_the_values_in_use(books):
    assert books.take(1) == FactSet(("Emma",), ("Jane Austen",), (0,))
    assert books.take(3) == books
    for count in (0, 4):
        with pytest.raises(FactsError, match=f"cannot take {count} of 3 facts"):
            books.take(count)


def test_changed_needs_the_same_keys(books):
    with pytest.raises(FactsError, match="different keys"):
        books.changed(books.take(2))


def test_changed_compares_values_not_their_numbers():
    """The same facts, read in another order of values, have not changed."""
    mine = FactSet(("a", "b"), ("x", "y"), (0, 1))
    its = FactSet(("a", "b"), ("y", "x"), (1, 1))
    assert mine.changed(its) == (1,)


def test_majority_share_is_that_of_the_commonest_value():
    """Probe 5: one author with many books sets the score of always guessing."""
    pairs = [(f"book {i}", "Prolific" if i < 60 else f"author {i}") for i in range(500)]
    facts = FactSet.from_pairs(pairs)
    assert facts.majority_share == pytest.approx(60 / 500)
    assert len(facts.values) == 441


def test_synthetic_is_a_seeded_bijection():
    facts = FactSet.synthetic(50, generator(3))
    assert sorted(facts.mapping) == list(range(50))
    assert (facts.keys[7], facts.values[7]) == ("k7", "v7")
    assert facts == FactSet.synthetic(50, generator(3))
    assert facts != FactSet.synthetic(50, generator(4))


@settings(deadline=None)
@given(fact_sets)
def test_dict_round_trip_through_json(facts):
    assert FactSet.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "found list"),
        ({"keys": []}, "found keys"),
        (
            {"keys": "a", "values": ["x"], "mapping": [0]},
            "'keys' of a saved fact set must be a list: found str",
        ),
        ({"keys": ["a"], "values": ["x"], "mapping": [0.0]}, r"mapping\[0\].*found 0.0"),
    ],
)
def test_from_dict_refuses_other_data(data, message):
    with pytest.raises(FactsError, match=message):
        FactSet.from_dict(data)


@settings(deadline=None)
@given(fact_sets, seeds)
def test_permute_keeps_the_multiset_of_values(facts, seed):
    permuted = facts.permute(generator(seed))
    assert Counter(permuted.mapping) == Counter(facts.mapping)
    assert (permuted.keys, permuted.values) == (facts.keys, facts.values)


@settings(deadline=None)
@given(fact_sets, seeds, st.data())
def test_permute_leaves_other_facts_alone(facts, seed, data):
    some = data.draw(st.lists(st.integers(0, len(facts) - 1), unique=True))
    permuted = facts.permute(generator(seed), indices=some)
    assert set(permuted.changed(facts)) <= set(some)
    assert Counter(permuted.mapping) == Counter(facts.mapping)


@settings(deadline=None)
@given(fact_sets, seeds)
def test_derange_moves_every_fact_or_says_why_not(facts, seed):
    """It is possible exactly where no value belongs to more than half of the facts."""
    if facts.majority_share <= 0.5:
        assert len(facts.permute(generator(seed), derange=True).changed(facts)) == len(facts)
    else:
        with pytest.raises(FactsError, match="more than half"):
            facts.permute(generator(seed), derange=True)


def test_derange_within_a_group():
    facts = FactSet.from_pairs([("a", "x"), ("b", "x"), ("c", "y"), ("d", "z")])
    for seed in range(20):
        assert facts.permute(generator(seed), indices=[3, 1], derange=True).changed(facts) == (1, 3)
    assert facts.permute(generator(), indices=[], derange=True) == facts
    with pytest.raises(FactsError, match="'x' belongs to 2 of 2, more than half"):
        facts.permute(generator(), indices=[0, 1], derange=True)


def test_permute_follows_its_generator():
    facts = FactSet.synthetic(30, generator())
    assert facts.permute(generator(1)) == facts.permute(generator(1))
    assert facts.permute(generator(1)) != facts.permute(generator(2))


@pytest.mark.parametrize("indices", [[0, 0], [3], [-1]])
def test_permute_refuses_wrong_indices(books, indices):
    with pytest.raises(FactsError, match="distinct and from 0 to 2"):
        books.permute(generator(), indices=indices)


def test_split_gives_disjoint_random_groups():
    facts = FactSet.synthetic(10, generator())
    first, none, second = facts.split(generator(1), 3, 0, 7)
    assert (len(first), none, len(second)) == (3, (), 7)
    assert sorted(first + second) == list(range(10))
    assert facts.split(generator(2), 3) != (first,)
    for counts in [(6, 5), (-1,)]:
        with pytest.raises(FactsError, match="cannot split 10 facts"):
            facts.split(generator(), *counts)


def test_from_csv_logs_the_report(tmp_path, caplog):
    path = tmp_path / "books.csv"
    path.write_text("book,author\n Emma,Jane Austen\nHamlet,William Shakespeare\n")
    with caplog.at_level(logging.INFO, logger="mlpswap.facts"):
        facts = FactSet.from_csv(path, key="book", value="author", count=1)
    assert list(facts.pairs()) == [(" Emma", "Jane Austen")]
    assert "2 rows, 1 kept, 1 dropped" in caplog.text
    assert [r.levelname for r in caplog.records] == ["INFO", "WARNING"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("The {book} of %s {0} $HOME \\n", "The {book} of %s {0} $HOME \\n"),
        ("a\tb\nc\x1b[31m\x7f\x85", r"a\x09b\x0ac\x1b[31m\x7f\x85"),
        ("\u202egnirts\u2066\u200d\u2028", r"\u202egnirts\u2066\u200d\u2028"),
        ("\U000e0041", r"\U000e0041"),
        ("ألف ليلة 👍 é", "ألف ليلة 👍 é"),
    ],
)
def test_printable_escapes_only_what_acts_on_a_terminal(text, shown):
    """Probes 6 and 7: names appear literally, control and direction marks as escapes."""
    assert printable(text) == shown
