"""Fact MLPs trained by gradient descent: the loss, the recipe, and what it reaches."""

import math

import pytest
import torch
from torch.nn import functional as F

from mlpswap.constructions import build_fact_mlp
from mlpswap.constructions.base import KINDS, margins
from mlpswap.constructions.gd import (
    GradientDescentConfig,
    candidate_loss,
    default_width,
    draw_batches,
    recipe,
)
from mlpswap.constructions.noise import disturb
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def facts(count, d, seed=0):
    draw = generator(seed)
    keys = spherical(count, d, draw)
    return keys, keys, torch.randperm(count, generator=draw)


def train(arguments, *, seed=1, competitors=None, **options):
    return build_fact_mlp(*arguments, "gd", generator=generator(seed), competitors=competitors, **options)


def full_loss(y, wanted, rows):
    """-log softmax of <y_i, row_j> at j = wanted_i, row by row."""
    terms = []
    for output, target in zip(y, wanted.tolist(), strict=True):
        scores = [float(output @ row) for row in rows]
        terms.append(math.log(sum(math.exp(score) for score in scores)) - scores[target])
    return sum(terms) / len(terms)


def test_loss_over_all_candidates_is_the_full_cross_entropy():
    """With every row a candidate nothing is sampled away, whatever the order and however often a value occurs."""
    values = gaussian(12, 5, generator(), torch.float64)
    others = gaussian(7, 5, generator(1), torch.float64)
    wanted = torch.tensor([3, 3, 0, 1, 2, 4, 5, 11, 6, 7, 8, 9, 10, 3])  # each value once at least
    y = gaussian(14, 5, generator(2), torch.float64)
    loss = candidate_loss(y, wanted, values, others, generator())
    assert float(loss) == pytest.approx(full_loss(y, wanted, torch.cat([values, others])), rel=1e-12)


def test_a_batch_competes_among_its_own_values():
    """Values that the batch does not want, and no others, are left out."""
    values = gaussian(12, 5, generator(), torch.float64)
    y, wanted = gaussian(3, 5, generator(1), torch.float64), torch.tensor([9, 2, 9])
    loss = candidate_loss(y, wanted, values, values[:0], generator())
    assert float(loss) == pytest.approx(full_loss(y, torch.tensor([1, 0, 1]), values[[2, 9]]), rel=1e-12)


def test_a_sample_of_competitors_weighs_as_much_as_all():
    """Where all competitors are equal, the sampling correction makes the sampled loss exact."""
    values = gaussian(4, 5, generator(), torch.float64)
    others = values.mean(dim=0).repeat(50, 1)
    y, wanted = gaussian(4, 5, generator(1), torch.float64), torch.arange(4)
    loss = candidate_loss(y, wanted, values, others, generator())
    assert float(loss) == pytest.approx(full_loss(y, wanted, torch.cat([values, others])), rel=1e-12)


def test_smallest_published_size_trains():
    """(d, F) = (32, 256) fits a SwiGLU MLP of width 16, which is 1.3 bits per parameter."""
    report = train(facts(256, 32), h=16).report
    assert report.accuracy == 1.0
    assert report.details["steps"] <= 400


@pytest.mark.parametrize("objective", ["ce", "mse"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_stores_everything_at_its_default_width(kind, objective):
    """The default width has reserve for each kind and objective, and the kind asked for is the one made."""
    mlp = train(facts(128, 32), kind=kind, objective=objective)
    assert mlp.config.kind == kind
    assert mlp.report.accuracy == 1.0


def test_competitors_lose_when_they_are_given():
    """Without the rest of the vocabulary in training, some other token wins; with it, none does."""
    arguments, competitors = facts(128, 32), spherical(600, 32, generator(7))
    blind = train(arguments, h=16)
    outputs = blind(arguments[0])
    assert blind.report.accuracy == 1.0
    assert blind.report.accuracy_vocabulary is None
    right = (outputs * arguments[1][arguments[2]]).sum(dim=1)
    assert (right > (outputs @ competitors.T).amax(dim=1)).double().mean() < 0.9
    aware = train(arguments, h=16, competitors=competitors)
    assert aware.report.accuracy_vocabulary == 1.0


def test_values_that_no_key_has_lose_too():
    """In minibatches as well, where they would otherwise never be candidates."""
    keys, _, mapping = facts(100, 32)
    values = spherical(800, 32, generator(4))
    report = train((keys, values, mapping), h=32, batch_size=50, steps=200, learning_rate=1e-2).report
    assert report.accuracy > 0.98


def test_minibatches_reach_what_a_full_batch_does():
    """In-batch negatives are enough, at a quarter of the logits."""
    report = train(facts(256, 32), h=24, batch_size=128, steps=300, learning_rate=1e-2, noise=0.2).report
    assert report.details["steps"] == 300
    assert report.accuracy > 0.99


def test_training_with_noise_buys_tolerance():
    """Same facts, width and number of steps: an MLP trained on noisy keys recalls such keys far better."""
    keys, values, mapping = facts(256, 32)
    unit = math.sqrt(32 / (256 * math.log(256)))
    near = disturb(keys, unit, generator(9))
    exact, tolerant = (train((keys, values, mapping), h=16, noise=noise) for noise in (1e-6, 1.0))
    recall = [float((margins(mlp, near, values, mapping) > 0).double().mean()) for mlp in (exact, tolerant)]
    assert recall[1] > 0.95 > 0.85 > recall[0]


def test_noise_keeps_lengths_and_turns_by_the_asked_amount():
    """A unit direction times `noise` is added to the key's direction; the length is given back."""
    x = 3 * spherical(500, 400, generator(), torch.float64)
    moved = disturb(x, 0.5, generator(1))
    assert torch.allclose(moved.norm(dim=1), x.norm(dim=1))
    cosine = F.cosine_similarity(x, moved)
    assert float(cosine.mean()) == pytest.approx(1 / math.sqrt(1 + 0.5**2), abs=0.01)


def test_further_steps_widen_the_margin():
    """Stopping at the last fact leaves a thin margin; `extra_steps` go on from there, within the cap."""
    thin, wide = (train(facts(128, 32), h=24, extra_steps=extra).report for extra in (0, 100))
    assert wide.details["steps"] == thin.details["steps"] + 100
    assert wide.margin > thin.margin > 0
    assert train(facts(128, 32), h=24, extra_steps=900).report.details["steps"] == 400


def test_squared_error_gives_the_values_themselves():
    """Outputs come near the values in length and direction, in the units of the values."""
    keys, values, mapping = facts(128, 32)
    mlp = train((1e3 * keys, 5 * values, mapping), h=128, objective="mse")
    error = mlp(1e3 * keys) - 5 * values[mapping]
    assert float(error.norm() / (5 * values).norm()) < 0.02


def test_keys_of_different_lengths_keep_theirs():
    """Trained on the keys as given, so those that are longer or shorter than the mean are stored as well."""
    draw = generator()
    keys, values = gaussian(128, 24, draw), gaussian(128, 24, draw)
    assert float(keys.norm(dim=1).max() / keys.norm(dim=1).min()) > 1.5
    assert train((keys, values, torch.arange(128)), h=40).report.accuracy == 1.0


def test_recipe_depends_on_the_number_of_facts():
    """Full batch with a large rate up to 2,048 facts, minibatches with warm-up beyond; options win."""

    def numbers(count, **options):
        plan = recipe(GradientDescentConfig(**options), count)
        return plan.steps, plan.learning_rate, plan.batch_size, plan.warmup

    assert numbers(2048) == (400, 2e-2, 2048, 0)
    assert numbers(2048, noise=1.0) == (600, 2e-2, 2048, 0)
    assert numbers(2049) == (500, 1e-2, 2048, 50)
    assert numbers(8193) == (500, 3e-3, 2048, 50)
    assert numbers(5000, objective="mse") == (300, 3e-3, 1024, 0)
    assert numbers(300, batch_size=100, steps=7, learning_rate=0.1) == (7, 0.1, 100, 50)


def test_rate_rises_and_falls():
    """Warm-up to the full rate, then a cosine to nothing."""
    plan = recipe(GradientDescentConfig(steps=500, learning_rate=1.0), 5000)
    rates = [plan.rate(step) for step in range(500)]
    assert rates[:50] == sorted(rates[:50])
    assert rates[49:] == sorted(rates[49:], reverse=True)
    assert rates[0] == pytest.approx(1 / 50)
    assert rates[-1] < 1e-4 < 0.97 < max(rates) <= 1


def test_batches_are_without_replacement():
    """Within a pass no fact comes twice; a full batch is all of them, in order."""
    batches = draw_batches(10, 3, generator())
    for _ in range(4):
        rows = torch.cat([next(batches) for _ in range(3)])
        assert len(set(rows.tolist())) == 9
    assert next(draw_batches(4, 4, generator())).tolist() == [0, 1, 2, 3]


def test_default_width_grows_with_what_is_asked():
    """About half a bit per parameter; more facts or competitors need more, squared error more still."""
    ce, mse = GradientDescentConfig(), GradientDescentConfig(objective="mse")
    width = default_width(ce, 4096, 4096, 128)
    assert 4096 * 12 / (3 * 128 * width) == pytest.approx(0.5, rel=0.01)
    assert default_width(ce, 4096, 40_000, 128) > width
    assert default_width(mse, 4096, 4096, 128) == 1024
    assert default_width(ce, 2, 1, 8) == 32


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "glu"}, "gd: unknown kind 'glu': expected one of swiglu, bilinear, relu, gelu"),
        ({"objective": "l1"}, "gd: unknown objective 'l1': expected one of ce, mse"),
        ({"steps": 0}, "gd: steps must be positive or null, found 0"),
        ({"learning_rate": -1.0}, "gd: learning_rate must be positive or null, found -1.0"),
        ({"noise": -0.5}, "gd: noise must not be negative, found -0.5"),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    """Before any training, with the option's name."""
    with pytest.raises(ConfigError, match=text):
        train(facts(8, 8), **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_in_batch_negatives_find_small_widths(seed):
    """F = 4096, d = 128 in h = 72, which is 1.8 bits per parameter: half a CPU minute."""
    assert train(facts(4096, 128, seed), seed=seed + 100, h=72, kind="bilinear").report.accuracy == 1.0


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("kind", "h"), [("swiglu", 28), ("bilinear", 28), ("relu", 60), ("gelu", 48)])
def test_published_widths_train(kind, h, seed):
    """(d, F) = (64, 1024): a little above the smallest sizes that were found, 1.3 to 1.9 bits per parameter."""
    assert train(facts(1024, 64, seed), seed=seed + 100, kind=kind, h=h).report.accuracy == 1.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_large_sets_fit_beside_a_vocabulary():
    """F = 16,384 in h = 512 against as many competitors: two CPU minutes, tolerant of noise."""
    draw = generator()
    keys, values, others = (spherical(16_384, 256, draw) for _ in range(3))
    mapping = torch.randperm(16_384, generator=draw)
    mlp = train((keys, values, mapping), h=512, noise=1.0, competitors=others)
    assert mlp.report.accuracy_vocabulary > 0.999
    near = disturb(keys, math.sqrt(256 / (16_384 * math.log(16_384))), generator(9))
    assert (margins(mlp, near, values, mapping) > 0).double().mean() > 0.999
