"""A patch applies in full or not at all, comes off bit for bit, and survives the disk."""

import dataclasses
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mlpswap.errors import CheckpointError, ConfigError, FactsError, NonFiniteError, RunFolderError
from mlpswap.model import MlpSwapConfig, MlpSwapForCausalLM, ModuleChange, Patch
from mlpswap.model.patch import same_bits
from tests.hosts import FACTS, random_mlp, small_host

ALTERED = FACTS.alter({"Emma": "James Joyce", "It": "Jane Austen"})
IDS = torch.tensor([[2, 3, 9, 4, 10]])
SHAPES = [("swiglu", 24), ("swiglu", 7), ("bilinear", 24), ("relu", 40), ("gelu", 1)]


def swap_patch(model, kind="swiglu", h=24):
    return Patch.between_mlps(model, random_mlp(kind, h=h, seed=9), editor="swap", facts=ALTERED)


def down_patch(model, delta=0.1):
    old = model.fact_mlp.down.weight.detach().clone()
    change = ModuleChange(model.fact_mlp_name, {"down.weight": old}, {"down.weight": old + delta})
    return Patch((change,), "test", (("Emma", "Jane Austen", "James Joyce"),), FACTS.fingerprint, None)


@pytest.mark.parametrize(("kind", "h"), SHAPES)
@pytest.mark.parametrize("train", [True, False])
def test_apply_and_undo_are_exact(kind, h, train):
    """Whatever the shape of the new MLP; facts, configuration and history follow."""
    model = small_host().train(train)
    before = (model.state_sha256(), model.config.own_fields(), model.facts, model.history)
    logits = model(IDS).logits
    patch = swap_patch(model, kind, h)
    assert (model.state_sha256(), model.config.own_fields(), model.facts, model.history) == before

    patch.apply(model)
    new = random_mlp(kind, h=h, seed=9)
    assert model.fact_mlp.config == new.config
    assert model.config.fact_mlp == new.config.to_dict()
    for name, parameter in new.named_parameters():
        assert torch.equal(model.fact_mlp.get_parameter(name), parameter)
        assert not model.fact_mlp.get_parameter(name).requires_grad
    assert model.fact_mlp.training == train
    assert model.facts == ALTERED
    assert model.history[-1] == {
        "event": "patched", "by": "swap", "altered": 2, "facts": ALTERED.fingerprint
    }  # fmt: skip
    assert not torch.equal(model(IDS).logits, logits)

    patch.undo(model)
    assert (model.state_sha256(), model.config.own_fields(), model.facts, model.history) == before
    assert torch.equal(model(IDS).logits, logits)


def test_an_applied_patch_is_saved_with_the_model(tmp_path):
    model = small_host()
    patch = swap_patch(model, "bilinear", 5)
    patch.apply(model)
    model.save_pretrained(tmp_path)
    loaded = MlpSwapForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    assert loaded.facts == ALTERED
    patch.undo(loaded)
    assert loaded.state_sha256() == small_host().state_sha256()
    assert loaded.history == small_host().history


def test_the_types_of_a_change_are_those_of_the_model():
    """Else the model would hold roundings of the new tensors, which nothing could undo."""
    old = {"weight": torch.eye(2), "bias": torch.ones(2)}
    for new in (old | {"bias": torch.ones(2, dtype=torch.int64)}, {n: t.double() for n, t in old.items()}):
        with pytest.raises(CheckpointError, match=r"mlp\.(weight|bias) is of type .*, where the model has"):
            ModuleChange("mlp", old, new)


def test_a_patch_that_cannot_be_saved_leaves_the_earlier_one(tmp_path):
    model = small_host()
    path, earlier = tmp_path / "edit.safetensors", swap_patch(model, "relu", 6)
    earlier.save(path)
    before = path.read_bytes()
    path.with_suffix(".json").unlink()
    path.with_suffix(".json").mkdir()
    with pytest.raises(RunFolderError, match=r"cannot be saved to .*edit\.json cannot be written"):
        swap_patch(model, "relu", 7).save(path)
    assert path.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"edit.safetensors", "edit.json"}


def test_a_patch_below_another_names_it():
    model = small_host()
    first = swap_patch(model, "relu", 6)
    first.apply(model)
    second = Patch.between_mlps(model, random_mlp("relu", h=7, seed=3), editor="mine", facts=FACTS)
    second.apply(model)
    with pytest.raises(CheckpointError, match="undo first what was put on it later, by mine"):
        first.undo(model)
    second.undo(model)
    first.undo(model)
    assert model.state_sha256() == small_host().state_sha256()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_patches_come_back_from_disk(tmp_path, dtype):
    model = small_host(dtype=dtype)
    patch = swap_patch(model, "relu", 6)
    patch.save(tmp_path / "edit.safetensors")
    assert {path.name for path in tmp_path.iterdir()} == {"edit.safetensors", "edit.json"}
    loaded = Patch.load(tmp_path / "edit.safetensors")
    for one, other in zip(loaded.changes, patch.changes, strict=True):
        for name in ("module", "old_config", "new_config"):
            assert getattr(one, name) == getattr(other, name)
        for side in ("old", "new"):
            tensors = getattr(one, side)
            assert tensors.keys() == getattr(other, side).keys()
            assert all(same_bits(tensors[name], tensor) for name, tensor in getattr(other, side).items())
    names = ("editor", "altered", "facts_before", "facts_after")
    assert [getattr(loaded, name) for name in names] == [getattr(patch, name) for name in names]
    before = model.state_sha256()
    loaded.apply(model)
    patch.undo(model)
    assert model.state_sha256() == before


def test_a_patch_that_does_not_fit_changes_nothing():
    """Another model, a second time, an undo without an apply."""
    model = small_host()
    patch = swap_patch(model)
    other = small_host()
    with torch.no_grad():
        other.fact_mlp.down.weight[0, 0] += 1e-7
    for host, action, message in (
        (other, patch.apply, r"transformer\.h\.0\.mlp\.down\.weight is not the tensor that it replaces"),
        (model, patch.undo, "is not the tensor that it replaces|expects the facts"),
        (small_host(kind="relu"), patch.apply, "does not fit the model: .*gate|is not the tensor"),
        (small_host(n_layer=2), patch.apply, "does not fit the model"),
        (model.to(torch.float64), patch.apply, "is not the tensor"),
    ):
        before = host.state_sha256(), host.facts, host.history
        with pytest.raises(CheckpointError, match=message):
            action(host)
        assert (host.state_sha256(), host.facts, host.history) == before


def test_applying_twice_is_refused_with_the_reason():
    model = small_host()
    patch = dataclasses.replace(down_patch(model), altered=(), facts_before=None)
    patch.apply(model)
    with pytest.raises(CheckpointError, match="it holds the new values already"):
        patch.apply(model)


def test_a_patch_made_on_other_facts_is_refused():
    model, patch = small_host(), swap_patch(small_host())
    model.facts = ALTERED
    before = model.state_sha256()
    with pytest.raises(CheckpointError, match=f"expects the facts {FACTS.fingerprint[:12]}"):
        patch.apply(model)
    assert model.state_sha256() == before


def test_the_two_sides_of_a_change_correspond():
    """Else a patch could stop half way, or leave a tensor of the new MLP at random values."""
    one, two = torch.zeros(2), torch.zeros(3)
    old, new = random_mlp(), random_mlp(h=3)
    change = ModuleChange.between("mlp", old, new)
    for arguments in (
        ({"w": one}, {"w": two}),
        ({"w": one}, {"w": one, "b": one}),
        ({"w": one}, {"w": one}, None, new.config.to_dict()),
        (change.old, change.new, old.config.to_dict(), old.config.to_dict()),
        (change.old, {"down.weight": change.new["down.weight"]}, change.old_config, change.new_config),
    ):
        with pytest.raises(CheckpointError, match="a change of mlp"):
            ModuleChange("mlp", *arguments)


def test_two_patches_come_off_in_any_order_the_weights_allow():
    """An edit of the MLP and one of another module, undone first come first."""
    model = small_host()
    before = model.state_sha256()
    first = swap_patch(model, "relu", 5)
    first.apply(model)
    old = model.transformer.h[0].mixture.u.weight.detach().clone()
    second = Patch((ModuleChange("transformer.h.0.mixture.u", {"weight": old}, {"weight": 2 * old}),), "hand")
    second.apply(model)
    first.undo(model)
    assert [event["event"] for event in model.history] == ["built", "patched", "patched", "undone"]
    assert model.history[-1]["facts"] == FACTS.fingerprint
    second.undo(model)
    assert model.state_sha256() == before
    assert model.facts == FACTS


def test_patches_serve_any_module():
    """Editors of other transformers use them as well."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    old = model[0].weight.detach().clone()
    patch = Patch((ModuleChange("0", {"weight": old}, {"weight": old - 1}),), "hand")
    patch.apply(model)
    assert torch.equal(model[0].weight, old - 1)
    patch.undo(model)
    assert torch.equal(model[0].weight, old)


def test_the_norm_of_a_change():
    model = small_host()
    assert down_patch(model, 0.5).norm() == pytest.approx(0.5 * math.sqrt(16 * 24), rel=1e-6)
    patch = swap_patch(model, "relu", 5)
    sides = [*model.fact_mlp.parameters(), *random_mlp("relu", h=5, seed=9).parameters()]
    wanted = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in sides))
    assert patch.norm() == pytest.approx(wanted)  # taken out and put in
    assert Patch((), "hand").norm() == 0


def test_empty_means_not_a_single_bit():
    model = small_host()
    assert Patch((), "hand").is_empty
    assert down_patch(model, 0.0).is_empty
    assert not down_patch(model).is_empty
    assert not swap_patch(model, "swiglu", 25).is_empty
    minus = ModuleChange("m", {"w": torch.zeros(1)}, {"w": -torch.zeros(1)})
    assert not Patch((minus,), "hand").is_empty


def test_not_a_number_is_a_bit_pattern_too(tmp_path):
    """A patch away from a broken weight must apply and undo."""
    model = small_host()
    with torch.no_grad():
        model.fact_mlp.down.weight[0, 0] = math.nan
    before = model.state_sha256()
    patch = swap_patch(model)
    patch.save(tmp_path / "edit.safetensors")
    patch.apply(model)
    patch.undo(model)
    assert model.state_sha256() == before


@pytest.mark.parametrize("path", ["/proc/1/edit.safetensors", "/dev/full/edit.safetensors"])
def test_a_place_that_cannot_be_written_is_named(path):
    with pytest.raises(RunFolderError, match=path):
        swap_patch(small_host()).save(path)


def test_a_report_does_not_outlive_the_weights_it_measured():
    model = small_host()
    model.fact_mlp.report = object()
    down_patch(model).apply(model)
    assert model.fact_mlp.report is None


@pytest.fixture
def saved(tmp_path):
    swap_patch(small_host()).save(tmp_path / "edit.safetensors")
    return tmp_path / "edit.safetensors"


def test_damaged_patches_are_refused(saved):
    tensors = load_file(saved)
    tensors["0.new.down.weight"][0, 0] += 1
    save_file(tensors, saved)
    with pytest.raises(CheckpointError, match=r"tensor 0\.new\.down\.weight is not the one that was saved"):
        Patch.load(saved)
    del tensors["0.new.down.weight"]
    save_file(tensors, saved)
    with pytest.raises(CheckpointError, match=r"lacks tensor 0\.new\.down\.weight"):
        Patch.load(saved)
    saved.write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"edit\.safetensors is damaged"):
        Patch.load(saved)


@pytest.mark.parametrize(
    "edit",
    [
        {"altered": [["Emma", "Jane Austen", "Stephen King"]]},
        {"altered": 3},
        {"facts_before": None},
        {"changes": []},
        {"schema": 99},
        {"sha256": None},
    ],
)
def test_an_edited_description_is_refused(saved, edit):
    """The names and fingerprints of a patch decide which facts a model believes it has."""
    sidecar = saved.with_suffix(".json")
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | edit))
    with pytest.raises(
        CheckpointError, match=r"edit\.json (is not the one that was saved|does not describe)"
    ):
        Patch.load(saved)


@pytest.mark.parametrize("content", ["[]", "{}", "{", "3"])
def test_a_patch_without_its_other_half_is_refused(saved, content):
    sidecar = saved.with_suffix(".json")
    sidecar.write_text(content)
    with pytest.raises(CheckpointError, match=r"edit\.json (does not describe a patch|cannot be read)"):
        Patch.load(saved)
    sidecar.unlink()
    with pytest.raises(CheckpointError, match=r"edit\.json cannot be read"):
        Patch.load(saved)
    with pytest.raises(ConfigError, match=r"ends in \.safetensors: found edit\.bin"):
        Patch.load("edit.bin")


def test_a_patch_whose_facts_contradict_each_other_is_refused():
    """The altered facts must lead from one fingerprint to the other; else the model would be told wrong facts."""
    model = small_host()
    patch = dataclasses.replace(swap_patch(model), altered=(("Emma", "Jane Austen", "Stephen King"),))
    before = model.state_sha256()
    with pytest.raises(CheckpointError, match="its 1 altered fact lead to the facts"):
        patch.apply(model)
    assert (model.state_sha256(), model.facts) == (before, FACTS)


def test_a_patch_shows_itself_in_a_line():
    assert repr(swap_patch(small_host())).startswith(
        "Patch(swap, 2 facts altered, transformer.h.0.mlp, norm "
    )


def test_what_is_not_finite_is_saved_only_on_demand(tmp_path):
    patch = down_patch(small_host(), math.inf)
    with pytest.raises(NonFiniteError, match=r"NaN or infinity in 0\.new\.down\.weight"):
        patch.save(tmp_path / "edit.safetensors")
    assert not list(tmp_path.iterdir())
    model = small_host()
    before = model.state_sha256()
    with pytest.raises(NonFiniteError, match=r"NaN or infinity in 0\.new\.down\.weight"):
        patch.apply(model)
    assert model.state_sha256() == before
    patch.save(tmp_path / "edit.safetensors", allow_nonfinite=True)
    assert Patch.load(tmp_path / "edit.safetensors").norm() == math.inf


def test_a_swap_patch_needs_the_facts_of_the_model():
    with pytest.raises(FactsError, match="different keys"):
        Patch.between_mlps(small_host(), random_mlp(), editor="swap", facts=FACTS.take(3))
    bare = MlpSwapForCausalLM(MlpSwapConfig(n_embd=16))
    with pytest.raises(FactsError, match="no facts"):
        Patch.between_mlps(bare, random_mlp(), editor="swap", facts=FACTS)
