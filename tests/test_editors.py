"""The exam that every registered editor takes, built in or plugged in, on a small host that answers all of
its facts.
"""

import copy

import pytest
import torch

from mlpswap import registry
from mlpswap.config import build_options
from mlpswap.editing import Editor, HostAdapter
from mlpswap.errors import (
    RequestError,
)
from tests.reference import Bench

EDITORS = [entry.name for entry in registry.entries(registry.EDITORS)]
SHARING = [name for name in EDITORS if hasattr(registry.get(registry.EDITORS, name), "edit_grid")]


@pytest.fixture
def bench():
    return Bench()


def change_of(result):
    """(d, h): the change of the down-projection."""
    (change,) = result.patch.changes
    return change.new["down.weight"] - change.old["down.weight"]


@pytest.mark.parametrize("name", EDITORS)
def test_has_the_interface(name):
    editor = registry.get(registry.EDITORS, name)
    assert isinstance(editor, Editor)
    assert editor.name == name


@pytest.mark.parametrize("name", EDITORS)
def test_each_edit_is_made_and_undone(bench, name):
    """All facts are answered before; an altered one gets its new value; undo restores every bit and the
    facts.
    """
    model, before = bench.model, bench.model.state_sha256()
    everything = list(bench.facts.keys)
    assert bench.answers(everything) == [value for _, value in bench.facts.pairs()]
    for request, (key, value) in zip(bench.requests, bench.wanted.items(), strict=True):
        result = bench.edit(name, [request])
        assert result.diagnostics["edited"] == [key]
        assert result.patch.norm() > 0
        result.patch.apply(model)
        assert bench.answers([key]) == [value]
        assert model.facts == bench.facts.alter({key: value})
        assert model.state_sha256() != before
        result.patch.undo(model)
        assert model.state_sha256() == before
        assert model.facts == bench.facts


@pytest.mark.parametrize("name", ["swap", "memit", "alphaedit", "ft"])
def test_edits_are_made_together(bench, name):
    """ROME's rank-one edits interfere already here, as its documentation says."""
    result = bench.edit(name)
    result.patch.apply(bench.model)
    assert bench.answers(bench.wanted) == list(bench.wanted.values())
    assert result.diagnostics["edited"] == list(bench.wanted)


@pytest.mark.parametrize("name", EDITORS)
def test_is_pure(bench, name):
    """Nothing that goes in is changed: weights, flags, modes, facts, statistics, requests."""
    model = bench.model.train()
    model.fact_mlp.eval()
    flags = [parameter.requires_grad for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    weights, moment = model.state_sha256(), bench.statistics[0].sum.clone()
    requests = copy.deepcopy(bench.requests)
    bench.edit(name)
    assert model.state_sha256() == weights
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.facts is bench.facts
    assert torch.equal(bench.statistics[0].sum, moment)
    assert bench.requests == requests


@pytest.mark.parametrize("name", EDITORS)
def test_edits_are_independent(bench, name):
    """B after A is B alone: nothing hidden is carried from one edit to the next."""
    first, second = bench.requests[:1], bench.requests[1:]
    bench.edit(name, first)
    after = bench.edit(name, second)
    alone = Bench().edit(name, second)
    for one, other in zip(after.patch.changes, alone.patch.changes, strict=True):
        assert one.new.keys() == other.new.keys()
        assert all(torch.equal(one.new[each], other.new[each]) for each in one.new)


@pytest.mark.parametrize("name", EDITORS)
def test_order_of_requests_is_irrelevant(bench, name):
    result, mirrored = bench.edit(name), bench.edit(name, bench.requests[::-1])
    for one, other in zip(result.patch.changes, mirrored.patch.changes, strict=True):
        for each in one.new:
            torch.testing.assert_close(one.new[each], other.new[each], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EDITORS)
def test_no_requests_give_an_empty_patch(bench, name):
    result = bench.edit(name, [])
    assert result.patch.is_empty
    assert not result.patch.changes
    assert result.diagnostics["edited"] == []
    assert result.diagnostics["notes"]
    result.patch.apply(bench.model)
    assert bench.model.facts == bench.facts


@pytest.mark.parametrize("name", EDITORS)
def test_repeated_and_contradictory_requests(bench, name):
    """The same request twice is one; two targets are refused with both ids, or the last one holds."""
    key, value = next(iter(bench.wanted.items()))
    other = bench.facts.value_of(bench.facts.keys[-1])
    twice = [*bench.requests, bench.ask(key, value, id="again")]
    result, single = bench.edit(name, twice), bench.edit(name)
    for one, also in zip(result.patch.changes, single.patch.changes, strict=True):
        assert all(torch.equal(one.new[each], also.new[each]) for each in one.new)
    assert "merged" in result.diagnostics["refused"]["again"]
    clash = [bench.ask(key, other, id="early"), *bench.requests]
    with pytest.raises(RequestError, match=f"early, {key}"):
        bench.edit(name, clash)
    result = bench.edit(name, clash, on_conflict="last")
    assert result.patch.altered == single.patch.altered
    assert "early" in result.diagnostics["refused"]


@pytest.mark.parametrize("name", EDITORS)
def test_requests_without_an_id_of_their_own_are_merged_and_compared_too(bench, name):
    """Their id is the key: the same wish twice is one edit, two wishes clash, and a second prompt is a request more."""
    key, value = next(iter(bench.wanted.items()))
    result = bench.edit(name, [*bench.requests, bench.ask(key, value)])
    assert result.diagnostics["edited"] == list(bench.wanted)
    assert list(result.diagnostics["refused"]) == [f"{key}-2"]
    assert result.patch.altered == bench.edit(name).patch.altered
    clash = [bench.ask(key, bench.facts.value_of(bench.facts.keys[-1])), *bench.requests]
    with pytest.raises(RequestError, match=f"{key}, {key}-2 ask for different targets"):
        bench.edit(name, clash)
    assert bench.edit(name, clash, on_conflict="last").patch.altered == bench.edit(name).patch.altered
    with pytest.raises(RequestError, match="two facts .*'same'"):
        bench.edit(name, [bench.ask(key, value, id="same") for key, value in bench.wanted.items()])


@pytest.mark.parametrize("name", EDITORS)
def test_an_edit_that_changes_nothing_is_counted(bench, name):
    key = bench.facts.keys[0]
    result = bench.edit(name, [bench.ask(key, bench.facts.value_of(key)), bench.requests[1]])
    assert result.diagnostics["unchanged"] == 1
    assert len(result.patch.altered) == 1


@pytest.mark.parametrize("name", EDITORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_keep_their_dtype(name, dtype):
    """Computed in float64, cast back, finite."""
    bench = Bench(dtype=dtype)
    result = bench.edit(name)
    for change in result.patch.changes:
        for each, tensor in change.new.items():
            assert tensor.dtype == dtype, each
            assert tensor.isfinite().all()
    result.patch.apply(bench.model)
    assert bench.model.facts == bench.facts.alter(bench.wanted)


@pytest.mark.parametrize("name", EDITORS)
def test_square_weights_are_not_transposed(name):
    """With d = h both orientations fit and only one of them edits."""
    bench = Bench(count=16, d=16, h=16)
    key = bench.requests[0].id
    bench.edit(name, bench.requests[:1]).patch.apply(bench.model)
    assert bench.answers([key]) == [bench.wanted[key]]


@pytest.mark.parametrize("name", EDITORS)
@pytest.mark.parametrize("preset", ["released", "paper"])
def test_grids_are_settings_of_the_editor(name, preset):
    editor = registry.get(registry.EDITORS, name)
    settings = editor.grid(preset)
    configs = [build_options(editor.Config, setting, name) for setting in settings]
    assert len({repr(config) for config in configs}) == len(settings)


@pytest.mark.parametrize("name", SHARING)
def test_a_grid_equals_its_single_edits(bench, name):
    """Sharing of residuals and factorisations changes nothing: every seventh setting, from a fresh adapter
    each.
    """
    editor = registry.get(registry.EDITORS, name)
    configs = [build_options(editor.Config, setting, name) for setting in editor.grid()[::7]]
    shared = list(editor.edit_grid(bench.adapter, bench.requests, configs, statistics=bench.statistics))
    assert len(shared) == len(configs)
    for config, result in zip(configs, shared, strict=True):
        alone = editor.edit(HostAdapter(bench.model), bench.requests, config, statistics=bench.statistics)
        assert torch.equal(change_of(result), change_of(alone))
        assert result.diagnostics["edited"] == alone.diagnostics["edited"]
