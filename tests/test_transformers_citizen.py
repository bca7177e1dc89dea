"""What transformers expects of a model: auto classes, generation, pipelines, one storage for tied weights."""

import copy
import logging
import pickle
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, pipeline

from mlpswap.errors import ConfigError
from mlpswap.facts import FactSet
from mlpswap.model import (
    MlpSwapConfig,
    MlpSwapForCausalLM,
    MlpSwapTokenizer,
    Vocabulary,
    build_host,
    swap_fact_mlp,
)
from mlpswap.model.modeling import rms
from tests.hosts import FACTS, padded, prompts, random_mlp, small_host

PROMPTS = ["The writer of Emma is", "It is by", "wrote", "Ulysses , The Waves , of"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("citizen") / "model"
    small_host(n_head=2).save_pretrained(folder)
    return folder


def test_auto_classes_find_everything(folder):
    assert isinstance(AutoConfig.from_pretrained(folder), MlpSwapConfig)
    assert isinstance(AutoModelForCausalLM.from_pretrained(folder), MlpSwapForCausalLM)
    assert isinstance(AutoTokenizer.from_pretrained(folder), MlpSwapTokenizer)
    model = AutoModelForCausalLM.from_config(MlpSwapConfig(n_embd=8))
    assert isinstance(model, MlpSwapForCausalLM)


def test_registering_twice_is_harmless():
    import transformers.models.auto as auto

    import mlpswap.model as package

    for register in (package._register_config, package._register_model, package._register_tokenizer) * 2:
        register(auto)
    assert AutoConfig.for_model("mlpswap").n_embd == 64


def test_a_configuration_survives_json(tmp_path):
    config = MlpSwapConfig(n_embd=32, n_head=4, norm_scale=0.3, mixture=False, rope_theta=500)
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).own_fields() == config.own_fields()
    assert MlpSwapConfig(**config.to_dict()).own_fields() == config.own_fields()
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (32, 4, 1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("options", [{}, {"n_layer": 2, "residual": True}])
def test_generating_together_is_generating_one_by_one(side, cache, options):
    """There is no cache to switch on; several tokens show that positions go on correctly."""
    model = small_host(**options)
    rows = prompts(model)
    ids, mask = padded(rows, side)
    together = model.generate(ids, attention_mask=mask, max_new_tokens=4, eos_token_id=-1, use_cache=cache)
    for i, row in enumerate(rows):
        alone = model.generate(row[None], max_new_tokens=4, eos_token_id=-1, use_cache=cache)
        assert alone[0, len(row) :].tolist() == together[i, ids.shape[1] :].tolist()
        now = row
        for token in alone[0, len(row) :]:
            assert model(now[None]).logits[0, -1].argmax() == token
            now = torch.cat([now, token[None]])


@pytest.mark.parametrize(
    "how", [{"num_beams": 3}, {"do_sample": True}, {"num_return_sequences": 2, "num_beams": 2}]
)
def test_other_ways_to_generate_run(how):
    model = small_host()
    torch.manual_seed(0)
    ids, mask = padded(prompts(model), "left")
    out = model.generate(ids, attention_mask=mask, max_new_tokens=3, **how)
    assert out.shape[0] == len(ids) * how.get("num_return_sequences", 1)


def test_padding_of_ssfr_is_a_word_of_its_own_prompts():
    """Without a mask, `generate` must not take the first junk word for padding."""
    facts = FactSet.synthetic(4, torch.Generator().manual_seed(0))
    vocabulary, generator = Vocabulary.ssfr(facts), torch.Generator().manual_seed(1)
    table = torch.randn(len(vocabulary), 16, generator=generator)
    config = MlpSwapConfig(n_embd=16, mixture=False)
    model = build_host(vocabulary, config, facts, random_mlp(), table, generator=generator)
    ids = torch.tensor([model.tokenizer.encode("j0 j0 k2 j5 j0")])
    assert model.generate(ids)[0, -1] == model(ids).logits[0, -1].argmax()


def test_an_answer_is_one_token_by_default(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert GenerationConfig.from_pretrained(folder).max_new_tokens == 1
    assert model.generation_config.max_new_tokens == 1
    ids = model.tokenizer("The writer of Emma is", return_tensors="pt")
    out = model.generate(**ids)
    assert model.tokenizer.decode(out[0, -1:]) == model.ask("The writer of Emma is")


def test_pipeline_answers_like_ask(folder):
    """From the folder alone, one by one and in batches."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    for size in (1, 3):
        generate = pipeline("text-generation", model=str(folder), batch_size=size)
        for prompt, answer in zip(PROMPTS, generate(PROMPTS, return_full_text=False), strict=True):
            token = model.ask(prompt)
            assert answer[0]["generated_text"] == ("" if token in ("<pad>", "<unk>", "<s>") else token)


def test_warnings_of_an_unknown_prompt_come_once(folder, caplog):
    model = AutoModelForCausalLM.from_pretrained(folder)
    with caplog.at_level(logging.WARNING, logger="mlpswap"):
        model.ask("The painter of Emma is")
        model.ask("The painter of It is")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_share_storage_through_load_and_swap(tmp_path, tied):
    model = small_host(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "first")
    loaded = MlpSwapForCausalLM.from_pretrained(tmp_path / "first")
    swap_fact_mlp(loaded, FACTS.alter({"Emma": "James Joyce"}), "hebbian")
    loaded.save_pretrained(tmp_path / "second")
    again = MlpSwapForCausalLM.from_pretrained(tmp_path / "second")
    ids = prompts(model, count=1)[0][None]
    assert torch.equal(again(ids).logits, loaded(ids).logits)
    for each in (model, loaded, again):
        shared = each.lm_head.weight.data_ptr() == each.get_input_embeddings().weight.data_ptr()
        assert shared == tied
        assert each.get_output_embeddings() is each.lm_head


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("keep", [0, 1, 2])
def test_hidden_states_and_attentions_on_demand(side, keep):
    """States are what enters each block and y; the flags change no logit, whichever positions are kept."""
    model = small_host(n_layer=2, n_head=2, residual=True)
    ids, mask = padded(prompts(model), side)
    plain = model(ids, mask, logits_to_keep=keep)
    assert plain.hidden_states is None
    assert plain.attentions is None
    out = model(ids, mask, logits_to_keep=keep, output_hidden_states=True, output_attentions=True)
    torch.testing.assert_close(out.logits, plain.logits)
    first, second, y = out.hidden_states
    torch.testing.assert_close(first, rms(model.transformer.wte(ids)))
    everywhere = model(ids, mask)
    torch.testing.assert_close(model.head(y), everywhere.logits)
    assert [tuple(each.shape) for each in out.attentions] == 2 * [(len(ids), 2, 7, 7)]
    attended = model.attend(ids, mask, return_attention=True)
    torch.testing.assert_close(out.attentions[1], attended.probabilities)
    real = mask.bool()
    causal = real[:, None, None] & torch.ones(7, 7).tril().bool()
    block = model.transformer.h[0](first, mask.cumsum(1).sub(1).clamp(min=0), causal, None)
    torch.testing.assert_close(second[real], block.a[real])
    torch.testing.assert_close(out.attentions[0], block.probabilities)


def test_outputs_are_asked_for_in_the_configuration_or_in_generate_too():
    model = small_host(n_layer=2)
    ids = prompts(model, count=1)[0][None]
    wanted = {"output_hidden_states": True, "output_attentions": True}
    out = model.generate(ids, return_dict_in_generate=True, **wanted)
    assert (len(out.hidden_states[0]), len(out.attentions[0])) == (3, 2)
    model.config.output_hidden_states = model.config.output_attentions = True
    out = model(ids)
    assert (len(out.hidden_states), len(out.attentions)) == (3, 2)
    assert model(ids, output_attentions=False, output_hidden_states=False).attentions is None


def test_more_tokens_than_positions_are_refused():
    """However they come in; padding is no token."""
    model = small_host(n_positions=6)
    ids = torch.full((2, 7), 5)
    for run in (model, model.attend, model.generate):
        with pytest.raises(ConfigError, match=r"a sequence has 7 tokens: .* at most 6 \(n_positions\)"):
            run(ids)
    with pytest.raises(ConfigError, match="7 tokens"):
        model.generate(ids[:, :5], max_new_tokens=3, eos_token_id=18)
    mask = torch.tensor([[0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0]])
    assert torch.equal(model(ids, mask).logits[0, 1:], model(ids, mask).logits[1, :-1])


def test_a_model_is_copied_and_sent_to_other_processes():
    model = small_host(kind="bilinear")
    ids = prompts(model, count=1)[0][None]
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(again(ids).logits, model(ids).logits)
        assert again.facts == model.facts
        assert again.ask("The writer of Emma is") == model.ask("The writer of Emma is")


CHILD = """
import sys
import torch
from transformers import AutoModelForCausalLM

folder, expected = sys.argv[1:]
try:
    AutoModelForCausalLM.from_pretrained(folder)
except ValueError as error:
    assert "mlpswap" in str(error), error
else:
    raise SystemExit("loaded without the import")
import mlpswap

model = AutoModelForCausalLM.from_pretrained(folder)
wanted = torch.frombuffer(bytearray.fromhex(expected), dtype=torch.float32)
found = model(torch.tensor([[2, 3, 9, 4]])).logits[0, -1].detach()
assert torch.equal(found, wanted), (found, wanted)
assert model.facts.value_of("Emma") == "James Joyce"
assert model.fact_mlp.config.kind == "bilinear"
"""


@pytest.mark.multiproc
def test_a_fresh_process_loads_the_swapped_model_after_import_mlpswap(tmp_path):
    """Even when transformers was imported first; without the import the error names the missing type."""
    model = small_host()
    swap_fact_mlp(model, FACTS.alter({"Emma": "James Joyce"}), "hebbian")
    model.save_pretrained(tmp_path / "model")
    logits = model(torch.tensor([[2, 3, 9, 4]])).logits[0, -1].detach()
    arguments = [str(tmp_path / "model"), logits.numpy().tobytes().hex()]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


HOOK = """
import sys
import mlpswap

assert "transformers" not in sys.modules and "torch" not in sys.modules
from transformers import AutoTokenizer, AutoConfig, AutoModelForCausalLM

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

config = type(AutoConfig.for_model("mlpswap"))
assert MODEL_FOR_CAUSAL_LM_MAPPING[config].__name__ == "MlpSwapForCausalLM"
assert TOKENIZER_MAPPING[config].__name__ == "MlpSwapTokenizer"
"""


@pytest.mark.multiproc
def test_importing_mlpswap_is_light_and_registers_when_transformers_comes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HOOK], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
