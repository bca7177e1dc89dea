"""Rounding of significands, and the number of binary digits that a network needs."""

import pytest
import torch

from mlpswap.errors import ConfigError
from mlpswap.sequences.bits import bit_budget, round_to_bits, rounded, smallest_margin
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.network import PairNetwork


@pytest.mark.parametrize(("bits", "dtype"), [(8, torch.bfloat16), (11, torch.float16)])
def test_rounding_agrees_with_the_formats_of_the_hardware(bits, dtype):
    """Within their normal range, where the exponent does not matter."""
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randn(10_000, generator=draw) * 10
    numbers = numbers[numbers.abs() > 1e-3]
    assert torch.equal(round_to_bits(numbers, bits), numbers.to(dtype).float())


def test_rounding_keeps_zero_signs_and_all_of_float32():
    numbers = torch.tensor([0.0, -1.5, 3e38, -1e-30, 1 + 2**-23])
    assert torch.equal(round_to_bits(numbers, 24), numbers)
    assert torch.equal(round_to_bits(numbers, 1)[:2], torch.tensor([0.0, -2.0]))
    with pytest.raises(ConfigError, match="at least one binary digit: found 0"):
        round_to_bits(numbers, 0)


@pytest.fixture
def narrow():
    """One fact whose label leads by the fifth binary digit: 1 + 1/16 against 1."""
    facts = PairFacts(torch.tensor([0]), torch.tensor([0]), torch.tensor([1]), 1, 2)
    return facts, PairNetwork(torch.ones(1, 1), torch.zeros(1, 1), torch.tensor([[1.0], [1 + 1 / 16]]))


def test_the_budget_is_the_digit_that_decides(narrow):
    facts, network = narrow
    assert bit_budget(network, facts) == 5
    assert rounded(network, 5).accuracy(facts) == 1
    assert rounded(network, 4).accuracy(facts) == 0  # a tie is a miss
    assert smallest_margin(network, facts) == pytest.approx(1 / 17)


def test_there_is_no_budget_for_an_accuracy_that_is_not_there(narrow):
    facts, network = narrow
    wrong = PairNetwork(network.first, network.second, network.unembedding.flip(0))
    assert bit_budget(wrong, facts) is None
    assert bit_budget(wrong, facts, accuracy=0.0) == 1
    assert smallest_margin(wrong, facts) < 0
