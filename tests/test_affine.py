"""The affine map after which values are decodable best."""

import math

import pytest
import torch

from mlpswap.affine import _margins, optimal_affine
from mlpswap.embeddings import gaussian, ill_condition, spherical, spike
from mlpswap.errors import ConfigError, EmbeddingsError, NonFiniteError, NotDecodableError
from mlpswap.geometry import best_whitening, decodability


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def table(n=40, d=4, seed=0):
    return spherical(n, d, generator(seed), torch.float64)


TABLES = {
    "spherical": table(),
    "kappa 100": ill_condition(table(), 100),
    "spike": spike(table(), 5.0, generator(1)),
    "uneven": table() * torch.linspace(1, 1.1, 40, dtype=torch.float64)[:, None],
}


@pytest.mark.parametrize("name", TABLES)
def test_no_whitening_is_better(name):
    """And by far, where rows are uneven."""
    found, best = optimal_affine(TABLES[name]), best_whitening(TABLES[name])
    assert found.converged
    assert found.rho > 1.1 * best.rho
    assert found.rho == pytest.approx(decodability(TABLES[name] @ found.transform), rel=1e-9)
    assert torch.allclose(found.transform, found.transform.T)
    assert float(torch.linalg.eigvalsh(found.transform)[0]) > 0
    centred = TABLES[name] - TABLES[name].mean(dim=0)
    assert float((centred @ found.transform).norm()) == pytest.approx(float(centred.norm()))


def test_the_optimum_is_that_of_every_linear_image():
    """Whatever invertible matrix the values went through before, and whatever the shift."""
    values = table()
    expected = optimal_affine(values).rho
    for seed in range(2):
        image = values @ gaussian(4, 4, generator(seed), torch.float64) + 3
        assert optimal_affine(image).rho == pytest.approx(expected, rel=1e-4)


def test_no_small_change_is_better():
    """Random ones of several sizes at the optimum, of which some do help before."""
    draw = generator(2)
    values = TABLES["spike"]
    found = optimal_affine(values)

    def gains(transform):
        rho, better = decodability(values @ transform), 0
        for size in (1e-3, 1e-2, 1e-1):
            for _ in range(12):
                change = gaussian(4, 4, draw, torch.float64)
                change = size * (change + change.T) / change.norm()
                moved = values @ transform @ torch.linalg.matrix_exp(change)
                better += decodability(moved) > rho * (1 + 1e-4)
        return better

    assert gains(found.transform) == 0
    assert gains(best_whitening(values).transform) > 3


def test_slopes_are_the_derivatives_of_the_margins():
    """Against central differences, row by row."""
    values = table(30, 4)
    values = values - values.mean(dim=0)
    _, slopes = _margins(values)
    change = gaussian(4, 4, generator(3), torch.float64)
    change = change + change.T
    eye = torch.eye(4, dtype=torch.float64)
    ahead, behind = (_margins(values @ (eye + step * change))[0] for step in (1e-6, -1e-6))
    predicted = (slopes * change).sum(dim=(1, 2))
    assert torch.allclose(predicted, (ahead - behind) / 2e-6, atol=1e-5)


def test_optimum_of_a_stretched_simplex_is_the_simplex():
    """d + 1 values have a closed form: all distances equal after the map, and rho that of the regular simplex."""
    d = 4
    values = gaussian(d + 1, d, generator(4), torch.float64)
    found = optimal_affine(values)
    moved = values @ found.transform
    lengths = torch.pdist(moved)
    assert float(lengths.max() / lengths.min()) == pytest.approx(1, abs=1e-2)
    assert found.rho == pytest.approx(math.sqrt((d + 1) / (2 * d)), rel=1e-4)


def test_few_values_and_single_precision():
    """One value, two, and float32 values."""
    assert optimal_affine(torch.ones(1, 3)).rho == math.inf
    assert optimal_affine(torch.eye(2)).rho == pytest.approx(1)
    assert optimal_affine(TABLES["spike"].float()).rho == pytest.approx(
        optimal_affine(TABLES["spike"]).rho, rel=1e-4
    )


@pytest.mark.parametrize(
    ("values", "error", "named"),
    [
        (
            torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.2, 0.2]]),
            NotDecodableError,
            "values 3 lie in",
        ),
        (torch.eye(3)[[0, 1, 0, 2]], NotDecodableError, "0, 2 are equal"),
        (torch.ones(3, 2), EmbeddingsError, "equal rows"),
        (torch.tensor([[1.0, 0.0], [0.0, torch.nan]]), NonFiniteError, "row 1"),
        (torch.zeros(0, 3), EmbeddingsError, "one row"),
        ([[1.0]], ConfigError, "floating-point numbers: found list"),
    ],
)
def test_what_has_no_optimum_is_refused(values, error, named, unchecked):
    with pytest.raises(error, match=named):
        optimal_affine(values)


def test_a_tolerance_is_a_share():
    with pytest.raises(EmbeddingsError, match="tolerance = 0"):
        optimal_affine(table(), tolerance=0.0)
