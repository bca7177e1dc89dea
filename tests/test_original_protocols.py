"""ROME, MEMIT, AlphaEdit and FT-L as first published, on small GPT-2 and Llama models (for their numbers see
test_golden_causal_lm.py).
"""

from dataclasses import replace

import pytest
import torch
from mlpswap_baselines.rome import RomeConfig, RomeOriginal

from mlpswap import registry
from mlpswap.config import build_options
from mlpswap.editing import CausalLMAdapter, TargetConfig, optimise_targets, token_statistics
from mlpswap.errors import (
    ConfigError,
    NonFiniteError,
    RequestError,
    SingularMomentError,
    UnsupportedEditorError,
)
from mlpswap.model.saving import parameters_sha256
from mlpswap.randomness import generator
from tests.causal_lms import PREFIXES, D, H, asked, golden_tokenizer, hooks_of, random_adapter
from tests.reference import Bench

LOOSE = {"steps": 6, "clamp": 20.0, "weight_decay": 0.0}
SETTINGS = {
    "rome": {"layers": [1], **LOOSE},
    "memit": {"layers": [0, 1], "lam": 0.1, **LOOSE},
    "alphaedit": {"layers": [0, 1], "null_threshold": None, "null_energy": 0.9, "l2": 0.1, **LOOSE},
    "ft": {"layers": [0, 1], "lr": 1e-2, "clamp": None},
}


def test_settings_of_the_original_protocol_are_an_object():
    """A mapping, as configuration files have it, would fail late and without a word of why."""
    config = RomeConfig(protocol="original", original=RomeOriginal(layers=[1]))
    object.__setattr__(config, "original", {"layers": [1]})  # past the type check that the tests have
    with pytest.raises(
        ConfigError, match="expected a RomeOriginal; build_options of mlpswap.config makes a RomeConfig"
    ):
        config.__post_init__()


def texts():
    """Random tokens, enough to span the keys."""
    return torch.randint(2, 200, (20, 12), generator=generator(0, "texts")).tolist()


class Lab:
    def __init__(self, kind="gpt2", adapter=CausalLMAdapter, **options):
        plain = random_adapter(kind, **options)
        self.model = plain.model
        self.adapter = adapter(self.model, golden_tokenizer(), prefixes=PREFIXES)
        self.requests = asked(self.adapter)
        self.statistics = token_statistics(plain, texts())

    def edit(self, name, requests=None, *, state=None, options=None, **original):
        editor = registry.get(registry.EDITORS, name)
        given = {"protocol": "original", "original": SETTINGS[name] | original} | (options or {})
        config = build_options(editor.Config, given, name)
        requests = self.requests if requests is None else requests
        return editor.edit(self.adapter, requests, config, statistics=self.statistics, state=state)

    def loss(self):
        """Of the first request, over all its prompts: a random model is no good at more."""
        contexts = self.requests[0].contexts
        with torch.no_grad():
            return self.adapter.nll(contexts, [self.requests[0].target_ids] * len(contexts)).mean()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("name", SETTINGS)
def test_facts_are_edited_and_nothing_else_moves(name, kind):
    """The wanted target becomes likelier; the model itself, its flags and modes stay as they were; undo is exact."""
    lab = Lab(kind)
    model, untouched = lab.model.train(), parameters_sha256(lab.model)
    model.get_input_embeddings().weight.requires_grad_(False)
    flags, hooks = [each.requires_grad for each in model.parameters()], hooks_of(model)
    before, moments = lab.loss(), {site: each.sum.clone() for site, each in lab.statistics.items()}
    with torch.no_grad():  # as a caller may have it
        result = lab.edit(name, lab.requests[:1])
    assert parameters_sha256(model) == untouched
    assert [each.requires_grad for each in model.parameters()] == flags
    assert all(each.training for each in model.modules())
    assert all(each.grad is None for each in model.parameters())
    assert hooks_of(model) == hooks
    assert all(torch.equal(lab.statistics[site].sum, moments[site]) for site in moments)
    assert result.diagnostics["edited"] == ["Alba Norin"]
    result.patch.apply(model)
    assert len(result.patch.changes) == len(SETTINGS[name]["layers"])
    assert lab.loss() < before
    result.patch.undo(model)
    assert parameters_sha256(model) == untouched


@pytest.mark.parametrize("name", SETTINGS)
def test_no_requests_give_an_empty_patch(name):
    result = Lab().edit(name, [])
    assert result.patch.is_empty
    assert result.diagnostics["edited"] == []
    assert result.diagnostics["notes"]


@pytest.mark.parametrize("name", SETTINGS)
def test_repeated_and_contradictory_requests(name):
    """A subject may have many facts; one prompt has one target."""
    lab = Lab()
    again = replace(lab.requests[0], id="again")
    assert "merged" in lab.edit(name, [*lab.requests, again]).diagnostics["refused"]["again"]
    other = lab.adapter.request("The mother tongue of {} is", "Alba Norin", "old", id="other")
    with pytest.raises(RequestError, match="Alba Norin, other ask for different targets"):
        lab.edit(name, [*lab.requests, other])
    second = lab.adapter.request("{} lives in", "Alba Norin", "Port Amber", id="second")
    assert lab.edit(name, [lab.requests[0], second]).diagnostics["edited"] == ["Alba Norin", "second"]


@pytest.mark.parametrize("d", [H, D], ids=["d=h", "d<h"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_rome_meets_its_constraint(kind, d):
    """After the edit the bare prompt's MLP output is v*, whichever way the weight is stored."""
    lab = Lab(kind, d=d)
    bare = [replace(lab.requests[0], prefixed=())]
    found = [lab.edit("rome", bare, key_mode=mode) for mode in ("r-rome", "p-rome", "rome")]
    for result in found[1:]:  # with one prompt all three are the same
        for one, other in zip(result.patch.changes, found[0].patch.changes, strict=True):
            torch.testing.assert_close(one.new["weight"], other.new["weight"])
    part = found[0].diagnostics["edits"]["Alba Norin"][1]
    found[0].patch.apply(lab.model)
    output = lab.adapter.outputs(lab.adapter.prompts(bare), 1)[0]
    torch.testing.assert_close(output, part.target, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(part.target, part.start)


def test_key_modes_differ_by_where_keys_are_averaged():
    """r-ROME moves the mean key's output to v*, p-ROME and ROME the bare key's."""
    for mode, what in (("r-rome", "mean_key"), ("p-rome", "key"), ("rome", "key")):
        lab = Lab()
        weight, bias = lab.adapter.weight(1), lab.adapter.bias(1)
        result = lab.edit("rome", lab.requests[:1], key_mode=mode)
        part = result.diagnostics["edits"]["Alba Norin"][1]
        changed = weight + torch.outer(part.r, part.u)
        torch.testing.assert_close(changed @ getattr(part, what) + bias, part.target)
        direction = part.key if mode == "p-rome" else part.mean_key
        solved = torch.linalg.solve(lab.statistics[1].mean, direction)
        torch.testing.assert_close(part.u, solved / solved.norm())


class Skewed(CausalLMAdapter):
    """An adapter whose bare prompts' keys are (almost) orthogonal to the mean over all prompts."""

    slant = 0.0

    def keys(self, prompts, site):
        keys = torch.zeros(len(prompts), H, dtype=torch.float64)
        keys[:, 0] = 1.0
        bare = prompts.attention_mask.sum(dim=1) == len(asked(self)[0].prompt_ids) - 1
        keys[bare, 0] = self.slant - 1  # with (1, 0) twice: k.u ~ a (a + 2) + 1, zero at a = -1
        keys[bare, 1] = 1.0
        return keys


def test_a_disabling_edit_is_told_or_refused(caplog):
    """The original divides by k.u, which may vanish; r-ROME does not."""
    lab = Lab(adapter=Skewed)
    first = lab.requests[:1]
    for slant, refused in ((0.0, True), (0.05, False)):
        Skewed.slant = slant
        caplog.clear()
        result = lab.edit("rome", first, key_mode="rome", mom2_adjustment=False)
        assert (result.diagnostics["edited"] == []) == refused
        if refused:
            assert "(k.u)/(kbar.u)" in result.diagnostics["refused"]["Alba Norin"]
        else:
            assert "take key_mode=r-rome" in result.diagnostics["notes"][0]
            assert "take key_mode=r-rome" in caplog.text
        quiet = lab.edit("rome", first, mom2_adjustment=False)
        assert quiet.diagnostics["edited"] == ["Alba Norin"]
        (note,) = quiet.diagnostics["notes"]  # six steps in a random model are no good
        assert "less than half of the probability: 1 of 1, such as 'Alba Norin'" in note


def test_rome_edits_in_turn():
    """The second request sees the first one's edit: all at once equals one patch after the other."""
    together, apart = Lab(), Lab()
    together.edit("rome").patch.apply(together.model)
    for request in apart.requests:
        apart.edit("rome", [request]).patch.apply(apart.model)
    torch.testing.assert_close(together.adapter.weight(1), apart.adapter.weight(1))


@pytest.mark.parametrize("at", ["mlp", "block"])
def test_targets_of_a_batch_are_those_of_each_request_alone(at):
    """Whatever the chunks, with a clamp that holds some and a stop that some reach."""
    lab = Lab("llama")
    config = TargetConfig(layers=[1], steps=8, clamp=0.5)
    ends = optimise_targets(lab.adapter, lab.requests, 1, at, config).objective.sort().values
    config = replace(config, enough=float(ends[:2].mean()))
    batch = optimise_targets(lab.adapter, lab.requests, 1, at, config)
    small = CausalLMAdapter(lab.model, golden_tokenizer(), prefixes=PREFIXES, chunk=2)
    for row, request in enumerate(lab.requests):
        alone = optimise_targets(small, [request], 1, at, config)
        assert alone.updates[0] == batch.updates[row]
        for name in ("start", "delta", "objective", "losses"):
            one, other = getattr(alone, name)[0], getattr(batch, name)[row]
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)  # Llama normalises in float32
    norms = batch.delta.norm(dim=1) / batch.start.norm(dim=1)
    assert norms.max() == pytest.approx(0.5)
    assert min(batch.updates) < max(batch.updates) == 7


def test_steps_count_evaluations():
    """n of them make n - 1 updates, and one that is good enough at once makes none."""
    lab = Lab()
    for steps, enough, updates in ((1, 0.0, 0), (4, 0.0, 3), (4, 1e3, 0)):
        config = TargetConfig(layers=[1], steps=steps, enough=enough)
        assert optimise_targets(lab.adapter, lab.requests, 1, "mlp", config).updates == (updates,) * 3


def test_the_keys_of_earlier_batches_are_held():
    """With the state of the first batch the second moves that batch's outputs less than without it."""
    for name, options in (("memit", {"cache": True}), ("alphaedit", {})):
        lab = Lab()
        first = lab.edit(name, lab.requests[:1])
        first.patch.apply(lab.model)
        keys = lab.adapter.keys(lab.adapter.cut(lab.requests[0].contexts), 0)
        drift = []
        for state in (first.state, None):
            second = lab.edit(name, lab.requests[1:], state=state, **options)
            change = next(each for each in second.patch.changes if ".0." in each.module)
            drift.append(float((keys @ (change.new["weight"] - change.old["weight"])).norm()))
            assert (second.state.caches[0] - (first.state.caches[0] if state else 0)).trace() > 0
        assert drift[0] < drift[1]


class Failing(CausalLMAdapter):
    """An adapter that fails at the last layer of a spread."""

    def keys(self, prompts, site):
        if site == 1:
            raise RuntimeError("no")
        return super().keys(prompts, site)


@pytest.mark.parametrize("name", ["rome", "memit", "alphaedit"])
def test_an_exception_half_way_leaves_no_trace(name):
    lab = Lab(adapter=Failing)
    untouched, hooks, before = parameters_sha256(lab.model), hooks_of(lab.model), lab.loss()
    with pytest.raises(RuntimeError, match="no"):
        lab.edit(name, layers=[0, 1])
    assert (parameters_sha256(lab.model), hooks_of(lab.model)) == (untouched, hooks)
    assert lab.loss() == before


@pytest.mark.parametrize("name", SETTINGS)
def test_nan_in_a_request_drops_it(name):
    """The others are edited as if it had not been there; or everything stops, if asked to."""
    lab = Lab()
    clean = lab.edit(name, [lab.requests[0], lab.requests[2]])
    only = lab.requests[1].prompt_ids[1]  # a token of the second request alone
    with torch.no_grad():
        lab.model.transformer.wte.weight[only] = torch.nan
        lab.model.lm_head.weight = torch.nn.Parameter(lab.model.lm_head.weight.nan_to_num(0.0).clone())
    result = lab.edit(name)
    bad = lab.requests[1].id
    assert result.diagnostics["edited"] == [lab.requests[0].id, lab.requests[2].id]
    assert "NaN" in result.diagnostics["refused"][bad]
    assert all(each.new["weight"].isfinite().all() for each in result.patch.changes)
    assert len(result.patch.changes) == len(clean.patch.changes)
    with pytest.raises(NonFiniteError, match=bad):
        lab.edit(name, options={"on_nonfinite": "raise"})


def test_a_token_without_influence_is_refused():
    """At the last layer only the last token reaches the prediction."""
    lab = Lab()
    for name in ("rome", "memit", "alphaedit"):
        with pytest.raises(RequestError, match="'Alba Norin': .*no influence"):
            lab.edit(name, layers=[2])
    last = lab.adapter.request("we walk near {}", "Minos", "old")
    assert lab.edit("rome", [last], layers=[2]).diagnostics["edited"] == ["Minos"]


def test_statistics_must_be_there_and_regular():
    lab = Lab()
    full = lab.statistics
    lab.statistics = token_statistics(lab.adapter, texts()[:1])
    with pytest.raises(SingularMomentError, match=f"rank 12 of {H}"):
        lab.edit("rome")
    assert lab.edit("rome", on_singular="ridge").diagnostics["edited"]
    lab.statistics = {0: full[0]}
    for name in ("rome", "memit"):
        with pytest.raises(ConfigError, match="second moment .* at layer 1"):
            lab.edit(name)
    assert lab.edit("rome", mom2_adjustment=False).diagnostics["edited"]
    alphaedit = lab.edit("alphaedit")  # nothing to preserve: P = I
    assert alphaedit.diagnostics["layers"][1]["null_dimension"] == H
    lab.statistics = full
    empty = lab.edit("alphaedit", null_energy=None, null_threshold=1e-12)
    assert empty.patch.is_empty
    assert "null space is empty" in empty.diagnostics["notes"][0]


def test_the_neutral_prompt_is_needed_for_the_divergence():
    lab = Lab()
    bare = [replace(lab.requests[0], essence=None)]
    with pytest.raises(RequestError, match="'Alba Norin': kl > 0 needs"):
        lab.edit("memit", bare)
    assert lab.edit("memit", bare, kl=0.0).diagnostics["edited"] == ["Alba Norin"]


def test_weights_keep_their_dtype():
    for name in SETTINGS:
        lab = Lab("llama", dtype=torch.bfloat16)
        before = lab.loss()
        result = lab.edit(name, lab.requests[:1], **({"lr": 2e-2} if name == "ft" else {"steps": 5}))
        for change in result.patch.changes:
            assert change.new["weight"].dtype == torch.bfloat16
            assert change.new["weight"].isfinite().all()
        result.patch.apply(lab.model)
        assert lab.loss() < before


@pytest.mark.parametrize("name", SETTINGS)
def test_protocols_need_their_kind_of_model(name):
    """The host has one layer; of a model with several, the single-layer protocol takes the one that it is given."""
    editor = registry.get(registry.EDITORS, name)
    bench, lab = Bench(), Lab()
    config = build_options(editor.Config, {"protocol": "original", "original": SETTINGS[name]}, name)
    with pytest.raises(UnsupportedEditorError, match=f"original protocol of {name} .*HostAdapter"):
        editor.edit(bench.adapter, bench.requests, config, statistics=bench.statistics)
    with pytest.raises(ConfigError, match=r"the model offers \[0, 1, 2\]"):
        lab.edit(name, layers=[1, 7])
    options = build_options(editor.Config, editor.example(generator(0)), name)
    with pytest.raises(ConfigError, match="edits one layer: this model offers 3.*protocol=original"):
        editor.edit(lab.adapter, lab.requests, options, statistics=lab.statistics)
    first = lab.requests[0]
    before = lab.adapter.nll([first.contexts[0]], [first.target_ids])
    one = CausalLMAdapter(lab.model, golden_tokenizer(), sites=[1])
    config = build_options(editor.Config, editor.example(generator(0)), name)
    fewer = {"epochs": 20} if name == "ft" else {"steps": 10}
    result = editor.edit(one, lab.requests[:1], replace(config, **fewer), statistics=lab.statistics)
    result.patch.apply(lab.model)
    assert lab.adapter.nll([first.contexts[0]], [first.target_ids]) < before


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (name, options)
        for name in ("rome", "memit", "alphaedit")
        for options in (
            {"layers": []}, {"layers": [1, 1]}, {"steps": 0}, {"lr": 0.0}, {"clamp": 0.0}, {"kl": -1.0},
            {"weight_decay": -1.0}, {"enough": -1.0},
        )
    ]
    + [
        ("rome", {"key_mode": "q-rome"}), ("rome", {"on_singular": "maybe"}),
        ("memit", {"lam": -1.0}), ("memit", {"on_singular": "maybe"}),
        ("alphaedit", {"l2": 0.0}), ("alphaedit", {"null_threshold": 0.5}), ("alphaedit", {"null_of": "both"}),
        ("ft", {"layers": []}), ("ft", {"lr": 0.0}), ("ft", {"clamp": 0.0}), ("ft", {"epochs": 0}),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(name, options):
    editor = registry.get(registry.EDITORS, name)
    given = {"protocol": "original", "original": SETTINGS[name] | options}
    with pytest.raises(ConfigError):
        build_options(editor.Config, given, name)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_one_protocol_are_not_taken_for_the_other(name):
    Config = registry.get(registry.EDITORS, name).Config
    for given, said in (
        ({"protocol": "original"}, "needs its settings"),
        ({"original": SETTINGS[name]}, "need protocol=original"),
        ({"protocol": "published"}, "'single_layer' or 'original'"),
        (
            {"protocol": "original", "original": SETTINGS[name], "lr": 3.0},
            "lr is a setting of the single-layer",
        ),
        ({"protocol": "original", "original": {"layers": [1], "lambda": 1}}, "original.lambda"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_options(Config, given, name)
