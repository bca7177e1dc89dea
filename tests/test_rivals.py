"""Scoring with a shortcut: which rows it settles, and that no answer changes."""

import pytest
import torch

from mlpswap.editing.evaluation import PromptCache, correct
from mlpswap.metrics import Rivals, Rows, is_top1
from mlpswap.randomness import generator
from tests.reference import books_host


@pytest.fixture(scope="module")
def scene():
    """A host, outputs of its mixture that point at some token each, and these tokens."""
    _, model = books_host(256, d=32, h=40, dtype=torch.float32)
    source = generator(0, "rivals")
    table = model.get_output_embeddings().weight.detach()
    wanted = torch.randint(len(table), (300,), generator=source)
    y = table[wanted] + 0.05 * torch.randn(300, 32, generator=source)
    return model, y, wanted, source


@pytest.mark.parametrize("scale", [0.0, 0.02, 0.3, 3.0])
def test_rivals_change_no_answer(scene, scale):
    """Against plain logits, for changes from none to beyond recognition."""
    model, y, wanted, source = scene
    rivals = Rivals.of(model, y, k=16)
    changed = y + scale * torch.randn(y.shape, generator=source)
    logits = model.head(changed)
    mine = logits.gather(1, wanted[:, None]).squeeze(1)
    plain = mine > logits.scatter(1, wanted[:, None], float("-inf")).amax(dim=1)
    assert torch.equal(is_top1(model, changed, wanted, rivals=rivals), plain)
    assert torch.equal(is_top1(model, changed, wanted), plain)
    assert plain.any() or scale > 1


def test_small_changes_are_settled_at_once(scene):
    """Certain verdicts are right, and without a change nearly all verdicts are certain."""
    model, y, wanted, _ = scene
    won, certain = Rivals.of(model, y, k=16).settle(
        model.head_direction(y), wanted, model.get_output_embeddings().weight
    )
    assert certain.float().mean() > 0.95
    assert torch.equal(won[certain], is_top1(model, y, wanted)[certain])


def test_a_tie_is_a_failure_with_and_without_rivals(scene):
    """Two tokens with one embedding: a close call is left to the exact comparison, which fails it."""
    model, y, wanted, _ = scene
    table = model.get_output_embeddings().weight
    before = table.detach().clone()
    with torch.no_grad():
        table[(wanted[0] + 1) % len(table)] = table[wanted[0]]
        try:
            rivals = Rivals.of(model, y[:1], k=16)
            assert not is_top1(model, y[:1], wanted[:1], rivals=rivals)
            assert not is_top1(model, y[:1], wanted[:1])
        finally:
            table.copy_(before)


def test_a_vocabulary_without_others_needs_none(scene):
    model, y, wanted, _ = scene
    assert Rivals.of(model, y, k=10_000) is None
    rows = Rows(y, torch.zeros(len(y)), y)
    cache = PromptCache(rows, wanted, wanted)
    fast = cache.with_rivals(model)
    assert torch.equal(correct(model, model.fact_mlp, fast), correct(model, model.fact_mlp, cache))
    assert len(fast[:10].rivals.tokens) == 10
