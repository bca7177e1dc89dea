"""Permuted knots part by part: the zero code, the equations, the choice of knots, and what gives way to what."""

import pytest
import torch

from mlpswap.errors import ConfigError, InfeasibleConstructionError
from mlpswap.randomness import generator
from mlpswap.sequences.facts import PairFacts, draw_pair_facts
from mlpswap.sequences.methods import equations as equations_module
from mlpswap.sequences.methods import tangent
from mlpswap.sequences.methods.equations import Equations
from mlpswap.sequences.methods.knots import draw_knots, placed, signs
from mlpswap.sequences.methods.permuted_knots import PermutedKnots, PermutedKnotsConfig, draw_point
from mlpswap.sequences.methods.redraw import draw_base
from mlpswap.sequences.methods.selector_groups import disagreements, exchanged, grouped
from mlpswap.sequences.methods.tangent import half_spacing, label_positions, tangent_network


@pytest.mark.parametrize("width", [8, 9, 16])
@pytest.mark.parametrize("pairs", [0, 1, 3, 100])
def test_the_code_is_zero_at_every_level_and_something_fires(width, pairs):
    """For few levels and many, evenly spaced or not; this is what makes a small correction decide the labels."""
    draw = generator(0, "knots", width, pairs)
    for visible in (*range(1, 9), 20, 50):
        levels = torch.rand(visible, generator=draw, dtype=torch.float64).sort().values
        for _ in range(20):
            knots = placed(draw_knots(visible, width, pairs, draw), levels)
            before = levels[:, None] - knots
            fires = torch.relu(before)
            assert (fires @ signs(width)).abs().max() < 1e-12
            assert (fires.sum(1) > 0.4).all()
            assert (before.abs() > 1e-9 * levels.diff().min() if visible > 1 else before != 0).all()


def test_almost_every_neuron_has_a_cell_of_its_own():
    """14 of 16 patterns of gates, where pairs alone would give 8."""
    draw = generator(1, "knots")
    for _ in range(50):
        knots = draw_knots(24, 16, 1, draw)
        gates = (torch.arange(24)[:, None] > knots).double()
        assert torch.linalg.matrix_rank(gates) >= 11


@pytest.fixture
def base():
    facts = draw_pair_facts(400, 32, 16)
    return facts, draw_point(facts, 16, PermutedKnotsConfig(draws=8), generator(0, "base"))


def test_the_correction_changes_no_gate_and_meets_the_labels(base):
    facts, point = base
    before = point.first[facts.first] + point.second[facts.second]
    assert (torch.relu(before) @ point.signs).abs().max() < 1e-9
    network = tangent_network(point, facts)
    after = network.first[facts.first] + network.second[facts.second]
    assert torch.equal(after > 0, before > 0)
    assert network.accuracy(facts) == 1


def test_reweighting_makes_the_labels_larger(base):
    """rho is what the unembedding's last column is made of."""
    facts, point = base
    plain, spread = (tangent_network(point, facts, reweightings=number) for number in (0, 3))
    assert spread.accuracy(facts) == 1
    assert spread.unembedding[:, -1].abs().max() > 1.2 * plain.unembedding[:, -1].abs().max()


def test_digits_that_float32_lacks_are_won_by_reweighting(monkeypatch):
    """Of 512 labels on a line, neighbours differ in digits that a plain solve leaves too small."""
    facts = draw_pair_facts(500, 32, 512)

    def accuracies():
        draws = [generator(trial, "digits") for trial in range(3)]
        built = PermutedKnots().build(facts, 16, PermutedKnotsConfig(), draws)
        return [network.accuracy(facts) for network in built]

    assert accuracies() == [1.0] * 3
    monkeypatch.setattr(tangent, "REWEIGHTINGS", 0)
    assert min(accuracies()) < 1


def test_more_facts_than_there_can_be_equations_are_not_tried_at_length(monkeypatch):
    """One solve says that they are not stored; with fewer, outermost labels are released and recalled."""
    written = []
    monkeypatch.setattr(tangent._Writer, "write", _counted(tangent._Writer.write, written))
    for count, least, most in ((256, 1, 1), (170, 3, 24)):
        written.clear()
        facts = draw_pair_facts(count, 16, 8)
        draws = [generator(0, "many")]
        (network,) = PermutedKnots().build(facts, 8, PermutedKnotsConfig(), draws)
        assert network.accuracy(facts) < 1
        assert least <= len(written) <= most


def _counted(write, written):
    def counted(writer, held):
        written.append(held)
        return write(writer, held)

    return counted


@pytest.fixture
def system():
    draw = generator(0, "system")
    facts = draw_pair_facts(150, 20, 5)
    rows = torch.randn(150, 6, generator=draw, dtype=torch.float64)
    freedom = torch.rand(2, 20, 6, generator=draw, dtype=torch.float64) + 0.5
    target = torch.randn(150, generator=draw, dtype=torch.float64)
    return Equations(facts.first, facts.second, (freedom[0], freedom[1])), rows, target


def test_the_correction_has_the_least_weighted_norm(system):
    """Against the pseudo-inverse of the dense system."""
    equations, rows, target = system
    first, second = equations.correction(rows, equations.solve(rows, target, target.abs()))
    dense = torch.zeros(150, 2, 20, 6, dtype=torch.float64)
    fact = torch.arange(150)
    dense[fact, 0, equations.first] = dense[fact, 1, equations.second] = rows
    root = torch.stack(equations.freedom).sqrt()
    least = root * (torch.linalg.pinv((dense * root).flatten(1)) @ target).reshape(2, 20, 6)
    torch.testing.assert_close(torch.stack([first, second]), least, rtol=1e-6, atol=1e-8)


def test_conjugate_gradients_agree_with_the_factor(system, monkeypatch):
    equations, rows, target = system
    tolerance = torch.full_like(target, 1e-9)
    wanted = equations.correction(rows, equations.solve(rows, target, tolerance))
    monkeypatch.setattr(equations_module, "DIRECT", 10)
    found = equations.correction(rows, equations.solve(rows, target, tolerance))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)  # they keep a jitter


def test_conjugate_gradients_meet_what_does_not_contradict(system, monkeypatch):
    """One fact twice, with two wanted codes, must not keep the other equations from being met."""
    equations, rows, target = system
    monkeypatch.setattr(equations_module, "DIRECT", 10)
    first, second = (torch.cat([token, token[:1]]) for token in (equations.first, equations.second))
    rows, target = torch.cat([rows, rows[:1]]), torch.cat([target, target[:1] + 1])
    twice = Equations(first, second, equations.freedom)
    found = twice.solve(rows, target, torch.full_like(target, 1e-6))
    off = (twice.product(rows, found) - target).abs()
    assert off[1:-1].max() < 1e-3
    assert off[[0, -1]].max() > 0.4


def _log_volume(facts, knots, levels):
    rows = (levels[facts.second, None] > knots[facts.first]) * signs(knots.shape[1])
    same = (facts.first[:, None] == facts.first).double() + (facts.second[:, None] == facts.second)
    eye = torch.eye(len(facts), dtype=torch.float64)
    return float(torch.logdet((rows @ rows.T) * same + 1e-4 * eye))


def test_chosen_knots_make_the_equations_more_independent():
    """The first of several draws is what one draw would give, so the volume can be compared with that of chance."""
    facts = draw_pair_facts(300, 20, 10)
    for trial in range(3):
        one, many = (draw_base(facts, 10, [1], draws, generator(trial, "knots")) for draws in (1, 30))
        assert _log_volume(facts, *many) > _log_volume(facts, *one) + 50


def test_codes_of_neighbouring_labels_are_told_apart():
    for labels in (1, 2, 5, 16, 128):
        positions = label_positions(labels)
        assert torch.equal(positions, -positions.flip(0))
        assert positions.abs().max() <= 1
        half = half_spacing(positions)
        assert (positions[1:] - half[1:] >= positions[:-1] + half[:-1] - 1e-12).all()


def test_below_full_accuracy_more_facts_are_stored():
    facts = draw_pair_facts(170, 16, 8)
    found = {}
    for threshold in (1.0, 0.9):
        draws = [generator(trial, "giving up") for trial in range(4)]
        networks = PermutedKnots().build(facts, 8, PermutedKnotsConfig(), draws, threshold=threshold)
        found[threshold] = max(network.accuracy(facts) for network in networks)
    assert found[0.9] >= 0.9 > found[1.0]


@pytest.mark.parametrize(("width", "count"), [(64, 8), (128, 3)])
def test_a_token_none_of_whose_facts_is_watched_is_no_trouble(width, count):
    """Large vocabularies have second tokens that the choice of knots does not watch."""
    facts = draw_pair_facts(count, 2 * width, width)
    (network,) = PermutedKnots().build(facts, width, PermutedKnotsConfig(), [generator(0)])
    assert network.accuracy(facts) == 1


def test_tokens_without_facts_and_single_labels_are_no_trouble():
    facts = PairFacts(torch.tensor([0, 3]), torch.tensor([1, 1]), torch.tensor([0, 0]), 5, 1)
    (network,) = PermutedKnots().build(facts, 8, PermutedKnotsConfig(), [generator(0, "few")])
    assert network.accuracy(facts) == 1


@pytest.mark.parametrize("options", [{"draws": 0}, {"pairs": []}, {"pairs": [-1]}, {"reweightings": -1}])
def test_options_that_make_no_sense(options):
    with pytest.raises(ConfigError, match="permuted_knots"):
        PermutedKnotsConfig(**options)


def test_a_narrow_network_cannot_have_a_run():
    with pytest.raises(InfeasibleConstructionError, match="expected at least 8"):
        PermutedKnots().build(draw_pair_facts(4, 4, 2), 4, PermutedKnotsConfig(), [generator(0)])


def test_groups_are_full_and_exchanges_only_help():
    facts = draw_pair_facts(350, 32, 16)
    conflicts = disagreements(facts)
    group = grouped(conflicts, 15, generator(0, "groups"))
    assert sorted(torch.bincount(group).tolist()) == [2] * 13 + [3] * 2
    better = exchanged(conflicts, group, 1000)
    assert torch.equal(torch.bincount(better).sort().values, torch.bincount(group).sort().values)

    def cost(of):
        return float((conflicts * (of[:, None] == of)).sum())

    assert cost(better) < cost(group)


def test_where_nothing_is_written_reweighting_changes_nothing():
    """Facts of one label are right without any correction, whose reach is then zero."""
    facts = draw_pair_facts(12, 8, 1)
    [network] = PermutedKnots().build(facts, 16, PermutedKnotsConfig(reweightings=2), [generator(0)])
    assert network.accuracy(facts) == 1
