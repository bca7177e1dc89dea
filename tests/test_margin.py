"""Margin projection and the read-out that it corrects: against loops over rows, and what it makes of a width."""

import math

import pytest
import torch

from mlpswap.constructions import build_fact_mlp, margin
from mlpswap.constructions.base import margins
from mlpswap.constructions.hebbian import default_width
from mlpswap.constructions.margin import MarginSets, correct_readout
from mlpswap.constructions.readout import ridge_readout
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError

SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def facts(count, d, seed=0):
    draw = generator(seed)
    keys = spherical(count, d, draw)
    return keys, keys, torch.randperm(count, generator=draw)


def make(arguments, *, seed=1, competitors=None, **options):
    return build_fact_mlp(
        *arguments,
        "hebbian",
        competitors=competitors,
        generator=generator(seed),
        margin_correct=True,
        **options,
    )


def problem(count=30, values=20, others=15, d=6, **options):
    """Outputs of length about 1, tables of unequal lengths, values that nobody wants."""
    draw = generator(count)
    table = gaussian(values, d, draw, torch.float64) / math.sqrt(d)
    competitors = gaussian(others, d, draw, torch.float64) / math.sqrt(d)
    mapping = torch.randint(values - 5, (count,), generator=draw)
    y = gaussian(count, d, draw, torch.float64) / math.sqrt(d)
    return MarginSets(table, mapping, competitors, gamma=0.3, dtype=torch.float64, **options), y


def projected_by_loops(sets, y, rows, sweeps, relaxation):
    """Fact by fact: step onto the half-space violated most, too far by the factor `relaxation`."""
    result = y.clone()
    for i, wanted in enumerate(sets.mapping.tolist()):
        normals = [sets.table[wanted] - sets.table[j] for j in rows[i] if j != wanted]
        normals = [normal / normal.norm() for normal in normals if normal.norm() > 0]
        for _ in range(sweeps):
            distance, normal = min(((float(result[i] @ n), n) for n in normals), key=lambda pair: pair[0])
            result[i] += relaxation * max(0.0, sets.gamma - distance) * normal
    return result


@pytest.mark.parametrize("chunk", [1, 300, 2**20])
def test_projection_is_the_loop_over_rows(chunk, monkeypatch):
    """With every row on the shortlist, in blocks of one fact, of some, of all; a twin of a wanted row among them."""
    monkeypatch.setattr(margin, "CHUNK", chunk)
    sets, y = problem(shortlist=100)
    sets.table[30] = sets.table[2]
    everything = [range(35)] * 30
    for sweeps, relaxation in ((1, 1.0), (4, 1.5)):
        projected = sets.project(y, sets.shortlist(y), sweeps=sweeps, relaxation=relaxation)
        assert torch.allclose(
            projected, projected_by_loops(sets, y, everything, sweeps, relaxation), rtol=1e-9
        )


def test_shortlist_holds_the_wrong_rows_that_score_highest():
    """Values and competitors alike, never the right row; and it counts the facts that are stored."""
    sets, y = problem(shortlist=4)
    found = sets.shortlist(y)
    stored = 0
    for i, wanted in enumerate(sets.mapping.tolist()):
        scores = {j: float(y[i] @ row) for j, row in enumerate(sets.table)}
        right = scores.pop(wanted)
        assert found.rows[i].tolist() == sorted(scores, key=scores.get, reverse=True)[:4]
        stored += right > max(scores.values())
    assert found.stored == stored
    expected = projected_by_loops(sets, y, found.rows.tolist(), 3, 1.5)
    assert torch.allclose(sets.project(y, found, sweeps=3), expected, rtol=1e-9)


def test_many_sweeps_end_inside_and_leave_what_was_inside():
    """A projected output keeps every margin; an output that did so already is its own target."""
    sets, y = problem(shortlist=100, values=10, others=0)
    once = sets.project(y, sets.shortlist(y), sweeps=500, relaxation=1.0)
    differences = sets.table[sets.mapping, None] - sets.table
    distances = differences.norm(dim=2)
    reached = (torch.einsum("fjd,fd->fj", differences, once) / distances).nan_to_num(nan=1.0)
    assert float(reached.min()) > 0.3 - 1e-6
    further = sets.project(1.01 * once, sets.shortlist(once), sweeps=5)
    assert torch.equal(further, 1.01 * once)


def test_a_single_row_leaves_nothing_to_lose_against():
    """One value and no competitors: every output is inside."""
    y = gaussian(3, 4, generator())
    sets = MarginSets(y[:1], torch.zeros(3, dtype=torch.long), y[:0], gamma=0.3)
    found = sets.shortlist(y)
    assert found.stored == 3
    assert torch.equal(sets.project(y, found, sweeps=3), y)


@pytest.mark.parametrize("name", ["hebbian", "gauss_newton"])
def test_what_all_rows_share_does_not_matter(name):
    """A common vector on values and competitors, ten times as long as they are, changes no difference of scores."""
    keys, values, mapping = facts(200, 32)
    others, shift = spherical(300, 32, generator(5)), 10 * spherical(1, 32, generator(6))
    options = {"margin_correct": True} if name == "hebbian" else {}
    mlp = build_fact_mlp(
        keys, values + shift, mapping, name, competitors=others + shift, generator=generator(1), **options
    )
    assert mlp.report.accuracy_vocabulary == 1.0
    outputs = mlp(keys)
    assert float((outputs @ shift.T).abs().mean() / (outputs.norm(dim=1).mean() * shift.norm())) < 0.3


@pytest.mark.parametrize("name", ["hebbian", "gauss_newton"])
def test_equal_values_give_finite_weights(name):
    """Nothing can tell them apart; the report says so."""
    keys, _, mapping = facts(20, 8)
    options = {"margin_correct": True} if name == "hebbian" else {}
    mlp = build_fact_mlp(keys, keys[:1].repeat(20, 1), mapping, name, generator=generator(1), **options)
    assert mlp.report.accuracy == 0
    assert all(parameter.isfinite().all() for parameter in mlp.parameters())


def fitting_problem(count=200, d=32, h=60):
    keys, values, mapping = (each.double() if each.is_floating_point() else each for each in facts(count, d))
    phi = (keys @ gaussian(h, d, generator(1), torch.float64).T) * (
        keys @ gaussian(h, d, generator(2), torch.float64).T
    )
    return phi, values[mapping], MarginSets(values, mapping, values[:0], gamma=0.3, dtype=torch.float64)


def test_no_round_is_least_squares_scaled():
    """The start: ridge least squares with a mean right score of 1."""
    phi, targets, sets = fitting_problem()
    b, details = correct_readout(phi, targets, sets, rounds=0)
    plain = ridge_readout(phi, targets)
    score = ((phi @ plain.T) * sets.wanted).sum(dim=1).mean()
    assert details["rounds"] == 0
    assert torch.allclose(b, plain / score, rtol=1e-6, atol=1e-9)


def test_a_round_is_least_squares_to_the_projection():
    """One round, written out with the normal equations."""
    phi, targets, sets = fitting_problem()
    start, _ = correct_readout(phi, targets, sets, rounds=0)
    y = phi @ start.T
    aim = sets.project(y, sets.shortlist(y), sweeps=margin.SWEEPS)
    assert not torch.equal(aim, y)
    b, _ = correct_readout(phi, targets, sets, rounds=1)
    assert torch.allclose(b, ridge_readout(phi, aim), rtol=1e-6, atol=1e-9)


def test_beyond_capacity_the_best_round_is_kept():
    """Correction never stores less than least squares does, though each round may."""
    arguments = facts(600, 16)
    kept = make(arguments, h=30, rounds=20).report
    plain = build_fact_mlp(*arguments, "hebbian", h=30, generator=generator(1)).report
    assert 1 > kept.accuracy >= plain.accuracy > 0


def test_rounds_end_when_all_is_stored():
    """At the last fact, or `extra_rounds` later with a wider margin, never after the cap."""
    arguments = facts(256, 32)
    thin, wide = (make(arguments, h=32, extra_rounds=extra).report for extra in (0, 5))
    assert thin.accuracy == wide.accuracy == 1.0
    first, last = (report.details["correction"]["rounds"] for report in (thin, wide))
    assert 0 < first < last == first + 5 < 100
    assert wide.margin > thin.margin
    assert make(arguments, h=32, rounds=3).report.details["correction"]["rounds"] == 3


def test_rarer_shortlists_reach_the_same(monkeypatch):
    """Large problems look at all rows in every fifth round only."""
    monkeypatch.setattr(margin, "LARGE", 0)
    report = make(facts(256, 32), h=32).report
    assert report.accuracy == 1.0
    assert report.details["correction"]["rounds"] % margin.REFRESH_EVERY == 0


def test_competitors_lose():
    """The rest of a vocabulary counts among the rows to beat; without correction some of it wins."""
    arguments, others = facts(256, 32), spherical(2000, 32, generator(5))
    report = make(arguments, h=44, competitors=others).report
    assert report.accuracy_vocabulary == 1.0
    plain = build_fact_mlp(*arguments, "hebbian", h=44, competitors=others, generator=generator(1)).report
    assert plain.accuracy_vocabulary < 0.95


@pytest.mark.parametrize("variant", ["whitened", "data_dependent"])
@pytest.mark.parametrize(("count", "d"), [(16, 8), (256, 32), (600, 64)])
def test_default_widths_are_smaller_and_suffice(variant, count, d):
    """A third of what the same variant needs without correction, as soon as there are many facts."""
    mlp = make(facts(count, d), variant=variant)
    assert mlp.report.accuracy == 1.0
    if count > 200:
        assert mlp.config.h < 0.6 * default_width(variant, count, count, d)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("outputs", ["values", "margin_optimal"])
def test_published_width_stores_everything(outputs, seed):
    """(d, F) = (64, 1024) in h = 88, which is 1.65 bits of look-up table per parameter."""
    assert make(facts(1024, 64, seed), seed=seed + 100, h=88, outputs=outputs).report.accuracy == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("variant", "h"), [("data_dependent", 64), ("whitened", 144)])
def test_smallest_widths(variant, h, seed):
    """Momentum gets (64, 1024) into h = 64 fitted or 144 random features, 0.83 and 0.37 bits per parameter."""
    assert make(facts(1024, 64, seed), seed=seed + 100, variant=variant, h=h).report.accuracy == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scales(seed):
    """F = 4096, d = 128 in h = 160 fitted features, 0.8 bits per parameter: ten CPU seconds."""
    assert make(facts(4096, 128, seed), seed=seed + 100, h=160).report.accuracy == 1.0


def test_tolerates_noise():
    """Keys moved by one unit sqrt(d / (F ln F)) are all recalled at h = 96, thanks to the extra rounds."""
    keys, values, mapping = facts(1024, 64)
    near = keys + math.sqrt(64 / (1024 * math.log(1024))) * spherical(1024, 64, generator(5))
    for extra, least in ((0, 0.98), (5, 1.0)):
        mlp = make((keys, values, mapping), h=96, extra_rounds=extra)
        recall = float((margins(mlp, near, values, mapping) > 0).double().mean())
        assert least <= recall
    assert recall == 1.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"variant": "plain"}, "margin_correct corrects the whitened read-out, not that of variant 'plain'"),
        (
            {"outputs": "best"},
            "hebbian: unknown outputs 'best': expected one of auto, values, margin_optimal",
        ),
        ({"gamma": 0.0}, "hebbian: gamma must be positive, found 0.0"),
        ({"rounds": -1}, "hebbian: rounds must not be negative, found -1"),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    """Before any work, with the option's name."""
    with pytest.raises(ConfigError, match=text):
        make(facts(8, 8), **options)
