"""Margin-optimal outputs against a general solver and against their definition; what cannot be decoded is named."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import f as f_distribution

from mlpswap import geometry
from mlpswap.embeddings import gaussian, ill_condition, kaiming_uniform, spherical
from mlpswap.errors import EmbeddingsError, NonFiniteError, NotDecodableError
from mlpswap.geometry import (
    best_whitening,
    coherence,
    decodability,
    jl_code_width,
    margin_optimal_outputs,
)
from mlpswap.whitening import whitening


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


TWINS = spherical(50, 8, generator(5), torch.float64)


@pytest.fixture(autouse=True)
def _nothing_remembered():
    geometry._cache.clear()


def margins_one_by_one(values, outputs):
    """min_j <u_i, v_i - v_j> / ||v_i - v_j||, by the definition."""
    margins = []
    for i, (value, output) in enumerate(zip(values, outputs, strict=True)):
        difference = value - torch.cat([values[:i], values[i + 1 :]])
        margins.append((difference @ output / difference.norm(dim=1)).min())
    return torch.stack(margins)


def rho_by_quadratic_programming(values):
    """1 / min ||x|| subject to <a_ij, x> >= 1, value by value, with a general-purpose solver."""
    found = []
    for i in range(len(values)):
        difference = values[i] - np.delete(values, i, axis=0)
        atoms = difference / np.linalg.norm(difference, axis=1, keepdims=True)
        done = minimize(
            lambda x: x @ x / 2, 2 * atoms.mean(axis=0), jac=lambda x: x, method="SLSQP",
            constraints={"type": "ineq", "fun": lambda x, a=atoms: a @ x - 1, "jac": lambda x, a=atoms: a},
            options={"maxiter": 500, "ftol": 1e-15},
        )  # fmt: skip
        found.append(1 / np.linalg.norm(done.x))
    return torch.tensor(found)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rho_is_that_of_a_general_quadratic_program(seed):
    values = spherical(40, 6, generator(seed), torch.float64)
    found = margin_optimal_outputs(values)
    assert (found.rho - rho_by_quadratic_programming(values.numpy())).abs().max() < 1e-8
    assert torch.allclose(found.outputs.norm(dim=1), torch.ones(40, dtype=torch.float64))
    assert torch.allclose(margins_one_by_one(values, found.outputs), found.rho, atol=1e-12)
    assert found.gap < 1e-6


@pytest.mark.parametrize(
    "values",
    [
        spherical(300, 64, generator(), torch.float64),  # d near n / 5: many atoms are held
        gaussian(200, 5, generator(1), torch.float64) * torch.tensor([1.0, 1.0, 1.0, 1.0, 30.0]),
        spherical(100, 8, generator(2)) + 100,  # far from the origin, in float32
        spherical(30, 64, generator(3), torch.float64),  # fewer values than dimensions
        torch.tensor([[1.0, 0.0], [1e-6, 0.0]]),  # two values, nearly zero both
        torch.eye(5, dtype=torch.float64) * 1e-200,
        torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6),  # the worst atom is never the only one
        torch.cat([TWINS, TWINS + 1e-6 * spherical(50, 8, generator(4), torch.float64)]),
    ],
    ids=["many", "stretched", "shifted", "few", "two", "tiny", "cube", "twins"],
)
def test_the_certificate_is_true_for_any_table_that_decodes(values):
    """Lower bound: the margin that each output really has. Upper bound: rho + gap."""
    try:
        found = margin_optimal_outputs(values)
    except NotDecodableError as error:  # points inside of a low-dimensional cloud
        values = values[[i for i in range(len(values)) if i not in error.indices]]
        found = margin_optimal_outputs(values)
    assert found.gap < 1e-6
    scale = values.abs().max().double()
    exact = margins_one_by_one(values.double() / scale, found.outputs)
    assert torch.allclose(exact, found.rho, rtol=1e-6, atol=0)
    assert (found.rho > 0).all()


def test_a_value_between_two_others_is_named():
    values = spherical(30, 4, generator(), torch.float64)
    values[7] = (values[3] + values[20]) / 2
    with pytest.raises(NotDecodableError, match="values 7 lie") as caught:
        margin_optimal_outputs(values)
    assert caught.value.indices == (7,)
    assert decodability(values) == 0.0


def test_values_inside_a_crowd_are_found_and_the_others_kept():
    """In two dimensions only the corners of the convex hull can be decoded."""
    from scipy.spatial import ConvexHull

    values = gaussian(60, 2, generator(), torch.float64)
    with pytest.raises(NotDecodableError) as caught:
        margin_optimal_outputs(values)
    assert set(caught.value.indices) == set(range(60)) - set(ConvexHull(values.numpy()).vertices.tolist())


@pytest.mark.parametrize(
    ("values", "error", "named"),
    [
        (torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), NotDecodableError, "0, 2"),
        (torch.tensor([[1.0, 0.0], [0.0, torch.nan]]), NonFiniteError, "row 1"),
        (torch.zeros(0, 3), EmbeddingsError, "one row"),
    ],
)
def test_what_is_no_table_of_values_is_refused(values, error, named):
    for measure in (margin_optimal_outputs, decodability, coherence):
        if measure is coherence and error is NotDecodableError:
            continue  # equal values have a coherence: 1
        with pytest.raises(error, match=named):
            measure(values)


def test_values_that_rounding_makes_equal_are_refused():
    """Distinct as they stand, but not beside the others: no direction is better than chance."""
    values = torch.tensor([[1e-20, 0.0], [2e-20, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    with pytest.raises(NotDecodableError, match="0, 1"):
        margin_optimal_outputs(values)


def test_a_single_value_is_decoded_by_itself():
    found = margin_optimal_outputs(torch.tensor([[3.0, 4.0]]))
    assert torch.allclose(found.outputs, torch.tensor([[0.6, 0.8]], dtype=torch.float64))
    assert found.rho.isinf().all()
    assert margin_optimal_outputs(torch.zeros(1, 2)).outputs.norm() == 1


def test_shift_and_scale_change_nothing():
    values = spherical(50, 6, generator(), torch.float64)
    moved = 7 * values + torch.arange(6)
    first, second = margin_optimal_outputs(values), margin_optimal_outputs(moved)
    assert torch.allclose(first.outputs, second.outputs, atol=1e-9)
    assert torch.allclose(first.rho, second.rho, atol=1e-12)


def test_equal_tables_are_solved_once_and_results_are_the_callers_own(monkeypatch):
    values = spherical(20, 4, generator(), torch.float64)
    first = margin_optimal_outputs(values)
    first.outputs.zero_()
    monkeypatch.setattr(geometry, "_solve", None)
    again = margin_optimal_outputs(values.clone())
    assert again.outputs.norm(dim=1).min() > 0.99
    with pytest.raises(TypeError):
        margin_optimal_outputs(values + 1e-9)


def test_threads_change_nothing(monkeypatch):
    values = spherical(600, 16, generator(), torch.float64)
    one = margin_optimal_outputs(values)
    geometry._cache.clear()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    two = margin_optimal_outputs(values)
    assert torch.equal(one.outputs, two.outputs)


def test_the_decodability_of_random_tables_is_that_of_the_specification():
    """(1024, 64): rho .579 and coherence .550; 256 values: .607, .628 on average, .542. Other draws differ a little."""
    values = spherical(256, 64, generator())
    found = margin_optimal_outputs(values)
    assert float(found.rho.min()) == pytest.approx(0.607, abs=0.02)
    assert float(found.rho.mean()) == pytest.approx(0.628, abs=0.01)
    assert decodability(values) == float(found.rho.min())
    assert coherence(values) == pytest.approx(0.542, abs=0.08)


def test_coherence_is_the_largest_cosine():
    values = gaussian(50, 5, generator())
    largest = max(
        abs(float(torch.cosine_similarity(values[i], values[j], dim=0))) for i in range(50) for j in range(i)
    )
    assert coherence(values) == pytest.approx(largest, abs=1e-6)
    assert coherence(values[:1]) == 0.0
    with pytest.raises(EmbeddingsError, match="zero"):
        coherence(torch.zeros(2, 3))


@pytest.mark.parametrize(("kappa", "rho"), [(1.1, 0.510), (10, 0.449), (100, 0.238), (1000, 0.105)])
def test_whitening_restores_decodability(kappa, rho):
    """The specification's table for (256, 32); its draw of the embeddings was another, so the figures are near."""
    values = ill_condition(spherical(256, 32, generator(), torch.float64), kappa)
    strengths = (0.0, 0.5, 1.0)
    found = [decodability(values @ whitening(values, alpha, center=True)) for alpha in strengths]
    assert found[0] == pytest.approx(rho, rel=0.15)
    assert found[2] == pytest.approx(0.503, abs=0.03)
    best = best_whitening(values, strengths)
    assert best.rho == max(found)
    assert torch.equal(best.transform, whitening(values, best.alpha, center=True))
    if kappa == 10:
        assert best.alpha == 0.5  # partial whitening can win


def test_rows_of_different_length_cost_decodability():
    """gaussian .292, kaiming_uniform .374, spherical .51 at (256, 32)."""
    found = [decodability(make(256, 32, generator())) for make in (gaussian, kaiming_uniform, spherical)]
    assert found == sorted(found)
    assert found == pytest.approx([0.292, 0.374, 0.51], abs=0.05)


@pytest.mark.parametrize("kappa", [1e4, 1e6])
def test_hardly_decodable_values_keep_their_certificate(kappa):
    values = ill_condition(spherical(128, 16, generator(), torch.float64), kappa)
    found = margin_optimal_outputs(values)
    assert found.gap < 1e-6 * float(found.rho.min())
    assert torch.allclose(margins_one_by_one(values, found.outputs), found.rho, rtol=1e-6)


def test_the_code_width_bounds_the_true_probability():
    """(1 + rho) X < (1 - rho) Y has an exact probability, from the F distribution; the bound is above, not far."""
    for rho, n in ((0.6, 1024), (0.3, 4096), (0.1, 64)):
        m = jl_code_width(rho, n)
        pairs = n * (n - 1)
        exact = pairs * f_distribution.cdf((1 - rho) / (1 + rho), m, m)
        assert exact <= 0.5
        assert pairs * (1 - rho**2) ** ((m - 1) / 2) > 0.5
        assert m == pytest.approx(2 / rho**2 * math.log(2 * pairs), rel=0.25)
    assert jl_code_width(0.5, 1) == jl_code_width(1.0, 9) == 1
    with pytest.raises(EmbeddingsError, match="rho"):
        jl_code_width(0.0, 10)


def test_random_projections_of_that_width_decode():
    values = spherical(64, 24, generator(), torch.float64)
    found = margin_optimal_outputs(values)
    m = jl_code_width(float(found.rho.min()), len(values), failure=0.05)
    draw = generator(1)
    right = 0
    for _ in range(20):
        d = gaussian(24, m, draw, torch.float64)
        right += bool((((found.outputs @ d) @ (values @ d).T).argmax(dim=1) == torch.arange(64)).all())
    assert right >= 17  # 19 expected; fewer than 17 would happen once in 60
