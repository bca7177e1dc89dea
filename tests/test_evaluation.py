"""Editing scores from cached rows against whole forward passes, one prompt at a time."""

import math

import pytest
import torch
from mlpswap_baselines.memit import Memit, MemitConfig

from mlpswap.editing import HostAdapter, statistics_of
from mlpswap.editing.evaluation import (
    PROBES,
    LanguageCache,
    Probes,
    PromptCache,
    correct,
    language_losses,
    mean_over_facts,
    nonfact_change,
    outcomes,
    patched_fact_mlp,
    score_geometric,
    score_harmonic,
    scores,
    top,
)
from mlpswap.errors import ConfigError
from mlpswap.facts import FactSet
from mlpswap.model.patch import ModuleChange, Patch
from mlpswap.randomness import generator
from mlpswap.tasks import ssfr_task
from mlpswap.tasks.base import IGNORE
from tests.reference import answers_one_by_one, books_host, facts_host

ALTERED, PRESERVED = torch.arange(4), torch.arange(4, 12)


class Edited:
    """A host, an edit that works on some prompts and not on others, and what it was asked for."""

    def __init__(self):
        self.task, self.model = books_host()
        self.after = self.task.facts.permute(generator(1, "edit"), indices=ALTERED.tolist(), derange=True)
        self.templates = torch.randint(16, (12,), generator=generator(0, "templates"))
        self.probes = Probes.of(
            self.model, self.task, self.after,
            altered=ALTERED, preserved=PRESERVED, edit_template=self.templates, names=PROBES,
        )  # fmt: skip
        adapter = HostAdapter(self.model)
        requests = [
            adapter.request("The writer of {book} is", key, self.after.value_of(key))
            for key in self.task.facts.keys[:4]
        ]
        moments = statistics_of(adapter, adapter.prompts(requests))
        config = MemitConfig(steps=40, lr=0.5, lam=0.1, clip=None)
        self.patch = Memit().edit(adapter, requests, config, statistics=moments).patch
        self.mlp = patched_fact_mlp(self.model, self.patch)

    def pairs(self, name):
        """(facts, templates, table) of a probe, written as the plainest loop."""
        facts = PRESERVED if name.startswith("specificity") else ALTERED
        if name in ("efficacy", "specificity"):
            pairs = [(int(i), int(self.templates[i])) for i in facts]
        elif name == "paraphrase_unseen":
            pairs = [(int(i), t) for i in facts for t in range(16)]
        else:
            pairs = [(int(i), t) for i in facts for t in range(16) if t != self.templates[i]]
        fact, template = torch.tensor(pairs).T
        return fact, template, self.task.held_out if name == "paraphrase_unseen" else self.task.table


@pytest.fixture(scope="module")
def edited():
    return Edited()


@pytest.mark.parametrize("name", PROBES)
def test_outcomes_equal_whole_forward_passes(edited, name):
    """Prompt by prompt, through the patched model; the probe has the right prompts in the first place."""
    found = outcomes(edited.model, edited.mlp, edited.probes, PROBES)[name]
    facts, templates, table = edited.pairs(name)
    targets = edited.task.target_ids(edited.after)
    edited.patch.apply(edited.model)
    wanted = answers_one_by_one(edited.model, edited.task, facts, templates, targets, table)
    edited.patch.undo(edited.model)
    assert found.tolist() == wanted
    assert torch.equal(edited.probes.caches[name].facts, facts)


def test_the_edit_is_neither_perfect_nor_void(edited):
    """Else the comparison above would prove little."""
    found = scores(edited.probes, outcomes(edited.model, edited.mlp, edited.probes, PROBES))
    assert 0 < found["paraphrase"] < 1
    assert 0 < found["paraphrase_unseen"] < 1


def test_success_compares_new_and_old_value(edited):
    """By the two logits of each edit prompt, whatever other tokens say."""
    found = outcomes(edited.model, edited.mlp, edited.probes)["success"]
    fact, template, table = edited.pairs("efficacy")
    targets = edited.task.target_ids(edited.after)
    batch = edited.task.batch(fact, template, targets=targets, table=table)
    edited.patch.apply(edited.model)
    with torch.no_grad():
        logits = edited.model(batch.input_ids, batch.attention_mask).logits[:, -1]
    edited.patch.undo(edited.model)
    new, old = targets[ALTERED], edited.task.target_ids(edited.task.facts)[ALTERED]
    rows = torch.arange(4)
    assert found.tolist() == (logits[rows, new] > logits[rows, old]).tolist()


def test_success_is_about_values_that_changed(edited):
    """A permutation has fixed points. Where the new value is the old one neither can be likelier."""
    after = edited.task.facts.alter({"k0": edited.after.value_of("k0")})
    probes = Probes.of(
        edited.model, edited.task, after, altered=ALTERED, preserved=PRESERVED, edit_template=edited.templates
    )
    found = scores(probes, outcomes(edited.model, edited.mlp, probes))
    whole = outcomes(edited.model, edited.mlp, edited.probes)["success"]
    assert found["success"] == float(whole[0])
    nothing = scores(probes, outcomes(edited.model, edited.mlp, probes), among=torch.tensor([1, 2, 8]))
    assert math.isnan(nothing["success"])
    assert not math.isnan(nothing["efficacy"])


def test_scores_of_some_facts(edited):
    """Restricted to a half, as where settings are selected on one half and reported on the other."""
    found = outcomes(edited.model, edited.mlp, edited.probes, PROBES)
    half = torch.tensor([0, 2, 5, 6])
    part = scores(edited.probes, found, among=half)
    facts, *_ = edited.pairs("paraphrase")
    by_fact = [found["paraphrase"][facts == i].double().mean() for i in (0, 2)]
    assert part["paraphrase"] == pytest.approx(float(sum(by_fact) / 2))
    assert scores(edited.probes, found)["paraphrase"] != part["paraphrase"]
    nobody = scores(edited.probes, found, among=torch.tensor([4, 5]))
    assert math.isnan(nobody["efficacy"])
    assert math.isnan(nobody["success"])
    assert math.isnan(nobody["score_harmonic"])
    assert not math.isnan(nobody["specificity"])


def test_facts_count_alike_however_many_prompts_they_have():
    facts, right = torch.tensor([7, 7, 7, 3]), torch.tensor([True, False, False, True])
    assert mean_over_facts(right, facts) == pytest.approx((1 / 3 + 1) / 2)
    assert mean_over_facts(right, facts, torch.tensor([3])) == 1.0
    assert math.isnan(mean_over_facts(right, facts, torch.tensor([5])))


def test_both_means():
    """Known values; zero beats everything but a missing score."""
    assert score_harmonic(0.5, 0.5, 1.0) == pytest.approx(0.6)
    assert score_geometric(0.5, 0.25, 1.0) == pytest.approx(0.5)
    assert score_harmonic(0.9, 0.4, 0.2) < score_geometric(0.9, 0.4, 0.2)
    for score in (score_harmonic, score_geometric):
        assert score(1.0, 1.0, 1.0) == pytest.approx(1.0)
        assert score(0.0, 1.0, 1.0) == 0.0
        assert math.isnan(score(math.nan, 0.0, 1.0))
        assert score(0.9, 0.4, 0.2) == pytest.approx(score(0.2, 0.4, 0.9))  # A.3.4 swaps two names


def test_ties_are_failures(edited):
    """A token with the same row as the value has the same logit, and then the value is not the answer."""
    model = facts_host()
    adapter = HostAdapter(model)
    cache = cache_of(model, model.facts.keys)
    assert correct(model, model.fact_mlp, cache).all()
    twin = adapter.vocabulary.word_ids[0]
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[int(cache.wanted[5])]
    assert correct(model, model.fact_mlp, cache).tolist() == [i != 5 for i in range(len(cache))]


def cache_of(model, keys):
    """Prompts that are the key alone, wanted values those of the model's facts."""
    adapter = HostAdapter(model)
    requests = [adapter.request("{key}", key, model.facts.value_of(key)) for key in keys]
    wanted = torch.tensor([request.target_ids[0] for request in requests])
    return PromptCache(adapter.rows(adapter.prompts(requests)), wanted, torch.arange(len(keys)))


def test_chunks_do_not_matter(edited):
    cache = edited.probes.caches["paraphrase"]
    whole = correct(edited.model, edited.mlp, cache)
    assert torch.equal(correct(edited.model, edited.mlp, cache, chunk=7), whole)
    fact, template, table = edited.pairs("paraphrase")
    batch = edited.task.batch(fact, template, targets=edited.task.target_ids(edited.after), table=table)
    again = PromptCache.of(edited.model, batch, fact, chunk=5)
    torch.testing.assert_close(again.rows.z, cache.rows.z, rtol=1e-12, atol=1e-14)
    assert len(correct(edited.model, edited.mlp, cache[:0])) == 0


def test_top_answers():
    """Those of the model itself, best first."""
    model = facts_host()
    keys = model.facts.keys[:3]
    tokens, logits = top(model, model.fact_mlp, cache_of(model, keys), k=3)
    for key, row, values in zip(keys, tokens.tolist(), logits.tolist(), strict=True):
        asked = model.ask_top(key, 3)
        assert [model.vocabulary.entries[token][1] for token in row] == [surface for surface, _ in asked]
        assert values == pytest.approx([logit for _, logit in asked])


def test_cross_entropy_of_other_tokens(edited):
    """Before and after, against a loop over sequences and positions."""
    task, model = edited.task, edited.model
    samples = torch.arange(0, task.population, 5)
    batch = task.batch(*task.pairs(samples), targets=task.target_ids(task.facts))
    cache = LanguageCache.of(model, batch, task.key_ids, chunk=16)
    losses = [language_losses(model, mlp, cache) for mlp in (model.fact_mlp, edited.mlp)]
    found = nonfact_change(cache, *losses)
    wanted = []
    for patched in (False, True):
        if patched:
            edited.patch.apply(model)
        everything, words = [], []
        for ids, mask, labels in zip(batch.input_ids, batch.attention_mask, batch.labels, strict=True):
            with torch.no_grad():
                log_p = model(ids[mask][None]).logits[0].log_softmax(dim=-1)
            for position, label in enumerate(labels[mask].tolist()[:-1]):
                if label != IGNORE:
                    everything.append(float(-log_p[position, label]))
                    words += everything[-1:] if label not in task.vocabulary.key_ids else []
        wanted.append((sum(everything) / len(everything), sum(words) / len(words)))
    edited.patch.undo(model)
    (before, word_before), (after, word_after) = wanted
    assert found["nonfact_ce_before"] == pytest.approx(before)
    assert found["nonfact_ce_after"] == pytest.approx(after)
    assert found["nonfact_ce_ratio"] == pytest.approx(after / before)
    assert found["nonfact_ppl_ratio"] == pytest.approx(math.exp(after - before))
    assert found["nonfact_word_ce_ratio"] == pytest.approx(word_after / word_before)
    assert found["nonfact_ce_ratio"] != found["nonfact_word_ce_ratio"]


def test_the_edited_mlp_is_made_beside_the_model(edited):
    """Equal to the applied patch in every bit, for a changed weight and for another MLP altogether."""
    model = facts_host()
    before = model.state_sha256()
    delta = torch.randn(16, 20, generator=generator(0, "delta"), dtype=torch.float64)
    adapter = HostAdapter(model)
    rewritten = adapter.patch(0, delta, editor="test")
    wider = adapter.rebuild(model.facts, "hebbian", {"h": 40}, generator(0, "swap"))
    for patch in (rewritten, adapter.replace(wider, editor="swap", facts=model.facts)):
        mlp = patched_fact_mlp(model, patch)
        assert model.state_sha256() == before
        patch.apply(model)
        assert mlp.config == model.fact_mlp.config
        for name, tensor in model.fact_mlp.state_dict().items():
            assert torch.equal(mlp.state_dict()[name], tensor)
        patch.undo(model)
    assert torch.equal(patched_fact_mlp(model, Patch((), "none")).down.weight, model.fact_mlp.down.weight)


def test_patches_of_other_modules_are_not_scored(edited):
    change = ModuleChange("lm_head", {}, {})
    with pytest.raises(ValueError, match="lm_head"):
        patched_fact_mlp(edited.model, Patch((change,), "test"))


def test_unseen_templates_must_exist():
    """SSFR has none held out."""
    model = facts_host()
    task = ssfr_task(FactSet.synthetic(24, generator(0, "facts")), seed=0)
    with pytest.raises(ConfigError, match="never trained"):
        Probes.of(
            model, task, task.facts,
            altered=ALTERED, preserved=PRESERVED,
            edit_template=torch.zeros(24, dtype=torch.long), names=("paraphrase_unseen",),
        )  # fmt: skip
