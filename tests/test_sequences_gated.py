"""The gated construction as pairs of ReLUs: codes that decode, gates that no fact comes near, and what it holds."""

import pytest
import torch

from mlpswap.errors import ConfigError, InfeasibleConstructionError
from mlpswap.sequences.base import trial_generator
from mlpswap.sequences.facts import draw_pair_facts
from mlpswap.sequences.methods.gated import Gated, GatedConfig, drawn_gates, label_codes


def build(count, width, trials=3, **options):
    facts = draw_pair_facts(count, 2 * width, width)
    generators = [trial_generator("gated", trial) for trial in range(trials)]
    return facts, Gated().build(facts, width, GatedConfig(**options), generators)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_every_code_decodes_to_its_label(m):
    codes = label_codes(16, m, trial_generator("gated", 0))
    scores = codes @ codes.T - (codes.square().sum(1) / 2 if m == 1 else 0)
    assert torch.equal(scores.argmax(1), torch.arange(16))


def test_no_fact_is_near_a_gate_and_each_finds_one_open():
    facts = draw_pair_facts(400, 32, 16)
    config = GatedConfig(levels=8)
    gates = drawn_gates(facts, 6, config, trial_generator("gated", 0))
    sums = gates[:, facts.first] + gates[:, 32 + facts.second]
    assert sums.abs().min() >= 0.5 / config.levels
    assert (sums > 0).any(0).all()


@pytest.mark.parametrize(("m", "count"), [(1, 250), (2, 100), (3, 50)])
def test_facts_are_stored_exactly_without_descent(m, count):
    facts, networks = build(count, 16, code_width=m)
    assert max(network.accuracy(facts) for network in networks) == 1.0
    network = networks[0]
    assert network.first.shape == (32, 16)
    assert {network.first.dtype, network.unembedding.dtype} == {torch.float32}


def test_too_many_facts_are_stored_in_part():
    facts, networks = build(700, 16)
    assert all(0 < network.accuracy(facts) < 0.9 for network in networks)


def test_what_cannot_be_is_refused():
    with pytest.raises(InfeasibleConstructionError, match="expected at least 10"):
        build(10, 8, code_width=5)
    with pytest.raises(ConfigError, match="code_width"):
        GatedConfig(code_width=0)
