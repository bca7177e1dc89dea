"""What can go wrong with an edit, row by row of the specification's table, and the test that shows what happens then.

Here are the tests that stand nowhere else. What only the original protocols of the Hugging Face adapter can meet (k.u
about zero in mode `rome`, prefixed prompts whose keys are averaged, an exception between two layers) is left to its tests.
"""

import ast
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from mlpswap import registry
from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.benchmark.splits import make_split
from mlpswap.config import build_options
from mlpswap.editing import HostAdapter, statistics_of
from mlpswap.editing.evaluation import Probes, outcomes, scores
from mlpswap.errors import ConfigError, NonFiniteError, RequestError
from mlpswap.randomness import generator
from tests.reference import Bench, books_host

ROOT = Path(__file__).resolve().parent.parent
EXAM = "mlpswap/testing/test_editors.py::"
HERE = "tests/test_failure_modes.py::"

ROWS = {
    "no edits": [
        EXAM + "test_no_requests_give_an_empty_patch",
        HERE + "test_without_edits_there_are_no_scores",
        HERE + "test_counts_that_cannot_be_are_refused",
    ],
    "no preserved facts": [
        "tests/test_baselines.py::test_statistics_are_needed",
        "tests/test_benchmark.py::test_nothing_preserved_is_reported_as_missing_not_as_zero",
    ],
    "more than the facts, negative counts": [
        "tests/test_benchmark.py::test_a_split_that_does_not_fit_names_both_numbers",
        HERE + "test_counts_that_cannot_be_are_refused",
    ],
    "the same key twice": [
        EXAM + "test_repeated_and_contradictory_requests",
        EXAM + "test_requests_without_an_id_of_their_own_are_merged_and_compared_too",
    ],
    "an edit that changes nothing": [EXAM + "test_an_edit_that_changes_nothing_is_counted"],
    "unknown token, no subject, empty target, target with a BOS": [
        "tests/test_adapters.py::test_requests_the_host_cannot_carry_out",
        "tests/test_adapters.py::test_malformed_requests_are_refused",
        "tests/test_adapters.py::test_unknown_names_are_refused_with_the_request",
    ],
    "prompt too long, position outside": [
        "tests/test_adapters.py::test_requests_the_host_cannot_carry_out",
        "tests/test_adapters.py::test_malformed_requests_are_refused",
    ],
    "singular C0": [
        "tests/test_baselines.py::test_a_singular_moment",
        "tests/test_moments.py::test_singular_matrices",
        "tests/test_benchmark.py::test_a_singular_moment_gets_a_ridge_that_the_row_shows",
        "tests/test_editing_algebra.py::test_a_key_outside_a_singular_moment",
        HERE + "test_singular_systems_are_by_default_refused_by_rome_and_solved_by_memit",
    ],
    "singular lambda C0 + K1 K1^T": [
        "tests/test_baselines.py::test_a_singular_moment",
        HERE + "test_singular_systems_are_by_default_refused_by_rome_and_solved_by_memit",
    ],
    "lambda, L2, clip, steps, threshold out of range": [
        "tests/test_baselines.py::test_impossible_options_are_refused",
        "tests/test_editing_algebra.py::test_impossible_settings_are_refused",
        HERE + "test_lambda_zero_needs_no_more_edits_than_hidden_units",
    ],
    "empty null space": ["tests/test_baselines.py::test_an_empty_null_space_is_told"],
    "zero key": [HERE + "test_a_zero_key"],
    "NaN or Inf in residual, key or loss": [
        "tests/test_baselines.py::test_an_absurd_rate_is_refused_by_request",
        "tests/test_adapters.py::test_patches",
        HERE + "test_what_is_not_finite_costs_its_own_request_only",
    ],
    "residual with a high loss": ["tests/test_baselines.py::test_unfinished_residuals_are_listed"],
    "the edited token cannot reach the prediction": [
        "tests/test_adapters.py::test_requests_the_host_cannot_carry_out",
        HERE + "test_a_mixture_that_is_shut_to_the_fact_mlp_cannot_be_edited_through_it",
        HERE + "test_a_gradient_of_zero_is_no_influence_whatever_the_reason",
    ],
    "dropout, training mode, flags": [EXAM + "test_is_pure", HERE + "test_dropout_is_off_during_an_edit"],
    "several prompts per fact": [HERE + "test_each_prompt_of_a_fact_has_a_key_of_its_own"],
    "half-precision weights": [
        EXAM + "test_weights_keep_their_dtype",
        "tests/test_adapters.py::test_a_change_that_gets_lost_is_told",
    ],
    "exception half-way": [
        "tests/test_patch.py::test_a_patch_that_does_not_fit_changes_nothing",
        "tests/test_benchmark.py::test_a_broken_editor_costs_its_own_rows_only",
        HERE + "test_an_exception_half_way_leaves_the_model_as_it_was",
    ],
}

CLOSED_FORM = ["rome", "memit", "alphaedit"]
NUMERIC = [*CLOSED_FORM, "ft"]
every_numeric_editor = pytest.mark.parametrize("name", NUMERIC)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_its_tests(row):
    for test in ROWS[row]:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


@pytest.fixture
def bench():
    return Bench()


def editor_called(name):
    return registry.get(registry.EDITORS, name)


def assert_same_edit(one, other):
    (left,), (right,) = one.patch.changes, other.patch.changes
    for name in left.new:
        torch.testing.assert_close(left.new[name], right.new[name], rtol=1e-9, atol=1e-10)


def test_without_edits_there_are_no_scores():
    """NaN, not zero: efficacy, paraphrase and the means; specificity is what it was."""
    task, model = books_host()
    nothing, everything = torch.arange(0), torch.arange(len(task.facts))
    template = torch.zeros(len(task.facts), dtype=torch.long)
    probes = Probes.of(model, task, task.facts, altered=nothing, preserved=everything, edit_template=template)
    found = scores(probes, outcomes(model, model.fact_mlp, probes))
    assert 0 <= found["specificity"] <= 1
    for name in ("efficacy", "paraphrase", "success", "score_harmonic", "score_geometric"):
        assert math.isnan(found[name]), name


@pytest.mark.parametrize(("altered", "preserved"), [(0, None), (-1, None), (3, -2)])
def test_counts_that_cannot_be_are_refused(altered, preserved):
    """By the configuration with the key, and by the split with the numbers."""
    with pytest.raises(ConfigError, match=r"splits\[0\]"):
        BenchmarkConfig(splits=[{"altered": altered, "preserved": preserved}])
    task, _ = books_host()
    with pytest.raises(ConfigError, match=f"alter {altered} and preserve .* of 12"):
        make_split(task, altered, preserved, seed=0)


def test_singular_systems_are_by_default_refused_by_rome_and_solved_by_memit():
    assert editor_called("rome").Config().on_singular == "error"
    assert editor_called("memit").Config().on_singular == "pinv"


def test_lambda_zero_needs_no_more_edits_than_hidden_units(bench):
    """Then it meets every constraint; beyond, it is refused with both numbers."""
    bench.edit("memit", lam=0.0).patch.apply(bench.model)
    assert bench.answers(bench.wanted) == list(bench.wanted.values())
    bench = Bench()
    everything = [bench.ask(key, value) for key, value in bench.facts.pairs()]
    with pytest.raises(ConfigError, match="at most 20 edits: found 0.0 with 24 edits"):
        bench.edit("memit", everything, lam=0.0)


class Spoilt(HostAdapter):
    """An adapter that reads something bad for the second request, once `spoil` says what."""

    spoil = None

    def keys(self, prompts, site):
        keys = super().keys(prompts, site)
        if self.spoil in ("key", "zero key"):
            keys[1] = math.inf if self.spoil == "key" else 0
        return keys

    def objective(self, requests, site):
        objective = super().objective(requests, site)
        if self.spoil == "loss":
            objective.rest[1] = math.nan
        if self.spoil == "gate":
            objective.gate[1] = 0
        return objective

    def residuals(self, requests, site, options):
        runs = super().residuals(requests, site, options)
        if self.spoil == "residual":
            runs = [
                replace(run, residuals=run.residuals.index_fill(0, torch.tensor(1), -math.inf))
                for run in runs
            ]
        return runs


@pytest.mark.parametrize(
    ("name", "spoil"),
    [*product(NUMERIC, ["key", "loss"]), *product(CLOSED_FORM, ["residual"])],  # fine-tuning has no residuals
)
def test_what_is_not_finite_costs_its_own_request_only(bench, name, spoil):
    """The others are edited as if it had not been there; or everything stops, if asked to."""
    others = [bench.requests[0], bench.requests[2]]
    clean = bench.edit(name, others)
    bench.adapter = Spoilt(bench.model)
    bench.adapter.spoil = spoil
    result = bench.edit(name)
    assert result.diagnostics["edited"] == [request.id for request in others]
    assert "NaN or infinity" in result.diagnostics["refused"][bench.requests[1].id]
    assert_same_edit(result, clean)
    with pytest.raises(NonFiniteError, match=bench.requests[1].id):
        bench.edit(name, on_nonfinite="raise")


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_a_zero_key(bench, name):
    """ROME cannot write at it and says so; for MEMIT and AlphaEdit it contributes nothing."""
    clean = bench.edit(name, [bench.requests[0], bench.requests[2]])
    bench.adapter = Spoilt(bench.model)
    bench.adapter.spoil = "zero key"
    result = bench.edit(name)
    assert_same_edit(result, clean)
    assert (bench.requests[1].id in result.diagnostics["refused"]) == (name == "rome")
    assert len(result.patch.altered) == (2 if name == "rome" else 3)


@every_numeric_editor
def test_a_mixture_that_is_shut_to_the_fact_mlp_cannot_be_edited_through_it(name):
    _, model = books_host()
    with torch.no_grad():
        model.transformer.h[0].mixture.router[-1].bias.fill_(-1e4)
    adapter, editor = HostAdapter(model), editor_called(name)
    request = adapter.request("The writer of {book} is", "k0", model.facts.value_of("k1"))
    with pytest.raises(RequestError, match="request 'k0': .*no influence"):
        editor.edit(adapter, [request], editor.Config())


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_a_gradient_of_zero_is_no_influence_whatever_the_reason(bench, name):
    bench.adapter = Spoilt(bench.model)
    bench.adapter.spoil = "gate"
    with pytest.raises(RequestError, match=f"request '{bench.requests[1].id}': .*no influence"):
        bench.edit(name)


@every_numeric_editor
def test_dropout_is_off_during_an_edit(bench, name):
    """Fact MLPs have none of their own, but a host is anybody's module."""
    clean = bench.edit(name)
    model = bench.model
    model.fact_mlp.act = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Dropout(0.5))
    model.train()
    bench.adapter = HostAdapter(model)
    assert_same_edit(bench.edit(name), clean)
    assert all(module.training for module in model.modules())


def test_each_prompt_of_a_fact_has_a_key_of_its_own():
    """Two prompts of one fact are two columns of K1 (h, N), each with its residual: never one vector twice as long."""
    _, model = books_host()
    adapter, editor = HostAdapter(model), editor_called("memit")
    value = model.facts.value_of("k1")
    requests = [
        adapter.request(prompt, "k0", value)
        for prompt in ("The writer of {book} is", "Who wrote {book} ? Surely")
    ]
    config = build_options(editor.Config, editor.example(generator(0)), "memit")
    preserved = [adapter.request("The writer of {book} is", key, value) for key in model.facts.keys[2:]]
    statistics = statistics_of(adapter, adapter.prompts(preserved))
    result = editor.edit(adapter, requests, config, statistics=statistics)
    assert result.diagnostics["edited"] == ["k0", "k0-2"]
    assert result.diagnostics["keys"].shape == (2, 48)
    result.patch.apply(model)
    answer = model.vocabulary.id_of("value", value)
    assert HostAdapter(model).predict(adapter.prompts(requests)).tolist() == [answer, answer]


@every_numeric_editor
def test_an_exception_half_way_leaves_the_model_as_it_was(bench, name, monkeypatch):
    """Weights, modes and flags, whatever the model itself runs into."""
    model = bench.model.train()
    before, flags = model.state_sha256(), [parameter.requires_grad for parameter in model.parameters()]

    def stop(logits, *others, **named):
        raise MemoryError("no room for the logits")

    monkeypatch.setattr(type(model), "head_direction", stop)
    with pytest.raises(MemoryError):
        bench.edit(name)
    assert model.state_sha256() == before
    assert all(module.training for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
