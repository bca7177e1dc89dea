"""Small causal LMs, and the published runs on one of them (tests/golden)."""

import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mlpswap import registry
from mlpswap.config import build_options
from mlpswap.editing import CausalLMAdapter, SecondMoment

GOLDEN = Path(__file__).parent / "golden"


@cache
def golden(name):
    """(numbers, what they belong to) of the published runs of one editor."""
    return load_file(GOLDEN / f"e2e_{name}.safetensors"), json.loads(
        (GOLDEN / f"e2e_{name}.json").read_text()
    )


def inputs():
    return json.loads((GOLDEN / "e2e_inputs.json").read_text())


def golden_model():
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**inputs()["config"], **no_dropout, bos_token_id=0, eos_token_id=0))
    model = model.to(torch.float64)
    missing, unexpected = model.load_state_dict(
        load_file(GOLDEN / "tiny_gpt2_model.safetensors"), strict=False
    )
    assert missing == ["lm_head.weight"]  # tied
    assert not unexpected
    return model


def golden_tokenizer():
    given = inputs()
    tokenizer = Tokenizer(models.WordLevel(given["vocab"], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(given["token_pattern"]), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>")


class Exam:
    """The tiny GPT-2 of the published runs, and its six requests."""

    def __init__(self, name, *, prefixed=True):
        self.numbers, about = golden(name)
        self.runs, self.settings = about["runs"], about.get("hparams", {})
        self.model = golden_model()
        prefixes = [text.removesuffix(" {}") for text in inputs()["context_templates_rome"][1:]]
        self.adapter = CausalLMAdapter(self.model, golden_tokenizer(), prefixes=prefixes if prefixed else ())
        self.requests = [
            self.adapter.request(each["prompt"], each["subject"], each["target"], id=str(each["case_id"]))
            for each in inputs()["requests"]
        ]
        self.statistics = {
            site: SecondMoment(self.numbers[f"C.{site}"], 1)
            for site in range(3)
            if f"C.{site}" in self.numbers
        }

    def edit(self, name, requests, original, state=None):
        editor = registry.get(registry.EDITORS, name)
        config = build_options(editor.Config, {"protocol": "original", "original": original}, name)
        return editor.edit(self.adapter, requests, config, statistics=self.statistics, state=state)
