"""One exam for every method: what it says of itself, and what its networks are made of."""

import copy
from dataclasses import fields, is_dataclass

import pytest
import torch

from mlpswap.cli import main
from mlpswap.errors import InfeasibleConstructionError
from mlpswap.sequences.base import COLUMNS, trial_generator
from mlpswap.sequences.facts import draw_pair_facts
from mlpswap.sequences.methods import METHODS, get_method

WIDTH, COUNT = 9, 12


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_what_it_is(name):
    method = get_method(name)
    assert method.name == name
    assert method.column in COLUMNS
    assert method.source
    assert is_dataclass(method.Config)
    assert all(field.metadata.get("help") for field in fields(method.Config))
    method.Config()


@pytest.mark.parametrize("threshold", [1.0, 0.9])
@pytest.mark.parametrize("name", METHODS)
def test_its_networks_are_whole_reproducible_and_leave_everything_else_alone(name, threshold):
    """As few tokens as the exact construction needs; the facts and torch's own stream stay as they are."""
    method, facts = get_method(name), draw_pair_facts(COUNT, WIDTH - 1, 5)
    before, stream = copy.deepcopy(facts), torch.get_rng_state()
    twice = [
        method.build(
            facts,
            WIDTH,
            method.Config(),
            [trial_generator(name, trial) for trial in range(2)],
            threshold=threshold,
        )
        for _ in range(2)
    ]
    for one, other in zip(*twice, strict=True):
        assert one.first.shape == one.second.shape == (WIDTH - 1, WIDTH)
        assert one.unembedding.shape == (5, WIDTH)
        for part in ("first", "second", "unembedding"):
            weight = getattr(one, part)
            assert weight.dtype == torch.float32
            assert torch.isfinite(weight).all()
            assert not weight.requires_grad
            assert torch.equal(weight, getattr(other, part))
        assert one.accuracy(facts) > 0.5
    assert len(twice[0]) == 2
    assert torch.equal(before.first, facts.first)
    assert torch.equal(before.label, facts.label)
    assert torch.equal(stream, torch.get_rng_state())


@pytest.mark.parametrize("name", METHODS)
def test_it_stores_less_or_says_so_where_there_is_no_room(name):
    """Two neurons for all 64 pairs of 8 tokens and 8 labels."""
    method, facts = get_method(name), draw_pair_facts(64, 8, 8)
    try:
        (network,) = method.build(facts, 2, method.Config(), [trial_generator(name, 0)])
    except InfeasibleConstructionError:
        return
    assert network.accuracy(facts) < 1


def test_all_are_listed(capsys):
    assert main(["list", "methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert all(line.rstrip().endswith(".") for line in lines)
