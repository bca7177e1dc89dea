"""Any, Most and All over trials, and the searches: what they ask for and what they say of success that comes and goes."""

import pytest

from mlpswap.errors import RegistryError
from mlpswap.sequences.methods import get_method
from mlpswap.sequences.scores import agreed, succeeds
from mlpswap.sequences.search import (
    Capacity,
    bracketed_search,
    capacity,
    full_search,
    published_search,
    run_search,
)


def test_the_rules_are_best_median_and_worst():
    accuracies = [1.0] * 5 + [0.5] * 6
    assert [agreed(accuracies, rule) for rule in ("any", "most", "all")] == [1.0, 0.5, 0.5]
    assert succeeds([1.0] * 6 + [0.5] * 5, 1.0, "most")
    assert not succeeds([1.0, 0.5], 1.0, "most")  # half are no majority


SEARCHES = {
    "full": lambda: full_search(1024, 1e-9),
    "around too little": lambda: bracketed_search(3, 1024, 1e-9),
    "around": lambda: bracketed_search(300, 1024, 1e-9),
    "around too much": lambda: bracketed_search(5000, 1024, 1e-9),
}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("limit", [0, 1, 2, 3, 200, 300, 301, 512, 1023, 1024])
def test_every_search_finds_the_limit_of_what_is_monotone(name, limit):
    found = run_search(SEARCHES[name](), lambda count: count <= limit)
    assert (found.largest, found.unbroken) == (limit, limit)
    assert found.failed == (limit + 1 if limit < 1024 else None)


@pytest.mark.parametrize("limit", [1, 2, 200, 300, 301, 512, 1023, 1024])
def test_the_published_search_understates_by_its_precision(limit):
    """It never tries the last size of its bracket, unless that is all pairs."""
    found = run_search(published_search(1024, facts=1), lambda count: count <= limit)
    assert limit - 1 <= found.largest <= limit
    assert run_search(published_search(1024), lambda count: count <= limit).largest >= 0.97 * limit - 1


def test_a_search_ends_at_its_precision():
    found = run_search(bracketed_search(900, 4096, 0.02), lambda count: count <= 1000)
    assert found.failed is not None
    assert 0 < found.failed - found.largest <= 0.02 * found.failed
    coarse: list[int] = []
    run_search(published_search(1024, facts=8), lambda count: coarse.append(count) or count <= 700)
    assert coarse[:3] == [512, 768, 640]
    assert len(coarse) == 7


def test_a_good_guess_saves_probes():
    asked = {}
    for name, probes in (("published", published_search(4096)), ("around", bracketed_search(1000, 4096))):
        asked[name] = []
        run_search(probes, lambda count, seen=asked[name]: seen.append(count) or count <= 1010)
    assert len(asked["around"]) < len(asked["published"])
    assert len(set(asked["around"])) == len(asked["around"])  # nothing is tried twice


def test_success_that_comes_and_goes_is_reported_as_such():
    """A bracket from above would hide the hole, one from below the island."""

    def stored(count):
        return count <= 100 or 400 <= count <= 600

    found = run_search(full_search(1024, 1e-9), stored)
    assert (found.largest, found.unbroken, found.failed) == (600, 100, 601)
    assert capacity({1: True, 5: False, 9: True}) == Capacity(9, 1, None)
    assert capacity({5: False}) == Capacity(0, 0, 5)


def test_a_method_that_is_not_there_has_near_names():
    with pytest.raises(RegistryError, match="did you mean 'hand_coded'"):
        get_method("handcoded")
