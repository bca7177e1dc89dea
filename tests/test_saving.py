"""Saving and loading: everything comes back to the last bit, and nothing that does not belong is accepted."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mlpswap.errors import CheckpointError, FactsError, MlpSwapError, NonFiniteError, RunFolderError
from mlpswap.facts import FactSet
from mlpswap.model import MlpSwapConfig, MlpSwapForCausalLM
from mlpswap.model.saving import tensor_sha256
from tests.hosts import FACTS, random_mlp, small_host

IDS = torch.tensor([[2, 3, 9, 4, 10]])


@pytest.fixture(scope="module")
def original():
    return small_host(n_head=2)


@pytest.fixture
def folder(original, tmp_path):
    original.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def forge(folder, change):
    """Change the configuration, and the record's hash of it with it."""
    edit_json(folder / "config.json", change)
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    edit_json(folder / "tensors.json", lambda c: c["files"].update({"config.json": digest}))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("kind", "h"), [("swiglu", 24), ("bilinear", 3), ("relu", 40), ("gelu", 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_logits_and_all_else_come_back_to_the_last_bit(tmp_path, kind, h, tied, dtype):
    model = small_host(kind=kind, h=h, dtype=dtype, tie_word_embeddings=tied, norm="learned", n_layer=2)
    if not tied:
        with torch.no_grad():
            model.lm_head.weight.add_(0.01)
    model.save_pretrained(tmp_path)
    loaded = MlpSwapForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    assert loaded.state_sha256() == model.state_sha256()
    assert loaded.config.own_fields() == model.config.own_fields()
    assert (loaded.facts, loaded.history) == (model.facts, model.history)
    assert loaded.tokenizer.vocabulary == model.tokenizer.vocabulary
    assert not loaded.training
    trains = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert {name: parameter.requires_grad for name, parameter in loaded.named_parameters()} == trains
    assert (loaded.lm_head.weight is loaded.transformer.wte.weight) == tied
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) != tied


def test_the_folder_holds_no_pickle_and_a_hash_of_each_tensor(original, folder):
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "config.json", "facts.json", "generation_config.json", "history.json", "model.safetensors",
        "tensors.json", "tokenizer_config.json", "vocabulary.json",
    }  # fmt: skip
    hashes = json.loads((folder / "tensors.json").read_text())["tensors"]
    assert hashes == {name: tensor_sha256(tensor) for name, tensor in original.named_parameters()}
    assert FactSet.from_dict(json.loads((folder / "facts.json").read_text())) == FACTS


def test_the_card_says_how_to_load_and_what_is_inside(folder):
    card = (folder / "README.md").read_text()
    head = card.split("---")[1]
    assert "library_name: mlpswap" in head
    assert "license: apache-2.0" in head
    for words in (
        "import mlpswap\n",
        FACTS.fingerprint,
        "swiglu, d = 16, h = 24",
        "built by unknown",
        "5 keys",
    ):
        assert words in card


def test_a_hostile_title_cannot_leave_its_line_of_the_card(tmp_path):
    facts = FactSet.from_pairs([("x\n# `</code>{0}", "y")])
    small_host(facts).save_pretrained(tmp_path)
    line = next(line for line in (tmp_path / "README.md").read_text().splitlines() if "ask" in line)
    assert r"x\\x0a#" in line


def test_a_model_without_facts_comes_back_without(tmp_path):
    model = MlpSwapForCausalLM(MlpSwapConfig(n_embd=8, vocab_size=20))
    model.save_pretrained(tmp_path)
    loaded = MlpSwapForCausalLM.from_pretrained(tmp_path)
    assert loaded.facts is loaded.tokenizer is None
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)


def test_loading_takes_the_options_of_transformers(original, folder):
    half = MlpSwapForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert half.transformer.wte.weight.dtype == torch.bfloat16
    _, info = MlpSwapForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    small = AutoModelForCausalLM.from_pretrained(str(folder))
    assert isinstance(small, MlpSwapForCausalLM)
    assert small.state_sha256() == original.state_sha256()


def _truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def _zero(folder):
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))


def _flip_a_bit(folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def _pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _drop_q(tensors):
    del tensors["transformer.h.0.attn.q.0.bias"]


def _reshape_q(tensors):
    tensors["transformer.h.0.attn.q.0.bias"] = torch.zeros(17)


DAMAGES = {
    "truncated": (_truncate, "model.safetensors is damaged"),
    "zeroed": (_zero, "model.safetensors is damaged"),
    "one bit": (_flip_a_bit, "model.safetensors: tensor .* is not the one that was saved"),
    "pickled": (_pickle, "has no model.safetensors; pickled weights are not read"),
    "no record": (lambda f: (f / "tensors.json").unlink(), "tensors.json cannot be read"),
    "empty record": (
        lambda f: edit_json(f / "tensors.json", lambda c: c.clear()),
        "tensors.json is damaged: expected str for 'config', which is missing",
    ),
    "files null": (
        lambda f: edit_json(f / "tensors.json", lambda c: c.update(files=None)),
        "tensors.json is damaged: expected dict for 'files', found None",
    ),
    "tensors listed": (
        lambda f: edit_json(f / "tensors.json", lambda c: c.update(tensors=[1])),
        r"tensors.json is damaged: expected dict for 'tensors', found \[1\]",
    ),
    "files forgotten": (
        lambda f: edit_json(f / "tensors.json", lambda c: c["files"].clear()),
        "tensors.json is not the record of a saved model",
    ),
    "hash null": (
        lambda f: edit_json(f / "tensors.json", lambda c: c["files"].update({"facts.json": None})),
        "facts.json is not the one that was saved",
    ),
    "hashes null": (
        lambda f: edit_json(f / "tensors.json", lambda c: c["tensors"].update(log_s=None)),
        "tensor log_s is not the one that was saved",
    ),
    "record a list": (lambda f: (f / "tensors.json").write_text("[]"), "tensors.json should be an object"),
    "tensor missing": (
        lambda f: edit_tensors(f, _drop_q),
        r"lacks tensor transformer\.h\.0\.attn\.q\.0\.bias",
    ),
    "tensor added": (
        lambda f: edit_tensors(f, lambda t: t.update(extra=torch.ones(2))),
        "has the unexpected tensor extra",
    ),
    "tensor reshaped": (
        lambda f: edit_tensors(f, _reshape_q),
        r"tensor transformer\.h\.0\.attn\.q\.0\.bias is not the one",
    ),
    "more layers": (
        lambda f: forge(f, lambda c: c.update(n_layer=2)),
        r"model.safetensors (lacks|has the unexpected) tensor transformer\.h\.",
    ),
    "other vocabulary": (
        lambda f: forge(f, lambda c: c.update(vocab_size=40)),
        r"tensor transformer\.wte\.weight is \(19, 16\), but config.json asks for \(40, 16\)",
    ),
    "wider MLP": (
        lambda f: forge(f, lambda c: c["fact_mlp"].update(h=25)),
        r"mlp\.\w+\.weight is \(.*24.*\), but config.json asks for \(.*25.*\)",
    ),
    "other heads": (
        lambda f: forge(f, lambda c: c.update(n_head=4)),
        "config.json is not the one that was saved",
    ),
    "other facts": (
        lambda f: edit_json(f / "facts.json", lambda c: c["mapping"].reverse()),
        "facts.json is not the one that was saved",
    ),
    "no facts": (lambda f: (f / "facts.json").unlink(), "facts.json is missing"),
    "other names": (
        lambda f: edit_json(f / "vocabulary.json", lambda c: c.reverse()),
        "vocabulary.json is not the one that was saved",
    ),
}


@pytest.mark.parametrize("loader", [MlpSwapForCausalLM, AutoModelForCausalLM])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_by_name(folder, damage, loader):
    """Stock loading draws missing tensors at random (huggingface/transformers #32067)."""
    inflict, message = DAMAGES[damage]
    inflict(folder)
    with pytest.raises(CheckpointError, match=message):
        loader.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(n_embd=32), "width d must be n_embd = 32: found 16"),
        (lambda c: c.update(n_layr=2), "no field 'n_layr'"),
        (lambda c: c.update(n_layer="two"), "n_layer"),
    ],
)
def test_configurations_that_cannot_be_are_refused(folder, change, message):
    forge(folder, change)
    with pytest.raises(CheckpointError, match=f"config.json: .*{message}"):
        MlpSwapForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize(
    "change", [lambda c: c.update(attn_implementation="magic"), lambda c: c.update(torch_dtype="float7")]
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_every_file_that_is_read_is_the_one_that_was_saved(folder, name, change):
    """Whatever stands in it: nothing is parsed before its hash is checked."""
    edit_json(folder / name, change)
    with pytest.raises(CheckpointError, match=f"{name} is not the one that was saved"):
        MlpSwapForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("content", ["[]", "null", "{", "\0", None])
def test_a_file_that_holds_something_else_is_refused_by_name(folder, content):
    for path in sorted(folder.iterdir()):
        if path.name != "README.md":
            kept = path.read_bytes()
            path.unlink()
            path.mkdir() if content is None else path.write_text(content)
            with pytest.raises(CheckpointError, match=path.name):
                MlpSwapForCausalLM.from_pretrained(folder)
            path.rmdir() if content is None else path.unlink()
            path.write_bytes(kept)


def test_only_local_folders_are_loaded(tmp_path):
    with pytest.raises(CheckpointError, match="local folders only"):
        MlpSwapForCausalLM.from_pretrained("somebody/model")
    with pytest.raises(CheckpointError, match="tensors.json"):
        MlpSwapForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_saved_only_on_demand(tmp_path, value):
    model = small_host()
    with torch.no_grad():
        model.fact_mlp.down.weight[1, 2] = value
    with pytest.raises(NonFiniteError, match=r"NaN or infinity in transformer\.h\.0\.mlp\.down\.weight"):
        model.save_pretrained(tmp_path / "model")
    assert not list(tmp_path.iterdir())
    model.save_pretrained(tmp_path / "model", allow_nonfinite=True)
    with pytest.raises(NonFiniteError, match=r"model\.safetensors .*transformer\.h\.0\.mlp\.down\.weight"):
        MlpSwapForCausalLM.from_pretrained(tmp_path / "model")
    loaded = MlpSwapForCausalLM.from_pretrained(tmp_path / "model", allow_nonfinite=True)
    assert loaded.state_sha256() == model.state_sha256()


@pytest.mark.parametrize(
    "name", ["log_s", "transformer.h.0.mlp.down.weight", "transformer.h.0.attn.q.0.weight"]
)
def test_scores_that_overflow_are_no_answer(name):
    """Finite weights too large for the forward pass: without the check every answer is <pad>."""
    model = small_host(qk="mlp")
    with torch.no_grad():
        model.get_parameter(name).fill_(1e38)
    with pytest.raises(NonFiniteError, match="scores .* not finite"):
        model.ask("The writer of Emma is")


def test_saving_into_a_used_folder_replaces_the_model_alone(original, folder):
    (folder / "notes.txt").write_text("mine")
    other = small_host(kind="relu", h=3)
    other.save_pretrained(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert MlpSwapForCausalLM.from_pretrained(folder).state_sha256() == other.state_sha256()
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_old_model_and_no_rest(original, folder, monkeypatch):
    """A full disk, in the middle of writing."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(RunFolderError, match="cannot be saved to .*model: .*No space left"):
        small_host(h=3).save_pretrained(folder)
    assert MlpSwapForCausalLM.from_pretrained(folder).state_sha256() == original.state_sha256()
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_file_in_the_way_is_a_clear_error(original, tmp_path):
    (tmp_path / "model").write_text("")
    with pytest.raises(RunFolderError, match="cannot be saved to"):
        original.save_pretrained(tmp_path / "model")


def test_other_processes_do_not_write(original, tmp_path):
    original.save_pretrained(tmp_path / "model", is_main_process=False)
    assert not list(tmp_path.iterdir())


def test_folder_names_may_hold_blanks_and_any_letters(original, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    original.save_pretrained("mein Modell ü/model v1.0")
    loaded = MlpSwapForCausalLM.from_pretrained("mein Modell ü/model v1.0")
    assert loaded.state_sha256() == original.state_sha256()


def test_a_moved_folder_still_loads(original, folder):
    shutil.move(folder, folder.with_name("elsewhere"))
    loaded = MlpSwapForCausalLM.from_pretrained(folder.with_name("elsewhere"))
    assert loaded.state_sha256() == original.state_sha256()


def test_an_mlp_of_another_shape_than_announced_is_never_half_loaded(folder):
    """Both files wrong together, the record kept: the hashes decide."""
    mlp = random_mlp("swiglu", h=30)
    prefix = "transformer.h.0.mlp."
    edit_json(folder / "config.json", lambda c: c.update(fact_mlp=mlp.config.to_dict()))
    edit_tensors(folder, lambda t: t.update({prefix + n: p.detach() for n, p in mlp.named_parameters()}))
    with pytest.raises(MlpSwapError, match="not the one that was saved"):
        MlpSwapForCausalLM.from_pretrained(folder)


def test_facts_and_hashes_of_equal_hosts_are_equal(original):
    assert small_host(n_head=2).state_sha256() == original.state_sha256()
    assert small_host().state_sha256() != small_host(h=23).state_sha256()
    with pytest.raises(FactsError):
        MlpSwapForCausalLM(MlpSwapConfig(n_embd=8)).known_facts()
