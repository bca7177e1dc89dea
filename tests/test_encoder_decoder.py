"""Decoders, the merged MLP, and what the construction refuses."""

import math

import pytest
import torch

from mlpswap.constructions import build_fact_mlp, decoders
from mlpswap.constructions.decoders import Decoding, make_decoder, random_decoder, trained_decoder
from mlpswap.constructions.encoder_decoder import merge
from mlpswap.constructions.encoders import BinOptions, bin_encoder
from mlpswap.embeddings import spherical
from mlpswap.errors import ConfigError, InfeasibleConstructionError
from mlpswap.geometry import margin_optimal_outputs

SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def facts(count, d, seed=0, dtype=torch.float32):
    draw = generator(seed)
    keys = spherical(count, d, draw, dtype)
    return keys, keys, torch.randperm(count, generator=draw)


def make(arguments, *, seed=1, **options):
    return build_fact_mlp(*arguments, "encoder_decoder", generator=generator(seed), **options)


def decoding(count=128, d=32, seed=0, used=None, rivals=0):
    values = spherical(count, d, generator(seed), torch.float64)
    rows = torch.cat([values, spherical(rivals, d, generator(seed + 9), torch.float64)])
    used = torch.arange(count) if used is None else used
    return Decoding(margin_optimal_outputs(values).outputs, rows, used)


def decoded_by_loops(task, decoder):
    """Value by value: does its decoded code score it highest of all rows?"""
    right = []
    for wanted in task.used.tolist():
        scores = [float(row @ decoder.weight @ decoder.codes[wanted]) for row in task.rows]
        right.append(all(score < scores[wanted] for j, score in enumerate(scores) if j != wanted))
    return right


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("decoder", "m"), [("orthonormal", 32), ("jl", 56)])
def test_published_code_widths_store_everything(decoder, m, seed):
    """(d, F) = (64, 1024), after the cast to float32: code error below 1e-10 before it."""
    report = make(facts(1024, 64, seed), seed=seed + 100, decoder=decoder, code_width=m).report
    assert report.accuracy == 1.0
    assert report.details["code_error"] < 1e-10
    assert report.parameters == report.details["dense"] == 3 * 64 * 18 * m
    assert report.details["factored"] == 2 * 64 * 18 * m + 64 * m


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("encoder", "decoder", "m", "h"),
    [("bin", "gd", 8, 144), ("gd", "jl", 64, 192), ("gd", "gd", 10, 80), ("gd", "gd", 8, 64)],
)
def test_trained_halves_reach_the_published_widths(encoder, decoder, m, h, seed):
    """(d, F) = (64, 1024): half a minute each."""
    arguments = facts(1024, 64, seed)
    mlp = make(arguments, seed=seed + 100, encoder=encoder, decoder=decoder, code_width=m, h=h)
    assert mlp.report.accuracy == 1.0


def test_too_narrow_gadgets_are_refused_before_any_search():
    """(64, 1024): 15 neurons for a gadget are one too few; so are all neurons of an MLP together."""
    arguments = facts(1024, 64)
    with pytest.raises(
        InfeasibleConstructionError, match=r"d rank\(Sigma\[:, S\]\) >= .* 64 \* 15 = 960 < 1024"
    ):
        make(arguments, code_width=32, h=15 * 32, outputs="values")
    with pytest.raises(InfeasibleConstructionError, match=r"d h~ = 64 \* 12 = 768 < 1024"):
        make(arguments, h=12)
    with pytest.raises(InfeasibleConstructionError, match="a neuron for each of 32 gadgets.*found h = 30"):
        make(arguments, code_width=32, h=30, outputs="values")


@pytest.mark.parametrize("kind", ["jl", "orthonormal"])
@pytest.mark.parametrize("m", [6, 40])
def test_a_decoder_knows_whether_it_works(kind, m):
    """`complete` is what the scores say, one by one, on either side of the smallest width."""
    task = decoding(60, 48)
    decoder = make_decoder(kind, task, m, seed=3)
    assert decoder.complete == all(decoded_by_loops(task, decoder)) == (m == 40)
    assert float(decoder.codes.norm(dim=1).mean()) == pytest.approx(1)
    projected = task.outputs @ decoder.weight
    assert torch.allclose(decoder.codes / decoder.codes.norm(), projected / projected.norm())


def test_orthonormal_columns_are_orthonormal_and_exact_at_full_width():
    """D^T D is a multiple of I; at m = d the codes are a rotation of the outputs."""
    task = decoding(60, 16)
    decoder = random_decoder(task, 16, 0, orthonormal=True)
    square = decoder.weight.T @ decoder.weight
    assert torch.allclose(square, square[0, 0] * torch.eye(16, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(decoder.codes @ decoder.weight.T, task.outputs, atol=1e-12)
    with pytest.raises(InfeasibleConstructionError, match="m <= d: found m = 17 > 16"):
        random_decoder(task, 17, 0, orthonormal=True)


@pytest.mark.parametrize("kind", ["jl", "orthonormal"])
def test_search_ends_where_one_less_fails(kind):
    """The width found works and the next smaller one does not, with the same draws."""
    task = decoding(128, 32)
    found = make_decoder(kind, task, None, seed=5)
    m = found.codes.shape[1]
    assert found.complete
    assert torch.equal(make_decoder(kind, task, m, seed=5).weight, found.weight)
    assert not make_decoder(kind, task, m - 1, seed=5).complete


def test_orthonormal_needs_fewer_coordinates_than_jl_and_training_fewer_still():
    """The order of the published widths (30, 49, 8), at (32, 256)."""
    task = decoding(256, 32)
    widths = [make_decoder(kind, task, None, seed=1).codes.shape[1] for kind in ("gd", "orthonormal", "jl")]
    assert widths[0] <= 10 < widths[1] < widths[2]


def test_only_values_with_a_key_need_decoding():
    """Fewer values to find take fewer coordinates; further rivals take more."""
    some = torch.arange(10)
    widths = [
        make_decoder("orthonormal", task, None, seed=2).codes.shape[1]
        for task in (decoding(used=some), decoding(), decoding(rivals=3000))
    ]
    assert widths[0] < widths[1] < widths[2]


def test_trained_decoder_beats_rivals_and_stops_at_the_fourth_perfect_check(monkeypatch):
    """Codes of unused values stay zero; one check less, and training would have ended earlier."""
    task = decoding(100, 24, used=torch.arange(0, 100, 2), rivals=60)
    decoder = trained_decoder(task, 8, 4)
    assert decoder.complete
    assert all(decoded_by_loops(task, decoder))
    assert decoder.codes[1::2].abs().max() == 0
    first = trained_decoder(task, 8, 4)
    assert torch.equal(first.weight, decoder.weight)
    monkeypatch.setattr(decoders, "PERFECT_CHECKS", 1)
    early = trained_decoder(task, 8, 4)
    assert relative_margin(task, early) < relative_margin(task, decoder)


def relative_margin(task, decoder):
    scores = decoder.codes[task.used] @ decoder.weight.T @ task.rows.T
    right = scores.gather(1, task.used[:, None])
    rivals = scores.scatter(1, task.used[:, None], float("-inf")).amax(dim=1)
    return float((right.squeeze(1) - rivals).min() / right.mean())


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("bias", [False, True])
def test_merged_mlp_is_decoder_after_encoder(gated, bias):
    """B = D E and b_B = D c, on keys of any length."""
    keys, _, mapping = facts(60, 12, dtype=torch.float64)
    decoder = random_decoder(decoding(60, 12), 5, 0, orthonormal=True)
    encoder = bin_encoder(keys, decoder.codes[mapping], 9, BinOptions(gated=gated, bias=bias), generator(2))
    mlp = merge(encoder, decoder, 3.0)
    assert torch.allclose(mlp(3 * keys), encoder(keys) @ decoder.weight.T, atol=1e-9)
    assert (mlp.config.gated, mlp.config.hidden_bias, mlp.config.output_bias) == (gated, bias, bias)


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu"])
def test_without_gate_twice_the_neurons_and_two_matrices(activation):
    """Complete in float32, with 4 d h numbers where the gated MLP has 3 d h; both counts are reported."""
    arguments = facts(256, 32)
    gated = make(arguments, code_width=28, activation=activation)
    plain = make(arguments, code_width=28, activation=activation, gated=False)
    assert gated.report.accuracy == plain.report.accuracy == 1.0
    assert plain.gate is None
    assert plain.config.h == 2 * gated.config.h == 2 * 28 * 9
    assert plain.report.details["dense"] == 4 * 32 * 28 * 9
    assert plain.report.details["factored"] == 2 * 32 * 28 * 9 + 32 * 28
    assert 0 < plain.report.details["epsilon"] <= 0.01


@pytest.mark.parametrize("options", [{"bias": True}, {"bias": True, "gated": False, "activation": "gelu"}])
def test_biases_are_deployed(options):
    """With biases on the hidden neurons and on the output everything is stored, too."""
    report = make(facts(128, 24), code_width=22, **options).report
    assert report.accuracy == 1.0
    h = 22 * math.ceil(1.1 * 127 / 25) * (1 if options.get("gated", True) else 2)
    matrices, biases = (3, 2) if options.get("gated", True) else (2, 1)
    assert report.parameters == matrices * 24 * h + biases * h + 24


def test_trained_halves_are_narrow():
    """Both trained: a quarter of the width of the closed form, and the counts of a dense read-out."""
    arguments = facts(128, 32)
    closed = make(arguments)
    trained = make(arguments, encoder="gd", decoder="gd", steps=400)
    assert trained.report.accuracy == 1.0
    h, m = trained.config.h, trained.report.details["code_width"]
    assert h < closed.config.h / 2
    assert trained.report.details["factored"] == 2 * 32 * h + m * h + 32 * m
    assert trained.report.details["code_error"] < 0.2


def test_below_feasibility_accuracy_instead_of_exactness():
    """With nine tenths of the neurons exact = false still stores most; strict and exact refuse."""
    arguments = facts(256, 32)
    report = make(arguments, code_width=24, width_multiplier=0.85, exact=False).report
    assert 0.2 < report.accuracy < 1
    assert report.details["code_error"] > 0.05
    with pytest.raises(InfeasibleConstructionError, match="exact = false for least squares"):
        make(arguments, code_width=24, width_multiplier=0.85)


def test_too_few_coordinates_are_reported(caplog):
    """A code width that cannot decode gives an MLP with wrong facts, named, although its encoder is exact."""
    report = make(facts(256, 32), code_width=8).report
    assert 0.1 < report.accuracy < 1
    assert not report.details["decoder_complete"]
    assert report.details["code_error"] < 1e-10
    assert len(report.wrong) == round(256 * (1 - report.accuracy))


def test_competitors_widen_the_code():
    """Every row that must lose takes part in the search of m."""
    arguments = facts(128, 32)
    rivals = spherical(2000, 32, generator(8))
    alone, crowded = make(arguments), make(arguments, competitors=rivals)
    assert crowded.report.accuracy_vocabulary == 1.0
    assert crowded.report.details["code_width"] > alone.report.details["code_width"]


def test_educational_encoders_build_whole_mlps():
    """In float64; two-hot keys of d = 8 against 56 values, and Baum's network, which float32 breaks."""
    eye = torch.eye(8, dtype=torch.float64)
    keys = torch.stack([eye[i] - eye[j] for i in range(8) for j in range(8) if i != j])
    values = spherical(56, 8, generator(), torch.float64)
    mapping = torch.randperm(56, generator=generator(1))
    for gated in (True, False):
        mlp = make((keys, values, mapping), encoder="two_hot", gated=gated)
        assert mlp.report.accuracy == 1.0
        assert mlp.config.h == 8 * mlp.report.details["code_width"]
    with pytest.raises(InfeasibleConstructionError, match="encoder two_hot needs h = .*: found h = 9"):
        make((keys, values, mapping), encoder="two_hot", h=9)
    assert make(facts(100, 16, dtype=torch.float64), encoder="baum").report.accuracy == 1.0


def test_options_that_do_not_go_together_are_refused():
    """One sentence each, before anything is built."""
    arguments = facts(8, 8)
    wrong = [
        ({"encoder": "vae"}, "unknown encoder 'vae': expected one of bin, margin, gd, two_hot, baum"),
        ({"decoder": "pca"}, "unknown decoder 'pca': expected one of jl, orthonormal, gd"),
        ({"activation": "tanh"}, "unknown activation 'tanh'"),
        ({"code_width": 0}, "code_width must be positive or null, found 0"),
        ({"width_multiplier": -1.0}, "width_multiplier must be positive, found -1.0"),
        ({"epsilon": 0.0}, "epsilon must be positive or null, found 0.0"),
        ({"steps": 0}, "steps must be positive, found 0"),
        ({"encoder": "gd", "gated": False}, "encoder gd is gated"),
    ]
    for options, text in wrong:
        with pytest.raises(ConfigError, match=text):
            make(arguments, **options)
