"""What is special to each built-in editor: published settings, refusals, a reference for fine-tuning."""

import copy

import pytest
import torch

from mlpswap import registry
from mlpswap.config import build_options
from mlpswap.editing import EditorState, HostAdapter, SecondMoment, statistics_of
from mlpswap.errors import (
    ConfigError,
    NonFiniteError,
    SingularMomentError,
    UnsupportedEditorError,
)
from mlpswap.randomness import generator
from tests.reference import ALTERED, Bench, books_host

CLOSED_FORM = ["rome", "memit", "alphaedit"]
NUMERIC = [*CLOSED_FORM, "ft"]


@pytest.fixture
def bench():
    return Bench()


def change_of(result):
    """(d, h): the change of the down-projection."""
    (change,) = result.patch.changes
    return change.new["down.weight"] - change.old["down.weight"]


@pytest.mark.parametrize("name", ["swap", "memit", "alphaedit", "ft"])
def test_edits_are_made_together(bench, name):
    """ROME's rank-one edits interfere already here, as its documentation says."""
    result = bench.edit(name)
    result.patch.apply(bench.model)
    assert bench.answers(bench.wanted) == list(bench.wanted.values())
    assert result.diagnostics["edited"] == list(bench.wanted)


def test_published_grids():
    """108, 81 and 54 settings; the released code and the paper differ in AlphaEdit's clips alone."""
    grids = {
        (name, preset): registry.get(registry.EDITORS, name).grid(preset)
        for name in ("memit", "alphaedit", "rome", "swap")
        for preset in ("released", "paper")
    }
    assert [len(grids[name, "released"]) for name in ("memit", "alphaedit", "rome", "swap")] == [
        108,
        81,
        54,
        1,
    ]
    assert {setting["clip"] for setting in grids["alphaedit", "released"]} == {0.75, 0.25, None}
    assert {setting["clip"] for setting in grids["alphaedit", "paper"]} == {0.5, 0.75, None}
    assert all(grids[name, "released"] == grids[name, "paper"] for name in ("memit", "rome", "swap"))
    assert {setting["lam"] for setting in grids["memit", "paper"]} == {15000, 1500, 150, 1}
    for name in CLOSED_FORM:
        with pytest.raises(ConfigError, match="released, paper"):
            registry.get(registry.EDITORS, name).grid("best")


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_a_grid_factors_once_per_system(bench, name, monkeypatch):
    """The counts that make the published grids cheap: 4 systems for MEMIT, 1 for ROME, one per threshold
    for AlphaEdit.
    """
    from mlpswap.editing import moments

    made = []
    init = moments.SymmetricFactor.__init__
    monkeypatch.setattr(
        moments.SymmetricFactor, "__init__", lambda self, *a, **k: (made.append(1), init(self, *a, **k))[1]
    )
    editor = registry.get(registry.EDITORS, name)
    settings = [setting | {"steps": min(setting["steps"], 12)} for setting in editor.grid()]
    if name == "alphaedit":  # thresholds at which this small host has a null space
        values, _ = bench.statistics[0].spectrum
        above = dict(zip((0.01, 1.0, 10.0), (1.01 * values[[2, 5, 9]]).tolist(), strict=True))
        settings = [each | {"null_threshold": above[each["null_threshold"]]} for each in settings]
    configs = [build_options(editor.Config, setting, name) for setting in settings]
    assert len(
        list(editor.edit_grid(bench.adapter, bench.requests, configs, statistics=bench.statistics))
    ) == len(settings)
    assert len(made) == {"rome": 1, "memit": 4, "alphaedit": 3}[name]


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_absurd_rate_is_refused_by_request(name, dtype):
    """Steps beyond the largest number end in NaN, which costs each request; no number is too large to be told so."""
    bench = Bench(dtype=dtype)
    options = {"lr": 1e308, "clamp": None} if name == "ft" else {"lr": 1e308, "on_singular": "ridge"}
    options = {key: value for key, value in options.items() if name != "alphaedit" or key == "lr"}
    result = bench.edit(name, **options)
    assert result.patch.is_empty
    assert result.diagnostics["refused"].keys() == bench.wanted.keys()
    assert result.diagnostics["notes"]
    with pytest.raises(NonFiniteError, match=bench.requests[0].id):
        bench.edit(name, **options, on_nonfinite="raise")


@pytest.mark.parametrize("name", ["rome", "ft"])
def test_editors_without_a_state_refuse_one(bench, name):
    editor = registry.get(registry.EDITORS, name)
    config = build_options(editor.Config, editor.example(generator(0)), name)
    with pytest.raises(ConfigError, match="carries no state"):
        editor.edit(bench.adapter, bench.requests, config, statistics=bench.statistics, state=EditorState({}))


def test_alphaedit_carries_its_cache(bench):
    """The state after two batches sums the outer products of both batches' keys, and holds the second one
    back.
    """
    editor = registry.get(registry.EDITORS, "alphaedit")
    config = build_options(editor.Config, {"null_threshold": None, "null_energy": 0.5, "clip": None}, "test")
    first = editor.edit(bench.adapter, bench.requests[:1], config, statistics=bench.statistics)
    second = editor.edit(
        bench.adapter, bench.requests[1:], config, statistics=bench.statistics, state=first.state
    )
    alone = editor.edit(bench.adapter, bench.requests[1:], config, statistics=bench.statistics)
    keys = bench.adapter.keys(bench.adapter.prompts(bench.requests), 0)
    torch.testing.assert_close(first.state.caches[0], keys[:1].T @ keys[:1])
    torch.testing.assert_close(second.state.caches[0], keys.T @ keys)
    drift = [float((change_of(result) @ keys[0]).norm()) for result in (second, alone)]
    assert drift[0] < drift[1]


@pytest.mark.parametrize("name", ["rome", "memit"])
def test_statistics_are_needed(bench, name):
    """Without preserved facts ROME and MEMIT have nothing to weigh against; AlphaEdit then takes P = I."""
    for statistics in (None, {}, {0: SecondMoment(torch.zeros(20, 20), 0)}):
        bench.statistics = statistics
        with pytest.raises(ConfigError, match="preserve at least one fact"):
            bench.edit(name)
        assert bench.edit("alphaedit").diagnostics["null_dimension"] == 20


def test_a_singular_moment(bench):
    """ROME refuses it by default, with rank and width; the ridge is recorded."""
    bench.statistics = statistics_of(bench.adapter, bench.prompts(bench.preserved[:6]))
    with pytest.raises(SingularMomentError, match="rank 6 of 20") as caught:
        bench.edit("rome", on_singular="error")
    assert (caught.value.rank, caught.value.width) == (6, 20)
    assert bench.edit("rome", on_singular="ridge").diagnostics["ridge"] > 0
    with pytest.raises(SingularMomentError):
        bench.edit("memit", on_singular="error")
    least_norm = bench.edit("memit", on_singular="pinv")
    assert least_norm.diagnostics["rank"] == 6 + ALTERED
    outside = bench.edit("rome", on_singular="pinv")
    assert outside.diagnostics["edited"] == []
    assert "range" in outside.diagnostics["refused"][bench.requests[0].id]
    assert outside.patch.altered == ()


def test_an_empty_null_space_is_told(bench, caplog):
    result = bench.edit("alphaedit", null_energy=None, null_threshold=1e-9)
    assert result.diagnostics["null_dimension"] == 0
    assert result.patch.is_empty
    assert "null space is empty" in result.diagnostics["notes"][0]
    assert "null space is empty" in caplog.text


def test_null_space_of_sum_and_mean(bench):
    """The published threshold is on the sum; the original's on the mean, which is smaller by the number of
    keys.
    """
    moment = bench.statistics[0]
    values, _ = moment.spectrum
    above = 1.01 * float(values[4])
    by_sum = bench.edit("alphaedit", null_energy=None, null_threshold=above)
    by_mean = bench.edit("alphaedit", null_energy=None, null_threshold=above / moment.count, null_of="mean")
    for result in (by_sum, by_mean):
        assert result.diagnostics["null_dimension"] == 5
        assert result.diagnostics["null_energy"] == pytest.approx(float(values[:5].sum() / values.sum()))


def test_unfinished_residuals_are_listed(bench):
    result = bench.edit("memit", steps=1, lr=1e-3)
    assert result.diagnostics["unconverged"] == [request.id for request in bench.requests]
    assert bench.edit("memit").diagnostics["unconverged"] == []


def test_clip_shortens_residuals(bench):
    """No longer than the clip times the length of the unedited output, without its bias."""
    result = bench.edit("memit", clip=0.5)
    reference = bench.adapter.outputs(bench.adapter.prompts(bench.requests), 0).norm(dim=1)
    assert (result.diagnostics["residual_norms"] <= 0.5 * reference * (1 + 1e-9)).all()
    assert (bench.edit("memit").diagnostics["residual_norms"] > 0.5 * reference).any()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("memit", {"lam": -1.0}),
        ("memit", {"clip": -0.1}),
        ("memit", {"steps": 0}),
        ("memit", {"lr": 0.0}),
        ("memit", {"on_nonfinite": "ignore"}),
        ("rome", {"weight_decay": -1.0}),
        ("alphaedit", {"l2": 0.0}),
        ("alphaedit", {"null_threshold": 0.0}),
        ("alphaedit", {"null_energy": 0.5}),
        ("alphaedit", {"null_of": "both"}),
        ("ft", {"clamp": 0.0}),
        ("ft", {"epochs": 0}),
        ("ft", {"on_nonfinite": "ignore"}),
        ("swap", {"on_conflict": "first"}),
        ("rome", {"on_singular": "maybe"}),
        ("memit", {"on_singular": "maybe"}),
        ("rome", {"clip": 0.5}),
    ],
)
def test_impossible_options_are_refused(name, options):
    editor = registry.get(registry.EDITORS, name)
    with pytest.raises(ConfigError):
        build_options(editor.Config, options, name)


def test_swap_needs_facts():
    """An adapter that knows no facts by name gets one clear sentence."""

    class Bare:
        def sites(self):
            return [0]

    editor = registry.get(registry.EDITORS, "swap")
    with pytest.raises(UnsupportedEditorError, match="Bare has no fact set"):
        editor.edit(Bare(), [], editor.Config())


def test_swap_takes_any_construction(bench):
    """Another kind and width may go in; all facts are stored, altered or not."""
    result = bench.edit("swap", construction="hebbian", options={"h": 64})
    assert result.diagnostics["report"]["accuracy"] == 1.0
    result.patch.apply(bench.model)
    assert bench.model.fact_mlp.config.h == 64
    assert bench.answers(bench.facts.keys) == [value for _, value in bench.model.facts.pairs()]
    result.patch.undo(bench.model)
    assert bench.model.fact_mlp.config.h == 20


def test_fine_tuning_is_that_of_torch(bench):
    """Against torch.optim.Adam on the weight itself, through the whole model, with the clamp after each
    step.
    """
    editor = registry.get(registry.EDITORS, "ft")
    config = build_options(editor.Config, {"lr": 1e-2, "clamp": 0.03, "epochs": 7, "batch_size": 2}, "test")
    result = editor.edit(bench.adapter, bench.requests, config)
    model = copy.deepcopy(bench.model)
    weight, start = model.fact_mlp.down.weight, bench.model.fact_mlp.down.weight.detach()
    adam = torch.optim.Adam([weight.requires_grad_()], lr=1e-2)
    ids = torch.tensor([request.prompt_ids for request in bench.requests])
    targets = torch.tensor([request.target_ids[0] for request in bench.requests])
    for _ in range(7):
        for rows in (slice(0, 2), slice(2, 3)):
            adam.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(ids[rows]).logits[:, -1], targets[rows])
            loss.backward(inputs=[weight])
            adam.step()
            with torch.no_grad():
                weight.copy_(weight.clamp(start - 0.03, start + 0.03))
    torch.testing.assert_close(change_of(result), weight.detach() - start, rtol=1e-9, atol=1e-12)
    assert change_of(result).abs().max() == pytest.approx(0.03)


def test_fine_tuning_stops_when_it_is_enough(bench):
    """No step below the threshold, and the end once an epoch's mean is."""
    result = bench.edit("ft")
    assert result.diagnostics["last_loss"] < 1e-2 < result.diagnostics["first_loss"]
    assert result.diagnostics["epochs"] < 200
    key = bench.facts.keys[-1]
    known = [bench.ask(key, bench.facts.value_of(key))]
    assert bench.edit("ft", known, enough=100.0).patch.is_empty


def test_the_bias_is_trained_only_on_request():
    """As the original does; a down-projection without a bias is told."""
    _, model = books_host(output_bias=True)
    adapter = HostAdapter(model)
    request = adapter.request("The writer of {book} is", "k0", model.facts.value_of("k1"))
    editor = registry.get(registry.EDITORS, "ft")
    for train_bias, names in ((False, {"down.weight"}), (True, {"down.weight", "down.bias"})):
        config = editor.Config(lr=1e-2, clamp=None, train_bias=train_bias)
        result = editor.edit(adapter, [request], config)
        assert result.patch.changes[0].new.keys() == names
        result.patch.apply(model)
        result.patch.undo(model)
    with pytest.raises(ConfigError, match="no bias"):
        editor.edit(HostAdapter(books_host()[1]), [], editor.Config(train_bias=True))
