"""The analytic Lipschitz estimate against autograd, for each kind of fact MLP."""

import math

import pytest
import torch

from mlpswap.constructions import build_fact_mlp
from mlpswap.constructions.base import KINDS, margins
from mlpswap.constructions.lipschitz import lipschitz_estimate, spectral_norms
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import DegenerateKeysError
from tests.test_whitening import random_mlp


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def norms_by_autograd(mlp, rows, values, norm):
    def scores(x):
        return values @ mlp(norm * x / x.norm())

    return torch.stack(
        [torch.linalg.matrix_norm(torch.autograd.functional.jacobian(scores, x), ord=2) for x in rows]
    )


@pytest.mark.parametrize("n", [6, 30], ids=["fewer values than dimensions", "more"])
@pytest.mark.parametrize("norm", [1.0, math.sqrt(8)])
@pytest.mark.parametrize("kind", KINDS)
def test_it_equals_autograd(kind, norm, n):
    """Keys of any length: the normalisation's own derivative counts."""
    mlp = random_mlp(kind, 8, 20, output_bias=True)
    rows, values = gaussian(10, 8, generator(1), torch.float64), gaussian(n, 8, generator(2), torch.float64)
    expected = norms_by_autograd(mlp, rows, values, norm)
    assert torch.allclose(spectral_norms(mlp, rows, values, norm), expected, rtol=1e-9)
    mapping = torch.randint(n, (10,), generator=generator(3))
    found = lipschitz_estimate(mlp, rows, values, mapping, generator=generator(4), norm=norm)
    assert found.value == pytest.approx(float(expected.max()), rel=1e-9)
    unit = norm * rows / rows.norm(dim=1, keepdim=True)
    mean = float((mlp(unit) * values[mapping]).sum(dim=1).mean())
    assert found.mean_score == pytest.approx(mean)
    assert found.relative == (found.value / found.mean_score if mean > 0 else math.inf)


def test_relu_has_slope_zero_at_zero():
    mlp = random_mlp("relu", 4, 3, output_bias=False)
    mlp.up.bias.zero_()
    mlp.up.weight.zero_()
    assert (
        spectral_norms(mlp, torch.eye(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)).max() == 0
    )


def test_the_relative_value_does_not_see_the_scale_of_an_mlp():
    """Doubling B doubles the value and leaves the argmax, the relative value, and the MLP that was given, alone."""
    keys = spherical(128, 32, generator())
    mapping = torch.randperm(128, generator=generator(1))
    mlp = build_fact_mlp(keys, keys, mapping, generator=generator(2), h=128)
    first = lipschitz_estimate(mlp, keys, keys, mapping, generator=generator(3), samples=20)
    mlp.down.weight.mul_(2)
    second = lipschitz_estimate(mlp, keys, keys, mapping, generator=generator(3), samples=20)
    assert second.value == pytest.approx(2 * first.value, rel=1e-6)
    assert second.relative == pytest.approx(first.relative, rel=1e-6)
    more = lipschitz_estimate(mlp, keys, keys, mapping, generator=generator(3), samples=500)
    assert more.value >= second.value
    assert mlp.down.weight.dtype == torch.float32


def test_whitened_hebbian_mlps_are_calm():
    """Specification: relative 30 at (64, 1024) with h = 600, which stores every fact."""
    keys = spherical(1024, 64, generator())
    mapping = torch.randperm(1024, generator=generator(1))
    mlp = build_fact_mlp(keys, keys, mapping, generator=generator(2), h=600, variant="whitened")
    found = lipschitz_estimate(mlp, keys, keys, mapping, generator=generator(3))
    assert found.relative == pytest.approx(30, rel=0.25)
    assert float(margins(mlp, keys, keys, mapping).min()) > 0


def test_bad_keys_are_named():
    mlp = random_mlp("swiglu", 4, 3, output_bias=False)
    keys = torch.eye(4).index_fill(0, torch.tensor([2]), 0.0)
    with pytest.raises(DegenerateKeysError, match="2"):
        lipschitz_estimate(mlp, keys, torch.eye(4), torch.arange(4), generator=generator())
