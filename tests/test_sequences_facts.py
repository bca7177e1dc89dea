"""What facts about pairs of tokens must be."""

import pytest
import torch

from mlpswap.errors import ConfigError
from mlpswap.sequences.facts import PairFacts

GOOD = {"first": [0, 1], "second": [2, 2], "label": [0, 1]}


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("first", torch.tensor([0, 3])),
        ("second", torch.tensor([-1, 0])),
        ("label", torch.tensor([0, 2])),
        ("first", torch.tensor([0, 1], dtype=torch.int32)),
    ],
)
def test_facts_that_are_none_are_refused_by_their_part(part, values):
    """Methods index by them: what is out of range would fail somewhere inside, or pass unnoticed."""
    parts = {name: torch.tensor(each) for name, each in GOOD.items()}
    PairFacts(**parts, tokens=3, labels=2)
    with pytest.raises(ConfigError, match=f"facts: {part}"):
        PairFacts(**parts | {part: values}, tokens=3, labels=2)
