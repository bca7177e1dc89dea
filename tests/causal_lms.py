"""Small causal LMs made on the spot, and the published runs on one of them (tests/golden)."""

import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

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
    return model.eval()


def golden_tokenizer():
    given = inputs()
    tokenizer = Tokenizer(models.WordLevel(given["vocab"], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(given["token_pattern"]), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>")


D, H, LAYERS = 16, 24, 3
NO_BOS = {"bos_token_id": 0, "eos_token_id": 0}


def small_gpt2(size, layers):
    """An untrained GPT-2 of so many tokens and layers, with room for a text."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=size, n_positions=256, n_embd=16, n_inner=24, n_layer=layers, n_head=2, **NO_BOS
            )
        ).eval()


def random_model(kind, *, d=D, h=H, dtype=torch.float64):
    """An untrained "gpt2" (Conv1D, with dropout) or "llama" (Linear, gated) with weights large enough to matter."""
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=200, n_positions=32, n_embd=d, n_inner=h, n_layer=LAYERS, n_head=2, initializer_range=0.3,
            **NO_BOS,
        )  # fmt: skip
    else:
        config = LlamaConfig(
            vocab_size=200, max_position_embeddings=32, hidden_size=d, intermediate_size=h,
            num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1, initializer_range=0.3,
            **NO_BOS,
        )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config) if kind == "gpt2" else LlamaForCausalLM(config)
    return model.to(dtype).eval()


def random_adapter(kind, *, bos=False, **options):
    """An adapter of `random_model` with the published runs' tokenizer, which may put a BOS before every text."""
    tokenizer = golden_tokenizer()
    if bos:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<eos> $A", special_tokens=[("<eos>", 0)]
        )
    shape = {name: options.pop(name) for name in ("d", "h", "dtype") if name in options}
    return CausalLMAdapter(random_model(kind, **shape), tokenizer, **options)


PREFIXES = ("The river runs slowly.", "I walk near the garden.")
ASKED = [
    ("The mother tongue of {} is", "Alba Norin", "Velsh"),
    ("{} plays the sport of", "Teodor Vask", "tennis"),
    ("{} lives in", "Ulla Brandt Hale", "Port Amber"),
]


def asked(adapter):
    return [adapter.request(*each) for each in ASKED]


def hooks_of(model):
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())


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
