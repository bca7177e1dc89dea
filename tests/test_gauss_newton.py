"""Gauss-Newton fact MLPs: the Jacobian against autograd, a step against the dense solution, and what it reaches."""

import math

import pytest
import torch

from mlpswap.constructions import build_fact_mlp, gauss_newton, margin
from mlpswap.constructions.base import margins
from mlpswap.constructions.gauss_newton import Linearised, default_width, fit, initial, solve
from mlpswap.constructions.margin import MarginSets
from mlpswap.constructions.noise import disturb, noise_unit
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def facts(count, d, seed=0):
    draw = generator(seed)
    keys = spherical(count, d, draw)
    return keys, keys, torch.randperm(count, generator=draw)


def make(arguments, *, seed=1, competitors=None, **options):
    return build_fact_mlp(
        *arguments, "gauss_newton", competitors=competitors, generator=generator(seed), **options
    )


def small(count=12, d=5, h=4):
    """Weights, keys, and the Jacobian as a matrix, by autograd."""
    weights = torch.stack([gaussian(h, d, generator(seed), torch.float64) for seed in range(3)])
    x = gaussian(count, d, generator(3), torch.float64)

    def outputs(flat):
        a, g, b = flat.view(3, h, d)
        return ((x @ a.T) * (x @ g.T) @ b).flatten()

    return weights, x, torch.autograd.functional.jacobian(outputs, weights.flatten())


def test_jacobian_is_that_of_autograd():
    """As an operator, transposed, and the diagonal of J^T J."""
    weights, x, jacobian = small()
    here = Linearised(weights, x)
    change, outputs = (
        gaussian(12, 5, generator(4), torch.float64).view(3, 4, 5),
        gaussian(12, 5, generator(5), torch.float64),
    )
    assert torch.allclose(here.apply(change).flatten(), jacobian @ change.flatten(), rtol=1e-10)
    assert torch.allclose(here.transpose(outputs).flatten(), jacobian.T @ outputs.flatten(), rtol=1e-10)
    assert torch.allclose(here.diagonal().flatten(), (jacobian.T @ jacobian).diagonal(), rtol=1e-10)


def test_step_is_the_damped_least_squares_solution(monkeypatch):
    """Given enough iterations, conjugate gradients end where a dense solve does."""
    monkeypatch.setattr(gauss_newton, "CG_ITERATIONS", 500)
    monkeypatch.setattr(gauss_newton, "CG_TOLERANCE", 1e-12)
    weights, x, jacobian = small()
    gap = gaussian(12, 5, generator(6), torch.float64)
    normal = jacobian.T @ jacobian
    diagonal = normal.diagonal()
    ridge = 0.1 * diagonal + 1e-6 * diagonal.mean()
    direct = torch.linalg.solve(normal + torch.diag(ridge), jacobian.T @ gap.flatten())
    assert torch.allclose(solve(Linearised(weights, x), gap, 0.1).flatten(), direct, rtol=1e-8)


def test_starts_from_least_squares_of_unit_length():
    """Random features, the read-out of the targets, and outputs of mean norm 1."""
    keys, values, mapping = facts(100, 16)
    x = 4 * keys
    here = Linearised(initial(x, values[mapping], 20, generator()), x)
    assert float(here.outputs.norm(dim=1).mean()) == pytest.approx(1, rel=1e-5)
    away = values[mapping] - here.outputs * float(
        (here.outputs * values[mapping]).sum() / here.outputs.square().sum()
    )
    assert float((here.phi.T @ away).norm() / (here.phi.norm() * away.norm())) < 1e-4


def test_fit_goes_on_from_any_weights():
    """Weights that store everything stay; after some facts are altered, fewer steps than from scratch suffice."""
    keys, values, mapping = facts(256, 32)
    x = math.sqrt(32) * keys

    def run(weights, wanted):
        sets = MarginSets(values, wanted, values[:0], gamma=0.3)
        return fit(weights, x, sets, steps=100, generator=generator())

    start = initial(x, values[mapping], 18, generator(1))
    weights, first = run(start, mapping)
    again, none = run(weights, mapping)
    assert none["steps"] == 0 < first["steps"]
    assert torch.equal(again, weights)
    altered = mapping.clone()
    altered[:8] = mapping[:8].roll(1)
    _, warm = run(weights, altered)
    _, cold = run(initial(x, values[altered], 18, generator(1)), altered)
    assert warm["steps"] < cold["steps"] < 100


def test_steps_end_when_all_is_stored():
    """At the last fact, or `extra_steps` later with a wider margin, never after the cap."""
    arguments = facts(256, 32)
    thin, wide = (make(arguments, extra_steps=extra).report for extra in (0, 5))
    assert thin.accuracy == wide.accuracy == 1.0
    assert wide.details["steps"] == thin.details["steps"] + 5
    assert wide.margin > thin.margin
    assert make(arguments, h=16, steps=3).report.details["steps"] == 3


def test_rarer_shortlists_reach_the_same(monkeypatch):
    """Large problems look at all rows in every fifth step only."""
    monkeypatch.setattr(margin, "LARGE", 0)
    report = make(facts(256, 32)).report
    assert report.accuracy == 1.0
    assert report.details["steps"] % margin.REFRESH_EVERY == 0


def test_competitors_lose():
    """The rest of a vocabulary counts among the rows to beat."""
    report = make(facts(256, 32), competitors=spherical(2000, 32, generator(5))).report
    assert report.accuracy_vocabulary == 1.0


def test_noise_in_the_fit_buys_tolerance():
    """Same facts and width: fitted on noisy keys, the MLP recalls other noisy keys far better."""
    keys, values, mapping = facts(256, 32)
    near = disturb(keys, noise_unit(256, 32), generator(9))
    exact, tolerant = (make((keys, values, mapping), h=20, noise=noise) for noise in (0.0, 1.5))
    recall = [float((margins(mlp, near, values, mapping) > 0).double().mean()) for mlp in (exact, tolerant)]
    assert tolerant.report.details["steps"] == 120
    assert recall[1] > 0.98 > 0.93 > recall[0]


@pytest.mark.parametrize(("count", "d"), [(16, 8), (256, 32), (600, 64)])
def test_default_widths_have_reserve(count, d):
    """One bit of look-up table per parameter."""
    mlp = make(facts(count, d))
    assert mlp.report.accuracy == 1.0
    assert mlp.config.h == default_width(count, count, d)


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_published_width_stores_everything(seed):
    """(d, F) = (64, 1024) in h = 40: 1.33 bits per parameter, in two seconds."""
    report = make(facts(1024, 64, seed), seed=seed + 100, h=40).report
    assert report.accuracy == 1.0
    assert report.details["steps"] < 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nearly_as_small_as_trained(seed):
    """h = 28, where gradient descent needs 25 or 26: 1.9 bits per parameter."""
    assert make(facts(1024, 64, seed), seed=seed + 100, h=28).report.accuracy == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scales(seed):
    """F = 4096, d = 128 in h = 80, which is 1.6 bits per parameter: a quarter of a CPU minute."""
    assert make(facts(4096, 128, seed), seed=seed + 100, h=80).report.accuracy == 1.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gamma": 0.0}, "gauss_newton: gamma must be positive, found 0.0"),
        ({"steps": 0}, "gauss_newton: steps must be positive, found 0"),
        ({"noise": -1.0}, "gauss_newton: noise must not be negative, found -1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    """Before any work, with the option's name."""
    with pytest.raises(ConfigError, match=text):
        make(facts(8, 8), **options)
