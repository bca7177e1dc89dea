"""The search asks for as few builds as it can and returns a size that did succeed."""

import pytest

from mlpswap.cost.search import Outcome, smallest_size, verify


def drive(probes, accuracy):
    """Run a search on a function of (size, seed); returns what it found and what it asked for."""
    asked = []
    try:
        request = next(probes)
        while True:
            asked.append(request)
            request = probes.send(Outcome(*request, accuracy(*request)))
    except StopIteration as stop:
        return stop.value, asked


@pytest.mark.parametrize("threshold", [1, 2, 3, 7, 64, 100, 101, 997, 1000, 4096])
@pytest.mark.parametrize("guess", [1, 50, 100, 5000])
def test_the_threshold_is_found_from_any_guess(threshold, guess):
    found, asked = drive(
        smallest_size(guess, [0, 1], precision=1e-6), lambda size, _: float(size >= threshold)
    )
    assert (found.size, found.below, found.status) == (threshold, threshold - 1, "found")
    assert [outcome.seed for outcome in found.outcomes] == [0, 1]
    assert len(set(asked)) == len(asked)  # nothing is built twice


def test_the_bracket_ends_at_the_precision_asked_for():
    found, _ = drive(smallest_size(64, [0], precision=0.1), lambda size, _: float(size >= 1000))
    assert found.below < 1000 <= found.size
    assert found.size - found.below <= 0.1 * found.size


def test_the_worst_seed_decides_and_a_failing_seed_ends_a_size():
    """arXiv 2512.00207's own sweep takes the best seed; ours the worst."""
    needs = {0: 10, 1: 40, 2: 20}
    found, asked = drive(
        smallest_size(16, [0, 1, 2], precision=1e-6), lambda size, seed: float(size >= needs[seed])
    )
    assert (found.size, found.below) == (40, 39)
    assert (39, 2) not in asked


def test_a_share_of_wrong_facts_may_be_allowed():
    found, _ = drive(smallest_size(8, [0], error=0.1, precision=1e-6), lambda size, _: min(1.0, size / 100))
    assert found.size == 90


def test_what_never_succeeds_is_given_up():
    found, asked = drive(smallest_size(8, [0, 1], largest=100), lambda *_: 0.5)
    assert (found.size, found.status) == (None, "none")
    assert max(size for size, _ in asked) == 100


def test_where_nothing_ends_in_time_the_search_says_so():
    found, _ = drive(smallest_size(8, [0], largest=16), lambda *_: None)
    assert (found.size, found.status) == (None, "capped")


def test_a_smaller_size_that_took_too_long_makes_the_result_an_upper_bound():
    found, _ = drive(
        smallest_size(64, [0], precision=1e-6),
        lambda size, _: None if size < 50 else 1.0,
    )
    assert (found.size, found.status) == (50, "capped")


def test_a_size_is_verified_with_the_next_smaller_one():
    def accuracy(size, seed):
        return float(size >= 100)

    assert drive(verify(100, [0, 1], precision=0.02), accuracy)[0].below == 98
    assert drive(verify(120, [0, 1], precision=0.02), accuracy)[0].below == 0  # not the smallest
    found, asked = drive(verify(90, [0, 1], precision=0.02), accuracy)
    assert (found.size, found.status, asked) == (None, "none", [(90, 0)])
    assert drive(verify(1, [0], precision=0.02), lambda *_: 1.0)[1] == [(1, 0)]
