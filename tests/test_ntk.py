"""The Hermite construction: its sum over facts, its polynomials, and what its width buys."""

import math

import pytest
import torch
from numpy.polynomial import hermite_e

from mlpswap.constructions import build_fact_mlp
from mlpswap.constructions.base import hermite2
from mlpswap.constructions.ntk import default_width, gate_moments, hermite, smallest_margin
from mlpswap.embeddings import spherical
from mlpswap.errors import ConfigError
from mlpswap.geometry import margin_optimal_outputs


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def facts(count, d, seed=0, dtype=torch.float32):
    draw = generator(seed)
    keys = spherical(count, d, draw, dtype)
    return keys, keys, torch.randperm(count, generator=draw)


def make(arguments, *, seed=1, **options):
    return build_fact_mlp(*arguments, "ntk", generator=generator(seed), **options)


@pytest.mark.parametrize("degree", range(6))
def test_polynomials_are_the_normalised_hermite_polynomials(degree):
    """He_q / sqrt(q!), by numpy; h_2 is the activation of that name."""
    z = torch.linspace(-4, 4, 50, dtype=torch.float64)
    expected = hermite_e.hermeval(z.numpy(), [0] * degree + [1]) / math.sqrt(math.factorial(degree))
    assert torch.allclose(hermite(z, degree), torch.from_numpy(expected), atol=1e-12)
    assert torch.allclose(hermite(z, 2), hermite2(z))


def test_moments_of_gates():
    """Closed forms: relu has coefficients 1/2, 1/(2 sqrt pi), 0 and power 1/2; h_2 has E h_2^4 = 15."""
    for degree, coefficient in ((1, 0.5), (2, 0.5 / math.sqrt(math.pi)), (3, 0.0)):
        assert gate_moments("relu", degree).coefficient == pytest.approx(coefficient, abs=1e-6)
    assert gate_moments("relu", 1).power == pytest.approx(0.5)
    matched = gate_moments("hermite2", 2)
    assert (matched.coefficient, matched.power, matched.peak) == pytest.approx((1, 1, 15))


@pytest.mark.parametrize(("degree", "gate"), [(2, "hermite"), (1, "relu"), (1, "identity")])
def test_up_matrix_is_the_sum_over_facts(monkeypatch, degree, gate):
    """a_p = (d / (c h)) sum_i h_q(<g_p, k_i>) <b_p, t_i> k_i, neuron by neuron, in chunks as in one piece."""
    monkeypatch.setattr("mlpswap.constructions.ntk.CHUNK", 7)
    keys, values, mapping = facts(30, 8, dtype=torch.float64)
    mlp = make((keys, values, mapping), h=20, degree=degree, gate=gate, outputs="values")
    assert torch.allclose(mlp.down.weight.norm(dim=0), torch.ones(20, dtype=torch.float64))
    c = gate_moments({"hermite": "hermite2"}.get(gate, gate), degree).coefficient
    for g, b, a in zip(mlp.gate.weight, mlp.down.weight.T, mlp.up.weight, strict=True):
        total = torch.zeros(8, dtype=torch.float64)
        for key, wanted in zip(keys, mapping.tolist(), strict=True):
            total += hermite(g @ key, degree) * (b @ values[wanted]) * key
        assert torch.allclose(a, total * 8 / (20 * c), atol=1e-12)


def test_outputs_are_as_long_as_the_targets():
    """With many neurons an output is its target plus noise: the mean projection on it is one."""
    keys, values, mapping = facts(40, 16)
    for degree, gate in ((2, "hermite"), (1, "relu"), (2, "relu")):
        mlp = make((keys, values, mapping), h=20_000, degree=degree, gate=gate, outputs="values")
        assert float((mlp(keys) * values[mapping]).sum(dim=1).mean()) == pytest.approx(1, abs=0.1)


def test_what_helps_is_the_matched_gate_and_the_outputs():
    """At one width of (d, F) = (32, 256) the order is that of the published minimal widths."""
    arguments = facts(256, 32)

    def accuracy(**options):
        return sum(make(arguments, seed=s, h=600, **options).report.accuracy for s in range(3)) / 3

    relu_values = accuracy(degree=1, gate="relu", outputs="values")
    relu = accuracy(degree=1, gate="relu", outputs="margin_optimal")
    identity_values = accuracy(degree=1, gate="identity", outputs="values")
    matched = accuracy(degree=2, gate="hermite", outputs="margin_optimal")
    assert relu_values < identity_values < matched
    assert relu_values < relu < matched


def test_width_buys_accuracy():
    """(64, 1024), h_2: far too narrow stores part, and the width that the formula gives stores all."""
    arguments = facts(1024, 64)
    accuracies = [make(arguments, h=h).report.accuracy for h in (300, 900, None)]
    assert accuracies == sorted(accuracies)
    assert 0.2 < accuracies[0] < 0.8
    assert accuracies[2] == 1.0


def test_default_widths_grow_with_the_facts():
    """Nearly linear in F / d, larger for gates with other parts and for small margins."""
    matched, relu = gate_moments("hermite2", 2), gate_moments("relu", 1)
    assert default_width(4096, 64, 2, matched, 0.6) > 2 * default_width(1024, 64, 2, matched, 0.6)
    assert default_width(1024, 64, 1, relu, 0.6) > 1.5 * default_width(1024, 64, 2, matched, 0.6)
    assert default_width(1024, 64, 2, matched, 0.3) > 3.9 * default_width(1024, 64, 2, matched, 0.6)


def test_smallest_margin_is_rho_for_margin_optimal_outputs():
    """And smaller for any other outputs."""
    values = spherical(100, 16, generator(), torch.float64)
    best, everyone = margin_optimal_outputs(values), torch.arange(100)
    assert smallest_margin(best.outputs, values, everyone) == pytest.approx(float(best.rho.min()), abs=1e-9)
    assert smallest_margin(values, values, everyone) < float(best.rho.min())
    assert smallest_margin(values[:1], values[:1], torch.zeros(1, dtype=torch.long)) == 1.0


def test_options_that_cannot_work_are_refused():
    """A gate without the degree's Hermite part would store nothing."""
    arguments = facts(8, 8)
    wrong = [
        ({"gate": "identity"}, "gate 'identity' has no part of degree 2, so it would store nothing"),
        ({"gate": "relu", "degree": 3}, "gate 'relu' has no part of degree 3"),
        ({"degree": 3}, "a hermite gate exists for degrees 1 and 2, found degree 3"),
        ({"degree": 0}, "degree must be positive, found 0"),
        ({"gate": "silu"}, "unknown gate 'silu': expected one of hermite, relu, identity"),
    ]
    for options, text in wrong:
        with pytest.raises(ConfigError, match=text):
            make(arguments, **options)
