"""The numbers of a report, against loops over whole forward passes."""

import math

import pytest
import torch

from mlpswap.facts import FactSet
from mlpswap.metrics import PairScores, is_top1, score_pairs, summarise, token_nll
from mlpswap.randomness import generator
from mlpswap.tasks.base import IGNORE
from tests.reference import books_host


@pytest.fixture(scope="module")
def host():
    return books_host(13, d=16, h=24)


def test_the_block_wise_argmax_is_the_argmax(host):
    """Any block size, wanted tokens in every block."""
    task, model = host
    y = torch.randn(200, 16, generator=generator(0, "y"), dtype=torch.float64)
    best = model.head(y).argmax(dim=1)
    wanted = torch.where(torch.arange(200) % 2 == 0, best, (best + 1) % len(task.vocabulary))
    for block in (1, 7, 32, 10_000):
        assert torch.equal(is_top1(model, y, wanted, block=block), wanted == best)


def test_a_tie_is_a_failure():
    """Two tokens with the same embedding: neither is the strict winner, wherever the blocks part them."""
    task, model = books_host(13, d=16, h=24)
    first, second = task.vocabulary.value_ids[0], task.vocabulary.value_ids[-1]
    with torch.no_grad():
        model.transformer.wte.weight[second] = model.transformer.wte.weight[first]
    y = model.transformer.wte.weight[[first, second]]
    for block in (1, 5, 10_000):
        assert not is_top1(model, y, torch.tensor([first, second]), block=block).any()
    assert is_top1(model, model.transformer.wte.weight[[first - 1]], torch.tensor([first - 1])).all()


def test_cross_entropy_is_the_definition(host):
    _, model = host
    y = torch.randn(9, 16, generator=generator(1, "y"), dtype=torch.float64)
    wanted = torch.arange(9)
    logits = model.head(y).detach()
    expected = [float(logits[i].logsumexp(0) - logits[i, i]) for i in range(9)]
    torch.testing.assert_close(
        token_nll(model, y, wanted, chunk=4), torch.tensor(expected, dtype=torch.float64)
    )


def _score(task, model, samples, **world):
    after = task.facts.permute(generator(5, "after"))
    mlps = {"own": model.fact_mlp, "zero": _zero(model)}
    targets = {"own": task.target_ids(task.facts), "zero": task.target_ids(after)}
    return list(score_pairs(model, task, samples, mlps, targets, language=True, chunk=8, **world))


def _zero(model):
    from copy import deepcopy

    mlp = deepcopy(model.fact_mlp)
    mlp.down.weight.zero_()
    return mlp


def test_scores_equal_a_loop_over_whole_forward_passes(host):
    """Accuracy, attention, gates and both cross-entropies, prompt by prompt, for two fact MLPs."""
    task, model = host
    samples = torch.arange(0, task.population, 5)
    scores = PairScores.cat([part for _, part in _score(task, model, samples)])
    after = task.facts.permute(generator(5, "after"))
    fact, template = task.pairs(samples)
    batch = task.batch(fact, template, targets=task.target_ids(task.facts))
    book_ids = set(task.vocabulary.key_ids)
    original = model.fact_mlp
    for m, (mlp, facts) in enumerate(((original, task.facts), (_zero(model), after))):
        model.transformer.h[-1].mlp = mlp
        for row in range(len(samples)):
            real = batch.attention_mask[row]
            ids, labels = batch.input_ids[row][real], batch.labels[row][real]
            with torch.no_grad():
                logits = model(ids[None]).logits[0]
                attended = model.attend(ids[None], return_attention=True)
                gate = model.mix_terms(attended.a)[0][0]
            wanted = task.vocabulary.value_ids[facts.mapping[fact[row]]]
            assert bool(scores.correct[row, m]) == (int(logits[-1].argmax()) == wanted)
            nll = logits.logsumexp(dim=1) - logits[torch.arange(len(ids)), labels]
            others = [i for i in range(len(ids) - 1) if labels[i] != IGNORE]
            words = [i for i in others if int(labels[i]) not in book_ids]
            assert float(scores.nll[row, m]) == pytest.approx(sum(float(nll[i]) for i in others))
            assert float(scores.word_nll[row, m]) == pytest.approx(sum(float(nll[i]) for i in words))
            assert (int(scores.tokens[row]), int(scores.words[row])) == (len(others), len(words))
            key = ids.tolist().index(int(task.key_ids[fact[row]]))
            assert float(scores.attention[row]) == pytest.approx(float(attended.probabilities[0, 0, -1, key]))
            assert float(scores.gate[row]) == pytest.approx(float(gate[-1]))
            assert float(scores.gate_other[row]) == pytest.approx(sum(float(gate[i]) for i in others))
    model.transformer.h[-1].mlp = original


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_prompts_without_changing_a_digit(host, world):
    """101 prompts in chunks of 8: every row comes back once, from whichever rank, bit for bit the same."""
    task, model = host
    samples = torch.arange(101)
    alone = dict(_score(task, model, samples))
    shared = {}
    for rank in range(world):
        for start, part in _score(task, model, samples, rank=rank, world=world):
            assert start not in shared
            shared[start] = part
    assert shared.keys() == alone.keys()
    assert sum(len(part.correct) for part in shared.values()) == 101
    for start, part in alone.items():
        for name in PairScores.__dataclass_fields__:
            assert torch.equal(getattr(part, name), getattr(shared[start], name))


def test_the_summary_weighs_tokens_not_prompts():
    """Cross-entropy is per token: a long prompt counts more than a short one."""
    ones = torch.ones(2, dtype=torch.float64)
    scores = PairScores(
        correct=torch.tensor([[True, False], [True, True]]),
        attention=torch.tensor([0.5, 1.0], dtype=torch.float64),
        gate=ones,
        gate_other=torch.tensor([0.3, 0.1], dtype=torch.float64),
        nll=torch.tensor([[3.0, 6.0], [1.0, 1.0]], dtype=torch.float64),
        word_nll=torch.tensor([[2.0, 3.0], [1.0, 1.0]], dtype=torch.float64),
        tokens=torch.tensor([3, 1]),
        words=torch.tensor([2, 1]),
    )
    summary = summarise(scores)
    assert summary["value_accuracy"] == 1.0
    assert summary["fact_adaptive_accuracy"] == 0.5
    assert summary["nonfact_ce_before"] == pytest.approx(1.0)
    assert summary["nonfact_ce_ratio"] == pytest.approx(7 / 4)
    assert summary["nonfact_word_ce_ratio"] == pytest.approx(4 / 3)
    assert summary["gate_other"] == pytest.approx(0.1)
    assert math.isclose(summary["attention_mass"], 0.75)


def test_prompts_of_one_fact_alone_can_be_scored():
    task, model = books_host(1, d=16, h=8)
    assert task.facts == FactSet.synthetic(1, generator(0, "facts"))
    (_, scores), *rest = _score(task, model, torch.arange(5))
    assert not rest
    assert len(scores.correct) == 5
