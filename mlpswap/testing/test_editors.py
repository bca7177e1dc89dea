"""The exam of editors, on a small host that answers all of its facts."""

import copy
import json

import pytest
import torch

from mlpswap import registry
from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.benchmark.run import benchmark
from mlpswap.config import build_options, to_plain
from mlpswap.editing import EditResult, HostAdapter
from mlpswap.errors import RequestError, UnsupportedEditorError
from mlpswap.model import Patch
from mlpswap.randomness import generator
from mlpswap.testing.hosts import Bench, books_host, example_options


def editor_called(name):
    return registry.get(registry.EDITORS, name)


def assert_equal_changes(one: EditResult, other: EditResult, tolerance: float = 0.0):
    """The same tensors of the same modules."""
    for left, right in zip(one.patch.changes, other.patch.changes, strict=True):
        assert (left.module, left.new.keys()) == (right.module, right.new.keys())
        for name in left.new:
            torch.testing.assert_close(left.new[name], right.new[name], rtol=tolerance, atol=tolerance)


def attempt(bench, name, *requests):
    """The edit; the test is skipped where the editor says clearly that it does not support this host."""
    try:
        return bench.edit(name, *requests)
    except UnsupportedEditorError as error:
        pytest.skip(str(error))


def has_option(name, option):
    return option in editor_called(name).Config.__dataclass_fields__


def test_each_edit_is_made_and_undone(bench, editor):
    """All facts are answered before; an altered one gets its new value; undo restores every bit and the facts."""
    model, before = bench.model, bench.model.state_sha256()
    everything = list(bench.facts.keys)
    assert bench.answers(everything) == [value for _, value in bench.facts.pairs()]
    for request, (key, value) in zip(bench.requests, bench.wanted.items(), strict=True):
        result = bench.edit(editor, [request])
        assert result.diagnostics["edited"] == [key]
        assert result.patch.norm() > 0
        result.patch.apply(model)
        assert bench.answers([key]) == [value], "give options that suffice for this in `example`"
        assert model.facts == bench.facts.alter({key: value})
        assert model.state_sha256() != before
        result.patch.undo(model)
        assert model.state_sha256() == before
        assert model.facts == bench.facts


def test_is_pure(bench, editor):
    """Nothing that goes in is changed: weights, flags, modes, facts, statistics, requests, configuration; nor torch's
    global generator."""
    model = bench.model.train()
    model.fact_mlp.eval()
    flags = [parameter.requires_grad for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    weights, moment = model.state_sha256(), bench.statistics[0].sum.clone()
    requests, chance = copy.deepcopy(bench.requests), torch.get_rng_state()
    config = build_options(editor_called(editor).Config, example_options(editor_called(editor)), editor)
    options = copy.deepcopy(to_plain(config))
    draw = generator(0)
    editor_called(editor).edit(
        bench.adapter, bench.requests, config, statistics=bench.statistics, generator=draw
    )
    assert model.state_sha256() == weights
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.facts is bench.facts
    assert torch.equal(bench.statistics[0].sum, moment)
    assert bench.requests == requests
    assert to_plain(config) == options
    assert torch.equal(torch.get_rng_state(), chance)


def test_edits_are_independent_and_reproducible(bench, editor):
    """B after A is B alone, bit for bit: nothing hidden is carried over, and all chance comes from the generator."""
    first, second = bench.requests[:1], bench.requests[1:]
    bench.edit(editor, first)
    assert_equal_changes(bench.edit(editor, second), Bench().edit(editor, second))


def test_order_of_requests_is_irrelevant(bench, editor):
    assert_equal_changes(bench.edit(editor), bench.edit(editor, bench.requests[::-1]), tolerance=1e-9)


def test_no_requests_give_an_empty_patch(bench, editor):
    result = bench.edit(editor, [])
    assert result.patch.is_empty
    assert not result.patch.changes
    assert result.diagnostics["edited"] == []
    assert result.diagnostics["notes"]
    result.patch.apply(bench.model)
    assert bench.model.facts == bench.facts


def test_diagnostics_account_for_every_request(bench, editor):
    """Each id is among the edited or has a reason among the refused."""
    key, value = next(iter(bench.wanted.items()))
    found = bench.edit(editor, [*bench.requests, bench.ask(key, value, id="again")]).diagnostics
    assert found["requested"] == len(bench.requests) + 1
    assert sorted([*found["edited"], *found["refused"]]) == sorted([*bench.wanted, "again"])
    assert all(isinstance(reason, str) and reason for reason in found["refused"].values())
    assert all(isinstance(note, str) for note in found["notes"])


def test_an_edit_that_changes_nothing_is_counted(bench, editor):
    key = bench.facts.keys[0]
    result = bench.edit(editor, [bench.ask(key, bench.facts.value_of(key)), bench.requests[1]])
    assert result.diagnostics["unchanged"] == 1
    assert len(result.patch.altered) == 1


def test_repeated_and_contradictory_requests(bench, editor):
    """The same request twice is one; two targets are refused with both ids, or the last one holds."""
    key, value = next(iter(bench.wanted.items()))
    other = bench.facts.value_of(bench.facts.keys[-1])
    result, single = (
        bench.edit(editor, [*bench.requests, bench.ask(key, value, id="again")]),
        bench.edit(editor),
    )
    assert_equal_changes(result, single)
    assert "merged" in result.diagnostics["refused"]["again"]
    clash = [bench.ask(key, other, id="early"), *bench.requests]
    with pytest.raises(RequestError, match=f"early, {key}"):
        bench.edit(editor, clash)
    if has_option(editor, "on_conflict"):
        result = bench.edit(editor, clash, on_conflict="last")
        assert result.patch.altered == single.patch.altered
        assert "early" in result.diagnostics["refused"]


def test_requests_without_an_id_of_their_own_are_merged_and_compared_too(bench, editor):
    """Their id is the key: the same wish twice is one edit, two wishes clash, and a second prompt is a request more."""
    key, value = next(iter(bench.wanted.items()))
    single = bench.edit(editor)
    result = bench.edit(editor, [*bench.requests, bench.ask(key, value)])
    assert result.diagnostics["edited"] == list(bench.wanted)
    assert list(result.diagnostics["refused"]) == [f"{key}-2"]
    assert result.patch.altered == single.patch.altered
    clash = [bench.ask(key, bench.facts.value_of(bench.facts.keys[-1])), *bench.requests]
    with pytest.raises(RequestError, match=f"{key}, {key}-2 ask for different targets"):
        bench.edit(editor, clash)
    if has_option(editor, "on_conflict"):
        assert bench.edit(editor, clash, on_conflict="last").patch.altered == single.patch.altered
    with pytest.raises(RequestError, match="two facts .*'same'"):
        bench.edit(editor, [bench.ask(key, value, id="same") for key, value in bench.wanted.items()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_keep_their_dtype(editor, dtype):
    """Computed in float64, cast back, finite."""
    bench = Bench(dtype=dtype)
    result = attempt(bench, editor)
    for change in result.patch.changes:
        for name, tensor in change.new.items():
            assert tensor.dtype == dtype, name
            assert tensor.isfinite().all()
    result.patch.apply(bench.model)
    assert bench.model.facts == bench.facts.alter(bench.wanted)


def test_square_weights_are_not_transposed(editor):
    """With d = h both orientations fit and only one of them edits."""
    bench = Bench(count=16, d=16, h=16)
    key = bench.requests[0].id
    attempt(bench, editor, bench.requests[:1]).patch.apply(bench.model)
    assert bench.answers([key]) == [bench.wanted[key]]


@pytest.mark.parametrize("preset", ["released", "paper"])
def test_grids_are_settings_of_the_editor(editor, preset):
    if not hasattr(editor_called(editor), "grid"):
        pytest.skip("it has no grid")
    settings = editor_called(editor).grid(preset)
    configs = [build_options(editor_called(editor).Config, setting, editor) for setting in settings]
    assert len({repr(config) for config in configs}) == len(settings) > 0


def test_a_grid_equals_its_single_edits(bench, editor):
    """Sharing of residuals and factorisations changes nothing: every seventh setting, from a fresh adapter each."""
    maker = editor_called(editor)
    if not hasattr(maker, "edit_grid"):
        pytest.skip("it edits one setting at a time")
    settings = maker.grid()[::7] if hasattr(maker, "grid") else [{}, example_options(maker)]
    configs = [build_options(maker.Config, setting, editor) for setting in settings]
    shared = list(maker.edit_grid(bench.adapter, bench.requests, configs, statistics=bench.statistics))
    for config, result in zip(configs, shared, strict=True):
        alone = maker.edit(HostAdapter(bench.model), bench.requests, config, statistics=bench.statistics)
        assert_equal_changes(result, alone)
        assert result.diagnostics["edited"] == alone.diagnostics["edited"]


@pytest.fixture(scope="session")
def books(tmp_path_factory):
    """A saved host of twelve books, untrained."""
    folder = tmp_path_factory.mktemp("books")
    books_host()[1].save_pretrained(folder)
    return folder


def test_runs_in_the_benchmark(editor, books, tmp_path):
    """It is scored without an error, the setting in its rows can be used again, and its patch is saved."""
    options = example_options(editor_called(editor))
    benchmark(
        BenchmarkConfig(
            model=str(books),
            output_dir=str(tmp_path / "run"),
            splits=[{"altered": 4}],
            editors=[{"name": editor, **options}],
            derange=True,
            report=False,
        )
    )
    rows = json.loads((tmp_path / "run/results.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["selection"], row["error"]) for row in rows] == [
        ("grid", None), ("oracle", None), ("selected", None),
    ]  # fmt: skip
    for row in rows:
        assert {type(row[name]) for name in ("efficacy", "paraphrase", "specificity", "score_harmonic")} == {
            float
        }
        build_options(editor_called(editor).Config, row["setting"], editor)
    patch = Patch.load(tmp_path / f"run/patches/{editor}_4.safetensors")
    assert patch.editor == editor
    assert len(patch.altered) == 4
