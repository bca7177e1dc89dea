"""The trained, hybrid and random-embedding methods, and unembeddings in closed form."""

import pytest
import torch
from torch.nn import functional as F

from mlpswap.errors import ConfigError
from mlpswap.randomness import generator
from mlpswap.sequences.base import trial_generator
from mlpswap.sequences.facts import draw_pair_facts
from mlpswap.sequences.methods import get_method, unembeddings
from mlpswap.sequences.methods.hand_coded import HandCodedConfig, owned_neurons, silent_embeddings
from mlpswap.sequences.methods.hybrid import Hybrid, HybridConfig
from mlpswap.sequences.methods.pushed import PushedConfig
from mlpswap.sequences.methods.trained import random_network
from mlpswap.sequences.methods.unembeddings import MARGIN, RIDGE, pushed_unembeddings, trained_unembeddings

FACTS = draw_pair_facts(60, 16, 8)
CASES = [
    ("trained", {}),
    ("hybrid", {}),
    ("random_embedding", {}),
    ("pushed", {"rounds": 20}),
    ("pushed", {"rounds": 20, "embedding": "random"}),
]


def some_hidden(models=3):
    return torch.relu(torch.randn(models, 60, 8, generator=generator(0, "tests", "hidden")))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_trial_is_the_same_whatever_stands_beside_it(name, options):
    method = get_method(name)
    config = method.Config(**options)
    together = method.build(FACTS, 8, config, [trial_generator(name, trial) for trial in range(3)])
    for trial in (2, 0):
        (alone,) = method.build(FACTS, 8, config, [trial_generator(name, trial)])
        assert alone.accuracy(FACTS) == pytest.approx(together[trial].accuracy(FACTS), abs=2 / 60)
        if name != "trained":
            assert torch.equal(alone.first, together[trial].first)
    assert len({network.first.sum().item() for network in together}) == 3


def test_embeddings_of_hybrid_and_random_networks_are_not_trained():
    draws = [[trial_generator(name, trial) for trial in range(2)] for name in ("hybrid", "random_embedding")]
    cell = HandCodedConfig(3, 0.2)
    hybrid = get_method("hybrid").build(FACTS, 8, HybridConfig(3, 0.2), draws[0])
    again = [trial_generator("hybrid", trial) for trial in range(2)]
    first, _ = silent_embeddings(FACTS, owned_neurons(FACTS, 8, cell, again), cell, again)
    assert all(torch.equal(network.first, each) for network, each in zip(hybrid, first, strict=True))
    method = get_method("random_embedding")
    for network in method.build(FACTS, 8, method.Config(), draws[1]):
        values = torch.cat([network.first, network.second])
        assert 0.95 / 32**0.5 < float(values.abs().max()) <= 1 / 32**0.5


def test_training_all_beats_training_the_unembedding_and_so_does_pushing_it():
    mean = {}
    for name, options in [*CASES, ("pushed", {"rounds": 0})]:
        method = get_method(name)
        draws = [trial_generator("tests", trial) for trial in range(5)]
        built = method.build(FACTS, 8, method.Config(**options), draws)
        mean[name, *options.values()] = sum(network.accuracy(FACTS) for network in built) / 5
    assert mean["trained",] > mean["pushed", 20] > mean["hybrid",] > mean["random_embedding",]
    assert mean["pushed", 20] > mean["pushed", 0]
    assert mean["pushed", 20, "random"] > mean["random_embedding",]


def test_facts_are_given_up_only_for_a_lower_threshold():
    """Where all cannot be stored, leaving some out stores more of the others."""
    facts, mean = draw_pair_facts(75, 16, 8), []
    for threshold in (1.0, 0.9):
        draws = [trial_generator("tests", trial) for trial in range(11)]
        built = get_method("pushed").build(facts, 8, PushedConfig(2, 0.12), draws, threshold=threshold)
        mean.append(sum(network.accuracy(facts) for network in built) / 11)
    assert mean[1] > mean[0] + 0.03


def test_pushing_is_what_it_says():
    """Against one model at a time, with the targets written out and every refit solved anew; the best refit is kept."""
    hidden, label = some_hidden().double(), FACTS.label
    for rounds, momentum in ((0, 0.0), (3, 0.0), (4, 0.9)):
        found = pushed_unembeddings(hidden, label, 8, rounds=rounds, momentum=momentum)
        for each, h in zip(found, hidden, strict=True):
            gram = h.T @ h
            gram += RIDGE * gram.diagonal().mean() * torch.eye(8)
            targets, push = F.one_hot(label, 8).double(), torch.zeros(60, 8).double()
            record, best = -1, None
            for _ in range(rounds + 1):
                refit = torch.linalg.solve(gram, h.T @ targets)
                logits = h @ refit
                right, change = 0, torch.zeros(60, 8).double()
                for fact, mine in enumerate(label.tolist()):
                    for other in range(8):
                        lack = float(logits[fact, other] - logits[fact, mine]) + MARGIN
                        if other != mine and lack > 0:
                            change[fact, other] -= lack
                            change[fact, mine] += lack
                    right += int(logits[fact].argmax()) == mine
                if right > record:
                    record, best = right, refit
                push = momentum * push + change
                targets += push
            torch.testing.assert_close(each, best.T)


def test_bounded_memory_gives_the_same(monkeypatch):
    def fitted():
        draws = [generator(0, "tests", "memory", trial) for trial in range(3)]
        pushed = pushed_unembeddings(some_hidden(), FACTS.label, 8, rounds=5)
        return trained_unembeddings(some_hidden(), FACTS.label, 8, draws), pushed

    whole = fitted()
    monkeypatch.setattr(unembeddings, "NUMBERS", 1)
    torch.testing.assert_close(fitted(), whole, rtol=1e-3, atol=1e-3)


def test_no_neuron_that_fires_is_no_reason_to_fail():
    assert pushed_unembeddings(torch.zeros(1, 60, 8), FACTS.label, 8, rounds=2).isfinite().all()


def test_screening_puts_first_what_training_finds_best():
    """One sensible cell among bad ones: all tokens at -1 leave hardly a neuron that fires."""
    cells = [HybridConfig(8, 1.0), HybridConfig(2, 0.12), HybridConfig(7, 0.8)]
    draws = [trial_generator("hybrid", trial) for trial in range(3)]
    ranked = Hybrid().screened(FACTS, 8, cells, draws)
    assert ranked[0][0] == cells[1]
    assert [score for _, score in ranked] == sorted((score for _, score in ranked), reverse=True)


def test_the_start_of_training_has_the_published_ranges():
    network = random_network(draw_pair_facts(10, 200, 100), 100, generator(0, "tests", "start"))
    for weights, bound in ((network.first, 0.05), (network.second, 0.05), (network.unembedding, 0.1)):
        assert 0.99 * bound < float(weights.abs().max()) <= bound


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("trained", {"recipe": "quick"}, "expected one of challenge, ablation"),
        ("pushed", {"embedding": "best"}, "expected one of published, random"),
        ("pushed", {"momentum": 1.0}, "momentum = 1.0"),
        ("pushed", {"rounds": -1}, "rounds = -1"),
        ("hybrid", {"top_fraction": 2.0}, "top_fraction = 2.0"),
    ],
)
def test_unknown_options_are_refused(name, options, says):
    with pytest.raises(ConfigError, match=says):
        get_method(name).Config(**options)
