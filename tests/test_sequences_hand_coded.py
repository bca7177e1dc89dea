"""The published construction keeps its promises neuron by neuron, and the exact one stores every pair."""

import pytest
import torch

from mlpswap.errors import ConfigError, InfeasibleConstructionError
from mlpswap.sequences.base import trial_generator
from mlpswap.sequences.facts import draw_pair_facts
from mlpswap.sequences.methods.allocation import (
    add,
    allocation,
    excess,
    multiplication,
    permuted,
    plane_lines,
)
from mlpswap.sequences.methods.exact import Exact, ExactConfig, exact_with_bias
from mlpswap.sequences.methods.hand_coded import HandCoded, HandCodedConfig, owned_neurons, silent_embeddings

WIDTH, TRIALS = 16, 3


def generators(name="hand_coded"):
    return [trial_generator(name, trial) for trial in range(TRIALS)]


@pytest.mark.parametrize(("d", "size"), [(8, 2), (16, 3), (16, 4), (25, 5), (32, 5), (64, 8), (128, 8)])
def test_where_algebra_allows_it_labels_share_at_most_one_neuron(d, size):
    matrix = allocation(d, d, size)
    assert (matrix.sum(0) == size).all()
    assert (matrix.sum(1) == size).all()
    assert excess(matrix) == 0


@pytest.mark.parametrize(
    ("d", "labels", "size"), [(8, 8, 5), (16, 16, 6), (32, 32, 7), (16, 40, 3), (12, 5, 4), (5, 3, 5)]
)
def test_elsewhere_columns_are_whole_loads_even_and_the_overlap_less_than_by_chance(d, labels, size):
    matrix = allocation(d, labels, size)
    assert (matrix.sum(0) == size).all()
    assert matrix.sum(1).max() - matrix.sum(1).min() <= 2
    draw = torch.Generator().manual_seed(0)
    chance = torch.stack([torch.randperm(d, generator=draw) < size for _ in range(labels)], 1)
    assert excess(matrix) <= excess(chance)


@pytest.mark.parametrize("order", [2, 3, 4, 5, 8, 16])
def test_planes_rest_on_fields(order):
    """Two lines of a plane meet at most once, and every line has its q points; both need a field."""
    times = multiplication(order)
    assert all(len({times(x, y) for y in range(order)}) == order for x in range(1, order))
    three = [(x, y, z) for x in range(order) for y in range(order) for z in (1, order - 1)]
    for x, y, z in three:
        assert times(x, add(y, z, order)) == add(times(x, y), times(x, z), order)
    lines = plane_lines(order**2, order**2 + order, order)
    assert all(len(set(line)) == order for line in lines)
    assert all(len(set(p) & set(q)) <= 1 for p in lines for q in lines if p is not q)


@pytest.mark.parametrize("order", [1, 6, 9, 12])
def test_other_orders_have_no_plane_here(order):
    assert multiplication(order) is None
    assert plane_lines(order**2, order, order) is None


def test_trials_permute_one_matrix():
    matrix = allocation(WIDTH, WIDTH, 4)
    one, other = (permuted(matrix, draw) for draw in generators()[:2])
    assert not torch.equal(one, other)
    assert excess(one) == excess(other) == 0


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.38])
@pytest.mark.parametrize("count", [5, 60, 150])
def test_every_neuron_is_silent_on_its_facts_by_the_published_weights(fraction, count):
    facts = draw_pair_facts(count, 2 * WIDTH, WIDTH)
    config = HandCodedConfig(4, fraction)
    owned = owned_neurons(facts, WIDTH, config, generators())
    first, second = silent_embeddings(facts, owned, config, generators())
    pre = first[:, facts.first] + second[:, facts.second]  # (T, N, d)
    mine = owned[:, :, facts.label].transpose(1, 2)
    assert (pre[mine] <= 0).all()
    for trial in range(TRIALS):
        for neuron in range(WIDTH):
            own = mine[trial, :, neuron]
            cut = []
            for table, tokens in ((first, facts.first), (second, facts.second)):
                weights = table[trial, :, neuron]
                counts = torch.bincount(tokens[own], minlength=2 * WIDTH)
                present = int((counts > 0).sum())
                assert (weights == -1).sum() == (max(1, int(fraction * present + 1e-9)) if present else 0)
                if present:
                    others = counts[(weights != -1)]
                    assert counts[weights == -1].min() >= others.max()
                cut.append((weights == -1)[tokens])
            left = own & ~cut[0] & ~cut[1]
            for table, tokens in ((first, facts.first), (second, facts.second)):
                zero = (table[trial, :, neuron] == 0).nonzero().flatten().tolist()
                assert set(zero) == set(tokens[left].tolist())


def test_no_negative_tokens_at_all_is_possible():
    facts = draw_pair_facts(40, 2 * WIDTH, WIDTH)
    config = HandCodedConfig(4, top_tokens=0)
    owned = owned_neurons(facts, WIDTH, config, generators())
    assert min(table.min() for table in silent_embeddings(facts, owned, config, generators())) == 0


def test_ties_are_decided_and_their_order_loses_no_more_facts():
    """By the index, as argmax would have it; by an order that suits the facts, better."""
    facts = draw_pair_facts(70, 2 * WIDTH, WIDTH)
    by_index, by_order = (
        HandCoded().build(facts, WIDTH, HandCodedConfig(3, 0.0, ties=ties), generators())
        for ties in ("index", "order")
    )
    for one, other in zip(by_index, by_order, strict=True):
        plain = one.hidden(facts) @ torch.where(one.unembedding <= -2, -2.0, 0.0).T
        assert one.accuracy(facts) == pytest.approx(float((plain.argmax(1) == facts.label).double().mean()))
        assert other.accuracy(facts) >= one.accuracy(facts)
    assert sum(n.accuracy(facts) for n in by_order) > sum(n.accuracy(facts) for n in by_index)


def test_what_cannot_be_is_refused():
    facts = draw_pair_facts(40, 8, 4)
    with pytest.raises(InfeasibleConstructionError, match="5 neurons for each label"):
        HandCoded().build(facts, 4, HandCodedConfig(5), generators())
    for wrong in ({"top_fraction": 2.0}, {"neurons_per_label": 0}, {"ties": "coin"}, {"top_tokens": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            HandCodedConfig(**wrong)


def test_one_neuron_more_than_tokens_stores_every_pair():
    facts = draw_pair_facts(256, 16, 8)
    (network,) = Exact().build(facts, 18, ExactConfig(), generators("exact")[:1])
    assert network.margins(facts).min() == 0.5
    with pytest.raises(InfeasibleConstructionError, match="at least 17"):
        Exact().build(facts, 16, ExactConfig(), generators("exact"))


def test_with_an_output_bias_as_many_neurons_as_tokens_are_enough():
    facts = draw_pair_facts(256, 16, 8)
    network, bias = exact_with_bias(facts)
    assert network.width == 16
    assert torch.equal((network.logits(facts) + bias).argmax(1), facts.label)
