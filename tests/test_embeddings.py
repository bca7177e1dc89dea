"""Random tables of embeddings."""

import pytest
import torch

from mlpswap.embeddings import gaussian, spherical


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("draw", [gaussian, spherical])
def test_a_table_depends_on_its_generator_alone(draw):
    """Equal generators give equal tables, a used one gives another, and the global one is left alone."""
    state, source = torch.get_rng_state(), generator()
    first, second = draw(30, 8, source), draw(30, 8, source)
    assert torch.equal(first, draw(30, 8, generator()))
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.shape == (30, 8)
    assert draw(3, 8, generator(), torch.float64).dtype == torch.float64


def test_gaussian_rows_are_standard_normal():
    """Mean 0 and covariance I, within five standard errors."""
    rows = gaussian(20_000, 6, generator(), torch.float64)
    assert rows.mean(dim=0).abs().max() < 5 / 20_000**0.5
    assert (rows.T @ rows / 20_000 - torch.eye(6)).abs().max() < 5 * (2 / 20_000) ** 0.5


def test_spherical_rows_have_length_one_and_no_preferred_direction():
    """Unit rows whose second moment is I / d."""
    rows = spherical(20_000, 6, generator(), torch.float64)
    assert torch.allclose(rows.norm(dim=1), torch.ones(20_000, dtype=torch.float64))
    assert (6 * rows.T @ rows / 20_000 - torch.eye(6)).abs().max() < 0.05
