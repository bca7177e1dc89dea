"""Encoders: the dual form against the whole linear system, the published conditioning, and the gadgets."""

import pytest
import torch

from mlpswap.constructions.base import ACTIVATIONS, value_and_slope
from mlpswap.constructions.encoders import (
    BinOptions,
    Encoder,
    bin_encoder,
    bin_width,
    condition_number,
    gd_encoder,
)
from mlpswap.constructions.gadgets import baum_encoder, two_hot_encoder
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import InfeasibleConstructionError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def problem(facts=40, d=8, m=3, seed=0):
    """Unit keys and codes of mean length about one."""
    keys = spherical(facts, d, generator(seed), torch.float64)
    return keys, gaussian(facts, m, generator(seed + 1), torch.float64) / m**0.5


def error(encoder, keys, codes):
    return float((encoder(keys) - codes).norm() / codes.norm())


def single(encoder):
    """The encoder after a float32 cast."""
    up, read = encoder.up.float(), encoder.read.float()
    gate = None if encoder.gate is None else encoder.gate.float()
    return lambda x: Encoder(encoder.activation, gate, up, read)(x.float()).double()


def whole_system(keys, sigma, bias):
    """M = [diag(Sigma_1) K, ..., diag(Sigma_h) K], key by key; K is [K, 1] and a column of ones is added with biases."""
    rows = []
    for key, gates in zip(keys, sigma.T, strict=True):
        inputs = torch.cat([key, torch.ones(1, dtype=key.dtype)]) if bias else key
        row = torch.outer(gates, inputs).flatten()
        rows.append(torch.cat([row, torch.ones(1, dtype=key.dtype)]) if bias else row)
    return torch.stack(rows)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", "relu", "gelu"])
def test_dual_form_is_the_solution_of_least_norm(activation, bias):
    """A of each gadget is pinv(M) o, although M is never formed."""
    keys, codes = problem()
    encoder = bin_encoder(keys, codes, 7, BinOptions(activation, bias=bias), generator(3))
    g = encoder.gate[:7]
    solution = torch.linalg.pinv(whole_system(keys, ACTIVATIONS[activation](g @ keys.T), bias)) @ codes
    for j in range(3):
        rows = slice(7 * j, 7 * j + 7)
        weights = encoder.up[rows]
        if bias:
            weights = torch.cat([weights, encoder.bias[rows, None]], dim=1)
            assert float(encoder.shift[j]) == pytest.approx(float(solution[-1, j]), abs=1e-8)
        expected = solution[: weights.numel(), j].reshape(weights.shape)
        assert torch.allclose(weights, expected, rtol=1e-6, atol=1e-8)
        assert torch.equal(encoder.gate[rows], g)
        assert encoder.read[j].nonzero().flatten().tolist() == list(range(rows.start, rows.stop))
    assert error(encoder, keys, codes) < 1e-9


@pytest.mark.parametrize("bias", [False, True])
def test_below_feasibility_least_squares(bias):
    """With too few weights A is pinv(M) o as well, now with an error, up to the ridge."""
    keys, codes = problem()
    encoder = bin_encoder(keys, codes, 3, BinOptions(bias=bias, exact=False), generator(3))
    system = whole_system(keys, ACTIVATIONS["silu"](encoder.gate[:3] @ keys.T), bias)
    fitted = system @ (torch.linalg.pinv(system) @ codes)
    assert 0.1 < float((fitted - codes).norm() / codes.norm()) < 0.9
    assert torch.allclose(encoder(keys), fitted, atol=1e-3)


def test_biases_add_unknowns():
    """h (d + 1) + 1 >= F: 41 keys at d = 9, h = 4 need biases."""
    keys, codes = problem(41, 9)
    assert error(bin_encoder(keys, codes, 4, BinOptions(bias=True), generator()), keys, codes) < 1e-4
    assert (bin_width(41, 9, 1.0, bias=True), bin_width(41, 9, 1.0)) == (4, 5)
    with pytest.raises(InfeasibleConstructionError, match=r"d h~ = 9 \* 4 = 36 < 41"):
        bin_encoder(keys, codes, 4, BinOptions(), generator())
    with pytest.raises(InfeasibleConstructionError, match=r"\(d \+ 1\) h~ \+ 1 = 10 \* 3 \+ 1 = 31 < 41"):
        bin_encoder(keys, codes, 3, BinOptions(bias=True), generator())


@pytest.mark.parametrize(
    ("width", "condition", "residual", "largest"),
    [(16, (1e7, 1e13), 1e-5, (8, 1e5)), (17, (1e4, 1e5), 1e-11, (1, 4)), (18, (5e3, 3e4), 1e-12, (0.6, 2))],
    ids=["1.0", "1.02", "1.1"],
)
def test_published_conditioning(width, condition, residual, largest):
    """(64, 1024), 49 outputs: a square system loses six digits; a tenth more neurons loses none."""
    keys, codes = problem(1024, 64, 49)
    encoder = bin_encoder(keys, codes, width, BinOptions(), generator(3))
    assert condition[0] < encoder.details["condition"] < condition[1]
    assert encoder.details["residual"] < residual
    assert error(encoder, keys, codes) < residual
    assert largest[0] < float(encoder.up.abs().max()) < largest[1]


def test_condition_number_of_a_known_matrix():
    """The power steps find both ends of the spectrum."""
    basis = torch.linalg.qr(gaussian(30, 30, generator(), torch.float64)).Q
    matrix = basis @ torch.diag(torch.logspace(0, 6, 30, dtype=torch.float64)) @ basis.T
    assert condition_number(matrix, torch.linalg.cholesky(matrix)) == pytest.approx(1e6, rel=0.05)


def test_degenerate_systems_are_refused():
    """A polynomial gate caps the rank, at d (d + 1) / 2 for the identity; nearly equal keys have no solution."""
    keys, codes = problem(40, 8)
    with pytest.raises(
        InfeasibleConstructionError, match=r"rank\(Sigma\) = 8; .* activation 'identity' is deg"
    ):
        bin_encoder(keys, codes, 10, BinOptions("identity"), generator())
    fewer = keys[:30], codes[:30]
    assert error(bin_encoder(*fewer, 10, BinOptions("identity"), generator()), *fewer) < 1e-6
    keys[7] = keys[30] * (1 + 1e-15)
    with pytest.raises(
        InfeasibleConstructionError, match=r"fails for some set S of keys: keys are nearly equal"
    ):
        bin_encoder(keys, codes, 10, BinOptions(), generator())
    assert bin_encoder(keys, codes, 10, BinOptions(exact=False), generator()).up.isfinite().all()


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_derivative_limit_is_of_second_order(activation):
    """The published table: the error falls with eps^2 in float64, and grows with 1 / eps in float32 from 1e-2 on."""
    keys, codes = problem(1024, 64, 32)

    def errors(epsilon):
        encoder = bin_encoder(
            keys, codes, 18, BinOptions(activation, gated=False, epsilon=epsilon), generator(3)
        )
        return error(encoder, keys, codes), error(single(encoder), keys, codes)

    (coarse, _), (default, default32), (fine, fine32) = (errors(e) for e in (1e-1, None, 1e-3))
    assert 3e-4 < coarse < 3e-2
    assert coarse / default == pytest.approx(100, rel=0.3)
    assert default / fine == pytest.approx(100, rel=0.1)
    assert default32 < 2e-3 < fine32 < 2e-2


def test_relu_limit_is_exact_below_its_epsilon():
    """Up to eps |A x| < |G x| for all keys and neurons, and not beyond."""
    keys, codes = problem(256, 32, 8)
    encoder = bin_encoder(keys, codes, 9, BinOptions("relu", gated=False), generator(3))
    epsilon = encoder.details["epsilon"]
    assert error(encoder, keys, codes) < 1e-8
    # rows are G + eps A, then G - eps A
    plus, minus = (keys @ half.T for half in encoder.up.chunk(2))
    assert float(((plus - minus).abs() / (plus + minus).abs()).max()) == pytest.approx(0.5)
    larger = bin_encoder(keys, codes, 9, BinOptions("relu", gated=False, epsilon=100 * epsilon), generator(3))
    assert error(larger, keys, codes) > 1e-3


def test_slopes():
    """act' against differences, and 0 at the kink of a ReLU."""
    z = torch.linspace(-3, 3, 30, dtype=torch.float64)
    for act in ACTIVATIONS.values():
        assert torch.allclose(value_and_slope(act, z)[1], (act(z + 1e-6) - act(z - 1e-6)) / 2e-6, atol=1e-6)
    assert value_and_slope(ACTIVATIONS["relu"], torch.zeros(1))[1].item() == 0


def test_trained_encoder_fits_smooth_codes():
    """Fewer neurons than exactness needs, small error; half the neurons fit worse."""
    keys, codes = problem(128, 16, 4)
    wide, narrow = (gd_encoder(keys, codes, h, "silu", 300, generator(3)) for h in (24, 12))
    assert error(wide, keys, codes) < 0.3 < error(narrow, keys, codes)
    assert wide.free == 4 * 24
    assert wide.details["loss"] == pytest.approx(error(wide, keys, codes) ** 2, rel=0.2)


@pytest.mark.parametrize("gated", [True, False])
def test_two_hot_reads_a_table(gated):
    """All d (d - 1) keys e_i - e_j, exactly."""
    d = 7
    pairs = [(i, j) for i in range(d) for j in range(d) if i != j]
    eye = torch.eye(d, dtype=torch.float64)
    keys = torch.stack([eye[i] - eye[j] for i, j in pairs]) * 0.3
    codes = gaussian(len(pairs), 3, generator(), torch.float64)
    encoder = two_hot_encoder(keys, codes, gated=gated)
    assert (encoder(keys) - codes).abs().max() < 1e-14
    assert len(encoder.up) == 3 * d
    keys[4] += 0.1 * eye[6]
    with pytest.raises(
        InfeasibleConstructionError, match="two_hot encoder needs keys e_i - e_j.*: key 4 is not"
    ):
        two_hot_encoder(keys, codes, gated=gated)


def test_baum_network_is_exact_in_float64_only():
    """d = 16, F = 256: 64 neurons for an output, whose weights are too large for float32."""
    keys, codes = problem(256, 16, 1)
    encoder = baum_encoder(keys, codes)
    assert len(encoder.up) == 64
    assert error(encoder, keys, codes) < 1e-7
    assert float(encoder.read.abs().max()) > 1e3
    rest = problem(37, 16, 2)  # a last block of 5 keys
    assert error(baum_encoder(*rest), *rest) < 1e-7


def test_baum_network_needs_general_position():
    """Dependent keys, or another block's key in a plane, have no slab."""
    keys, codes = problem(32, 8)
    keys[20] = 0.5 * keys[0] + 0.5 * keys[1]  # in the plane <z, x> = 1 of the first block
    with pytest.raises(InfeasibleConstructionError, match="general position: the plane through keys 0 to 7"):
        baum_encoder(keys, codes)
    keys, codes = problem(32, 8)
    keys[9] = -keys[8]
    with pytest.raises(InfeasibleConstructionError, match="the plane through keys 8 to 15 misses them by"):
        baum_encoder(keys, codes)
