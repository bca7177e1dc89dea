"""Random tables of embeddings."""

import pytest
import torch

from mlpswap.embeddings import (
    KINDS,
    condition_number,
    gaussian,
    ill_condition,
    kaiming_uniform,
    spherical,
    spike,
)
from mlpswap.embeddings import draw as draw_table
from mlpswap.errors import ConfigError, EmbeddingsError, MlpSwapError
from mlpswap.geometry import best_whitening, coherence, decodability, margin_optimal_outputs
from mlpswap.whitening import whitening


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("draw", [gaussian, spherical, kaiming_uniform])
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


def test_kaiming_uniform_is_torchs_own_start_of_a_linear_layer():
    """Bounds and second moment of `torch.nn.Linear(d, n).weight`: U(-1/sqrt(d), 1/sqrt(d))."""
    rows = kaiming_uniform(20_000, 6, generator(), torch.float64)
    assert rows.abs().max() <= 6**-0.5
    assert rows.abs().max() > 0.999 * 6**-0.5
    assert abs(rows.mean()) < 0.005
    assert rows.norm(dim=1).mean() == pytest.approx(3**-0.5, abs=0.02)
    assert torch.nn.Linear(6, 20_000).weight.detach().std() == pytest.approx(float(rows.std()), abs=0.005)


def test_configs_find_the_tables_by_name():
    for kind, make in KINDS.items():
        assert torch.equal(draw_table(kind, 9, 4, generator()), make(9, 4, generator()))
    with pytest.raises(EmbeddingsError, match="kaiming_uniform"):
        draw_table("kaiming", 9, 4, generator())


@pytest.mark.parametrize("kappa", [1, 1.1, 10, 100, 1000, 1e6])
def test_the_condition_number_is_exact(kappa):
    table = spherical(256, 32, generator(), torch.float64)
    made = ill_condition(table, kappa)
    assert condition_number(made) == pytest.approx(kappa, rel=max(1e-12, kappa * 1e-15))
    before, after = torch.linalg.svd(table, full_matrices=False), torch.linalg.svd(made, full_matrices=False)
    assert after.S[0] == pytest.approx(float(before.S[0]))
    if kappa > 1.1:  # the same bases, up to sign
        signs = torch.eye(32, dtype=torch.float64)
        assert torch.allclose((before.U.T @ after.U).abs(), signs, atol=1e-9 * kappa)
        share = ((before.S / before.S[0]).log() / (before.S[-1] / before.S[0]).log())[1:-1]
        assert torch.allclose(
            (after.S / after.S[0]).log()[1:-1] / -torch.tensor(kappa).log(), share, atol=1e-6
        )


def test_equal_singular_values_are_spread_evenly():
    made = torch.linalg.svdvals(ill_condition(torch.eye(5, dtype=torch.float64), 16))
    assert torch.allclose(made, torch.tensor([1, 0.5, 0.25, 0.125, 0.0625], dtype=torch.float64))


def test_the_linear_profile_keeps_the_frobenius_norm():
    table = gaussian(100, 8, generator(), torch.float64)
    made = ill_condition(table, 50, profile="linear")
    values = torch.linalg.svdvals(made)
    assert made.norm() == pytest.approx(float(table.norm()))
    assert condition_number(made) == pytest.approx(50)
    assert torch.allclose(values.diff(), values.diff()[:1].expand(7))


@pytest.mark.parametrize(
    ("table", "kappa", "profile", "named"),
    [
        (torch.eye(4), 0.5, "log", "kappa = 0.5"),
        (torch.eye(4), float("nan"), "log", "kappa = nan"),
        (torch.eye(4), 2, "cubic", "cubic"),
        (torch.eye(4)[:3], 2, "log", "3 rows"),
        (torch.ones(9, 4), 2, "log", "rank 1"),
        (torch.full((5, 2), torch.nan), 2, "log", "row 0"),
        (torch.ones(5, 1), 2, "log", "single column"),
        (torch.ones(0, 4), 2, "log", "one row"),
    ],
)
def test_what_cannot_be_ill_conditioned_is_refused(table, kappa, profile, named):
    """All of these are `ValueError`s too."""
    with pytest.raises(MlpSwapError, match=named) as caught:
        ill_condition(table, kappa, profile)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "measure",
    [
        whitening,
        condition_number,
        margin_optimal_outputs,
        decodability,
        coherence,
        best_whitening,
        lambda table: ill_condition(table, 2.0),
        lambda table: spike(table, 1.5, generator()),
    ],
)
@pytest.mark.parametrize(
    ("table", "found"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], "found list"),
        (torch.eye(3, dtype=torch.int64), "found a tensor of torch.int64"),
        (torch.eye(3, dtype=torch.complex64), "found a tensor of torch.complex64"),
    ],
)
def test_a_table_is_a_tensor_of_floating_point_numbers(measure, table, found, unchecked):
    """One sentence, wherever a table goes in."""
    with pytest.raises(ConfigError, match=f"must be a tensor of floating-point numbers: {found}"):
        measure(table)


def test_a_low_rank_table_in_float32_is_noticed():
    rows = gaussian(200, 3, generator()) @ gaussian(3, 8, generator(1))
    with pytest.raises(EmbeddingsError, match="rank 3"):
        ill_condition(rows, 10)


def test_a_spike_stretches_one_direction():
    """Unit rows; the second moment has one eigenvalue above the rest, along the direction that was drawn."""
    table = spherical(5_000, 8, generator(), torch.float64)
    made = spike(table, 1.5, generator(1))
    u = spherical(1, 8, generator(1), torch.float64)[0]
    assert torch.allclose(made.norm(dim=1), torch.ones(5_000, dtype=torch.float64))
    values, basis = torch.linalg.eigh(made.T @ made)
    assert values[-1] > 2.5 * values[-2]
    assert abs(basis[:, -1] @ u) > 0.99
    assert torch.allclose(spike(table, 0.0, generator(1)), table)
    with pytest.raises(EmbeddingsError, match="row 0"):
        spike(torch.zeros(2, 3), 1.5, generator())


def test_a_condition_number_beyond_the_precision_is_refused():
    """float32 would silently give another one."""
    table = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    with pytest.raises(EmbeddingsError, match="must be float64"):
        ill_condition(table, 1e12)
    assert condition_number(ill_condition(table.double(), 1e12)) == pytest.approx(1e12, rel=1e-3)
