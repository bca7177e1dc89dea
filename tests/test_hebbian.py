"""Hebbian fact MLPs: each closed form against the plain way to compute it, and what the widths reach."""

import math

import pytest
import torch

from mlpswap.constructions import build_fact_mlp, hebbian
from mlpswap.constructions.base import margins
from mlpswap.constructions.hebbian import (
    conjugate_gradients,
    default_width,
    expected_accuracy,
    fit_factor,
    fit_features,
    plain_readout,
)
from mlpswap.constructions.readout import ridge_readout
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError

SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def facts(count, d, seed=0, dtype=torch.float32):
    draw = generator(seed)
    keys = spherical(count, d, draw, dtype)
    return keys, keys, torch.randperm(count, generator=draw)


def make(arguments, *, seed=1, **options):
    return build_fact_mlp(*arguments, "hebbian", generator=generator(seed), **options)


def features_of(mlp, keys):
    """(A k) * (G k), key by key."""
    return torch.stack([(mlp.up.weight @ key) * (mlp.gate.weight @ key) for key in keys])


def test_plain_readout_adds_value_times_feature():
    """B is the mean of the outer products of values and features."""
    keys, values, mapping = facts(40, 12, dtype=torch.float64)
    mlp = make((keys, values, mapping), h=60, variant="plain")
    phi = features_of(mlp, keys)
    b = sum(torch.outer(values[j], row) for j, row in zip(mapping.tolist(), phi, strict=True)) / 40
    assert torch.allclose(mlp.down.weight, b, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("h", [25, 60])
def test_whitened_readout_is_ridge_regression(h):
    """B solves the normal equations, h x h below F = 40 and F x F above, ridge relative to the mean diagonal."""
    keys, values, mapping = facts(40, 12, dtype=torch.float64)
    mlp = make((keys, values, mapping), h=h, variant="whitened")
    phi, targets = features_of(mlp, keys), values[mapping]
    if h <= 40:
        moment = sum(torch.outer(row, row) for row in phi) / 40
        cross = sum(torch.outer(row, t) for row, t in zip(phi, targets, strict=True)) / 40
        ridge = 1e-6 * moment.diagonal().mean() * torch.eye(h)
        b = torch.linalg.solve(moment + ridge, cross).T
    else:
        kernel = torch.tensor([[float(one @ other) for other in phi] for one in phi], dtype=torch.float64)
        ridge = 1e-6 * kernel.diagonal().mean() * torch.eye(40)
        b = torch.linalg.solve(kernel + ridge, targets).T @ phi
    assert torch.allclose(mlp.down.weight, b, rtol=1e-7, atol=1e-9)


def test_both_branches_of_the_readout_agree():
    """At h = F both systems are the same problem: adding an empty feature takes the other branch."""
    phi, targets = (gaussian(30, n, generator(n), torch.float64) for n in (30, 5))
    wider = torch.cat([phi, torch.zeros(30, 1, dtype=torch.float64)], dim=1)
    assert torch.allclose(ridge_readout(phi, targets), ridge_readout(wider, targets)[:, :30], rtol=1e-6)
    assert ridge_readout(wider, targets)[:, 30].abs().max() == 0


def test_random_features_carry_the_width():
    """<phi(k), phi(k)> is about 1 for unit keys at any width: the factor 1 / sqrt(h) is folded into A."""
    keys = spherical(50, 32, generator())
    for h in (50, 2000):
        mlp = make((keys, keys, torch.arange(50)), h=h, variant="whitened")
        assert float(mlp.hidden(keys).square().sum(dim=1).mean()) == pytest.approx(1, abs=0.3)


def fitting_problem(count=30, d=7, h=10):
    """A small fit with shared and unused values."""
    keys = spherical(count, d, generator(), torch.float64)
    values = spherical(12, d, generator(1), torch.float64)
    mapping = torch.randint(10, (count,), generator=generator(2))
    partner = gaussian(h, d, generator(3), torch.float64)
    b = gaussian(d, h, generator(4), torch.float64)
    return keys, values, mapping, partner, b


def test_fit_equals_the_dense_least_squares_solution():
    """Conjugate gradients find what a direct solve of the whole (h d) x (h d) system finds."""
    keys, values, mapping, partner, b = fitting_problem()
    fitted, fit = fit_factor(keys, values, mapping, partner, b, 1e-12)
    rows, wanted = [], []
    for key, right in zip(keys, mapping.tolist(), strict=True):
        for j, value in enumerate(values):
            # score_ij = sum_p (v_j B)_p (P k_i)_p <x_p, k_i>: linear in all entries of X
            rows.append(torch.outer((value @ b) * (partner @ key), key).flatten())
            wanted.append(float(j == right))
    design, wanted = torch.stack(rows), torch.tensor(wanted, dtype=torch.float64)
    normal = design.T @ design
    normal += 1e-6 * normal.diagonal().mean() * torch.eye(len(normal))
    direct = torch.linalg.solve(normal, design.T @ wanted).reshape(fitted.shape)
    assert fit["residual"] < 1e-12
    assert torch.allclose(fitted, direct, rtol=1e-6, atol=1e-6 * float(direct.abs().max()))


def test_features_are_fitted_in_order_through_the_plain_readout():
    """G given A, then A given the new G, both through the read-out of the features that came in."""
    keys, values, mapping, a, _ = fitting_problem()
    g = gaussian(*a.shape, generator(8), torch.float64)
    b = plain_readout((keys @ a.T) * (keys @ g.T), values[mapping])
    new_g = fit_factor(keys, values, mapping, a, b, 1e-10)[0]
    new_a = fit_factor(keys, values, mapping, new_g, b, 1e-10)[0]
    fitted_a, fitted_g, fits = fit_features(keys, values, mapping, a, g, rescale=False)
    assert torch.equal(fitted_g, new_g)
    assert torch.equal(fitted_a, new_a)
    assert [set(fit) for fit in fits] == [{"iterations", "residual"}] * 2


def test_rows_of_fitted_features_are_rescaled():
    """Each row of G and of A gets the norm sqrt(d), unless told otherwise."""
    arguments = facts(100, 16)
    rescaled, released = (make(arguments, h=40, rescale_rows=rescale) for rescale in (True, False))
    for layer in (rescaled.up, rescaled.gate):
        assert torch.allclose(layer.weight.norm(dim=1), torch.full((40,), 4.0), rtol=1e-4)
    assert float(released.gate.weight.norm(dim=1).std()) > 0.1


def test_large_fits_in_float32_end_where_float64_does(monkeypatch):
    """Single precision in the fit costs nothing that the read-out does not mend."""
    arguments = facts(256, 32)
    double = make(arguments, h=90)
    monkeypatch.setattr(hebbian, "FLOAT32_UNKNOWNS", 0)
    single = make(arguments, h=90)
    assert single.report.details["fits"] != double.report.details["fits"]
    assert single.report.margin == pytest.approx(double.report.margin, rel=0.02)


def test_conjugate_gradients_stop_at_the_tolerance():
    """They end early when the residual is small, and at the cap when it is not."""
    matrix = gaussian(20, 20, generator(), torch.float64)
    matrix = matrix @ matrix.T + torch.eye(20)
    right = gaussian(20, 1, generator(1), torch.float64)
    x, fit = conjugate_gradients(lambda v: matrix @ v, right, matrix.diagonal()[:, None], 1e-8, 100)
    assert float((matrix @ x - right).norm() / right.norm()) < 2e-8
    assert fit["iterations"] < 40
    _, fit = conjugate_gradients(lambda v: matrix @ v, right, matrix.diagonal()[:, None], 0, 3)
    assert fit["iterations"] == 3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("variant", "h"), [("whitened", 560), ("data_dependent", 240)])
def test_published_widths_store_everything(variant, h, seed):
    """(d, F) = (64, 1024): whitened in 560, fitted features in 240."""
    assert make(facts(1024, 64, seed), seed=seed + 100, variant=variant, h=h).report.accuracy == 1.0


def test_whitened_tolerates_noise():
    """Keys moved by one unit sqrt(d / (F ln F)) are all recalled, at h = 600."""
    keys, values, mapping = facts(1024, 64)
    mlp = make((keys, values, mapping), variant="whitened", h=600)
    near = keys + math.sqrt(64 / (1024 * math.log(1024))) * spherical(1024, 64, generator(5))
    assert (margins(mlp, near, values, mapping) > 0).all()


def test_only_directions_of_keys_matter():
    """Bilinear features are homogeneous: each key may have a length of its own."""
    keys, values, mapping = facts(100, 24)
    lengths = torch.logspace(-2, 2, 100)[:, None]
    even, uneven = make((keys, values, mapping)), make((lengths * keys, values, mapping))
    assert even.report.accuracy == uneven.report.accuracy == 1.0
    assert torch.allclose(uneven.up.weight * lengths.mean(), even.up.weight, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("variant", ["whitened", "data_dependent"])
@pytest.mark.parametrize(("count", "d"), [(16, 8), (256, 32), (600, 64)])
def test_default_widths_have_reserve(variant, count, d):
    """Without a width given, everything is stored."""
    assert make(facts(count, d), variant=variant).report.accuracy == 1.0


def test_default_widths_follow_the_rule():
    """Fitted features are narrower, more facts need more, plain needs by far the most."""
    widths = [default_width(v, 1024, 1024, 64) for v in ("data_dependent", "whitened", "plain")]
    assert widths == sorted(widths)
    assert default_width("whitened", 16_384, 16_384, 256) > default_width("whitened", 4096, 4096, 256)
    assert default_width("whitened", 5000, 5000, 8) == 36  # the rank of bilinear features


def test_variant_follows_the_number_of_facts(monkeypatch):
    """`auto` fits features of small sets and draws random ones for large sets; the report says which."""
    assert make(facts(60, 16)).report.details["variant"] == "data_dependent"
    monkeypatch.setattr(hebbian, "AUTO_FACTS", 59)
    assert make(facts(60, 16)).report.details["variant"] == "whitened"
    assert make(facts(60, 16), margin_correct=True).report.details["variant"] == "data_dependent"


def test_expected_accuracy_is_about_right():
    """The estimate in the report is near what random features store, below and above capacity."""
    for h in (200, 300, 400):
        report = make(facts(1024, 64), variant="whitened", h=h).report
        assert report.details["expected_accuracy"] == pytest.approx(report.accuracy, abs=0.03)
    assert expected_accuracy(100, 100, 16, 120) == 1.0
    assert expected_accuracy(5000, 5000, 8, 16) < 0.01


def test_competitors_are_measured():
    """Least squares to the value itself keeps the rest of a vocabulary away."""
    report = make(facts(200, 32), h=200, competitors=spherical(1000, 32, generator(6))).report
    assert report.accuracy_vocabulary == 1.0


def test_unknown_variant_is_refused():
    """With the list of those that there are."""
    with pytest.raises(ConfigError, match="hebbian: unknown variant 'raw': expected one of auto, plain"):
        make(facts(8, 8), variant="raw")


@pytest.mark.parametrize("seed", SEEDS)
def test_margin_optimal_outputs_as_targets(seed):
    """They replace the values in the last read-out: the plain one stores more, fitted features at h = 240 everything."""
    arguments = facts(1024, 64, seed)
    values, optimal = (
        make(arguments, seed=seed + 100, variant="plain", h=1500, outputs=outputs).report.accuracy
        for outputs in ("values", "margin_optimal")
    )
    assert optimal > values
    assert make(arguments, seed=seed + 100, h=240, outputs="margin_optimal").report.accuracy == 1.0


@pytest.mark.slow
def test_random_features_scale():
    """F = 16,384, d = 256, h = 2816: a dozen CPU seconds."""
    assert make(facts(16_384, 256), h=2816).report.accuracy > 0.997


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_margin_correction_scales():
    """F = 16,384, d = 256 among 4,000 competitors: h = 576, 442,368 parameters, a CPU minute."""
    keys, values, mapping = facts(16_384, 256)
    others = spherical(4000, 256, generator(5))
    mlp = make((keys, values, mapping), h=576, margin_correct=True, competitors=others)
    assert mlp.report.accuracy_vocabulary == 1.0
