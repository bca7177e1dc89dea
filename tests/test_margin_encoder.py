"""The encoder that asks for decodable codes rather than for exact ones: how narrow it may be, and that it is deployed."""

import math

import pytest
import torch
from scipy.optimize import nnls

from mlpswap.constructions import build_fact_mlp
from mlpswap.constructions.encoders import BinOptions, bin_encoder, bin_width, margin_width
from mlpswap.constructions.margin import MarginSets
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError, InfeasibleConstructionError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def facts(count, d, seed=0):
    draw = generator(seed)
    keys = spherical(count, d, draw)
    return keys, keys, torch.randperm(count, generator=draw)


def make(arguments, **options):
    options = {"encoder": "margin", **options}
    return build_fact_mlp(*arguments, "encoder_decoder", generator=generator(100), **options)


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_quarter_of_the_exact_encoder_stores_everything(seed):
    """(64, 1024), in float32: 5 neurons for a gadget instead of 18, from the same decoder."""
    report = make(facts(1024, 64, seed), code_width=28, h=28 * 5, gamma=0.01).report
    assert report.accuracy == 1.0
    assert report.parameters == 3 * 64 * 28 * 5
    assert report.details["factored"] == 2 * 64 * 28 * 5 + 64 * 28


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_trained_decoders_need_fewer_still(seed):
    """(64, 1024), m = 10: 11 neurons for a gadget."""
    arguments = facts(1024, 64, seed)
    assert make(arguments, decoder="gd", code_width=10, h=10 * 11, gamma=0.01).report.accuracy == 1.0


def statistical_dimension(rows, samples, draw):
    """E dist(z, C_i)^2 over z ~ N(0, I_m) and i, with C_i = {y : <y, r_i - r_j> >= 0}, by least squares."""
    total = 0.0
    for _ in range(samples):
        i = int(torch.randint(len(rows), (), generator=draw))
        z = gaussian(1, rows.shape[1], draw, torch.float64)[0]
        normals = torch.cat([rows[:i], rows[i + 1 :]]) - rows[i]
        total += float(z.norm()) ** 2 - nnls(normals.T.numpy(), z.numpy())[1] ** 2
    return total / samples


def test_the_width_needed_is_the_one_that_cone_geometry_predicts():
    """Within 15 %: sum_i E dist(z, C_i)^2 weights of A are where the share that can be stored jumps to one."""
    count, d, m = 300, 20, 8
    draw = generator(3)
    keys, codes = (spherical(count, width, draw, torch.float64) for width in (d, m))
    needed = count * statistical_dimension(codes, 400, draw) / (d * m)
    everyone = torch.arange(count)

    def stored(width):
        sets = MarginSets(codes, everyone, codes[:0], gamma=0.01)
        encoder = bin_encoder(keys, codes, width, BinOptions(), generator(5), sets)
        return float(((encoder(keys) @ codes.T).argmax(dim=1) == everyone).double().mean())

    assert stored(math.ceil(1.15 * needed)) == 1.0
    assert stored(math.floor(0.85 * needed)) < 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"bias": True},
        {"gated": False},
        {"gated": False, "bias": True, "activation": "gelu"},
        {"decoder": "jl"},
    ],
)
def test_every_form_is_deployed_whole(options):
    """With biases, without gate, and with other decoders, at the default width: half of the exact encoder's or less."""
    arguments = facts(256, 32)
    report, exact = make(arguments, **options).report, make(arguments, encoder="bin", **options).report
    assert report.accuracy == exact.accuracy == 1.0
    assert report.parameters < 0.6 * exact.parameters


def test_a_larger_gamma_leaves_wider_margins():
    """At one width, relative to the right scores."""
    keys, values, mapping = facts(256, 32)

    def margin(gamma):
        mlp = make((keys, values, mapping), gamma=gamma)
        right = (mlp(keys) * values[mapping]).sum(dim=1).mean()
        return mlp.report.margin / float(right)

    assert 0 < 2 * margin(0.01) < margin(0.3)


def test_competitors_lose_too():
    """Codes must beat the competitors' rows as well, for which more neurons are allowed."""
    arguments, rivals = facts(256, 32), spherical(2000, 32, generator(8))
    alone, crowded = (make(arguments, code_width=30, competitors=c) for c in (None, rivals))
    assert crowded.report.accuracy_vocabulary == 1.0
    assert crowded.config.h > alone.config.h
    best_rivals = (alone(arguments[0]) @ rivals.T).amax(dim=1)
    assert bool((best_rivals > (alone(arguments[0]) @ arguments[1].T).amax(dim=1)).any())


def test_no_wider_than_exactness_needs():
    """A width beyond that of the exact encoder buys nothing and is not taken; a weight a bit is the default."""
    arguments = facts(256, 32)
    wide = make(arguments, code_width=24, h=24 * 100)
    assert wide.config.h == 24 * bin_width(256, 32, 1.1)
    assert wide.report.accuracy == 1.0
    assert make(arguments, code_width=24).config.h == 24 * margin_width(256, 32, 24, 256, 1.1) == 24 * 3


def test_a_width_that_is_too_small_is_reported(caplog):
    """Two thirds of what is needed give an MLP with wrong facts, named; no width at all is refused."""
    report = make(facts(256, 32), code_width=24, h=24).report
    assert 0.1 < report.accuracy < 1
    assert len(report.wrong) == round(256 * (1 - report.accuracy))
    with pytest.raises(InfeasibleConstructionError, match="a neuron for each of 24 gadgets.*found h = 20"):
        make(facts(256, 32), code_width=24, h=20)
    with pytest.raises(ConfigError, match="gamma must be positive, found 0"):
        make(facts(256, 32), gamma=0)
