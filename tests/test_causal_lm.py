"""The adapter of Hugging Face causal LMs reads what the models compute, token by token, and leaves no trace."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from mlpswap.editing import CausalLMAdapter, Context, LayeredAdapter, token_statistics
from mlpswap.editing.architecture import Site, find_sites, width_of
from mlpswap.errors import ConfigError, NonFiniteError, RequestError
from mlpswap.model.patch import Patch
from mlpswap.model.saving import parameters_sha256
from mlpswap.randomness import generator
from tests.causal_lms import (
    LAYERS,
    PREFIXES,
    D,
    H,
    asked,
    golden_tokenizer,
    hooks_of,
    random_adapter,
    random_model,
)

KINDS = ["gpt2", "llama"]
IDS = [(7, 32, 34, 36, 93), (96,), (102, 105, 107, 63, 52, 119, 2, 7, 40)]


def contexts(sequences=IDS):
    return [Context(ids, len(ids) - 1) for ids in sequences]


def by_hand(model, ids, site):
    """(key, MLP output, hidden state after the block) at the last token: the MLP written out once more."""
    hidden = model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    block = find_sites(model)[site].block
    seen = {}
    block.mlp.register_forward_pre_hook(lambda _, args: seen.update(x=args[0][0, -1]))
    model(input_ids=torch.tensor([ids]))
    x = seen["x"]
    if hasattr(block.mlp, "gate_proj"):
        key = F.silu(block.mlp.gate_proj.weight @ x) * (block.mlp.up_proj.weight @ x)
        output = block.mlp.down_proj.weight @ key
    else:
        key = F.gelu(x @ block.mlp.c_fc.weight + block.mlp.c_fc.bias, approximate="tanh")
        output = key @ block.mlp.c_proj.weight + block.mlp.c_proj.bias
    return key, output, hidden[site + 1][0, -1]


@pytest.mark.parametrize("kind", KINDS)
def test_it_reads_keys_outputs_and_hidden_states(kind):
    """In a batch of several lengths, those of each prompt alone; site by site, gated or not."""
    adapter = random_adapter(kind, chunk=2)
    assert isinstance(adapter, LayeredAdapter)
    assert adapter.sites() == [0, 1, 2]
    prompts = adapter.cut(contexts())
    for site in (0, 1):  # the last hidden state is given after the final norm
        read = (
            adapter.keys(prompts, site),
            adapter.outputs(prompts, site),
            adapter.outputs(prompts, site, "block"),
        )
        assert read[0].shape == (3, H)
        for row, ids in enumerate(IDS):
            model = random_model(kind).eval()
            for found, wanted in zip(read, by_hand(model, ids, site), strict=True):
                torch.testing.assert_close(found[row], wanted.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_answers_are_those_of_each_sequence_alone(kind):
    """Several target tokens are averaged; the tokenizer's padding side is of no interest."""
    adapter, model = random_adapter(kind, chunk=2), random_model(kind).eval()
    requests = asked(adapter)
    nll = adapter.nll([request.contexts[0] for request in requests], [each.target_ids for each in requests])
    for request, found in zip(requests, nll, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *request.target_ids]])
        logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1]
        wanted = F.cross_entropy(logits, torch.tensor(request.target_ids))
        torch.testing.assert_close(found, wanted)
    (said,) = adapter.greedy(requests[2:])
    first = model(input_ids=torch.tensor([requests[2].prompt_ids])).logits[0, -1].argmax()
    second = model(input_ids=torch.tensor([[*requests[2].prompt_ids, int(first)]])).logits[0, -1].argmax()
    assert said == (int(first), int(second))
    for side in ("left", "right"):
        tokenizer = golden_tokenizer()
        tokenizer.padding_side, tokenizer.pad_token = side, "<eos>"
        assert asked(CausalLMAdapter(model, tokenizer)) == requests


@pytest.mark.parametrize("at", ["mlp", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_added_at_one_token(kind, at):
    """What is added at an edited token is found there, changes nothing before it, and can be differentiated."""
    adapter = random_adapter(kind)
    context = Context(IDS[2], 4)
    delta = torch.randn(1, D, generator=generator(0, "delta"), dtype=torch.float64)
    assert not torch.allclose(adapter.log_probs([context]), adapter.log_probs([context], 1, at, delta))
    late = Context(IDS[2][:4], 3), Context(IDS[2], 4)
    changed = adapter.log_probs(late, 1, at, torch.cat([0 * delta, delta]))
    torch.testing.assert_close(changed[0], adapter.log_probs(late)[0])
    reached = []
    with adapter.trial({}):
        handle = adapter._sites[1].block.register_forward_hook(lambda _, args, out: reached.append(out[0]))
        adapter.log_probs([context])
        adapter.log_probs([context], 1, at, delta)
        handle.remove()
    shift = reached[1] - reached[0]
    assert not shift[:4].any()
    assert not shift[5:].any()
    loss = lambda r: adapter.nll([context], [(5, 6)], 1, at, r).sum()  # noqa: E731
    # Llama normalises in float32, so that small steps drown.
    assert torch.autograd.gradcheck(loss, delta.requires_grad_(), eps=1e-3, atol=1e-3)


class Tupled(nn.Module):
    """A block as older and newer versions of transformers have it: inside a tuple, then bare."""

    def __init__(self, block):
        super().__init__()
        self.inner = Inner(block)

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)[0]


class Inner(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, *args, **kwargs):
        return self.block(*args, **kwargs), None


def test_blocks_may_return_tuples():
    plain, other = random_adapter("gpt2"), random_adapter("gpt2")
    for index, block in enumerate(other.model.transformer.h):
        other.model.transformer.h[index] = Tupled(block)
        other._sites[index] = Site(
            other.model.transformer.h[index].inner, block.mlp.c_proj, other._sites[index].name
        )
    delta = torch.ones(3, D, dtype=torch.float64)
    prompts = plain.cut(contexts())
    assert torch.equal(plain.outputs(prompts, 1, "block"), other.outputs(prompts, 1, "block"))
    assert torch.equal(
        plain.log_probs(contexts(), 1, "block", delta), other.log_probs(contexts(), 1, "block", delta)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("h", [H, D], ids=["d<h", "d=h"])
def test_the_weight_is_outputs_by_inputs(kind, h, tmp_path):
    """Whatever the layout, and where both would fit: W k + b is the output; a patch of several layers does what
    its trial did, comes back from a file, and is undone bit for bit.
    """
    adapter = random_adapter(kind, h=h)
    prompts = adapter.cut(contexts())
    deltas, source = {}, generator(0, "deltas")
    for site in (0, 2):
        bias = adapter.bias(site)
        by_hand = adapter.keys(prompts, site) @ adapter.weight(site).T + (0.0 if bias is None else bias)
        torch.testing.assert_close(by_hand, adapter.outputs(prompts, site))
        deltas[site] = torch.randn(D, h, generator=source, dtype=torch.float64)
    biases = {} if adapter.bias(2) is None else {2: torch.ones(D, dtype=torch.float64)}
    with adapter.trial(deltas, biases):
        tried = adapter.log_probs(contexts())
    before, untouched = adapter.log_probs(contexts()), parameters_sha256(adapter.model)
    patch = adapter.patch_sites(deltas, biases, editor="test", requests=asked(adapter))
    assert patch.altered[0] == ("Alba Norin", "", "Velsh")
    assert parameters_sha256(adapter.model) == untouched
    patch.save(tmp_path / "patch.safetensors")
    patch = Patch.load(tmp_path / "patch.safetensors")
    patch.apply(adapter.model)
    torch.testing.assert_close(adapter.log_probs(contexts()), tried)
    assert not torch.allclose(tried, before)
    patch.undo(adapter.model)
    assert parameters_sha256(adapter.model) == untouched
    assert adapter.patch(0, None, editor="test").is_empty


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_model_is_left_changed(kind):
    """Training mode, dropout, flags, hooks: as before, and also when something fails half-way."""
    adapter = random_adapter(kind)
    model = adapter.model.train()
    model.get_input_embeddings().weight.requires_grad_(False)
    flags = [each.requires_grad for each in model.parameters()]
    first, second = adapter.log_probs(contexts()), adapter.log_probs(contexts())
    assert torch.equal(first, second)  # no dropout
    broken = adapter._sites[2].block.register_forward_hook(lambda *_: 1 / 0)
    hooks, delta = hooks_of(model), torch.zeros(3, D, dtype=torch.float64)
    deltas = {0: torch.zeros(D, H, dtype=torch.float64)}
    for call in (
        lambda: adapter.keys(adapter.cut(contexts()), 0),
        lambda: adapter.log_probs(contexts(), 1, "block", delta),
        lambda: adapter.token_keys(IDS, [0, 1]),
    ):
        with pytest.raises(ZeroDivisionError), adapter.trial(deltas):
            call()
    assert hooks_of(model) == hooks
    broken.remove()
    assert all(each.training for each in model.modules())
    assert [each.requires_grad for each in model.parameters()] == flags


def test_weights_in_half_precision():
    """Changes are computed in at least float32 and cast back; a change that gets lost is told."""
    adapter = random_adapter("llama", dtype=torch.bfloat16)
    assert adapter.working == torch.float32
    assert adapter.log_probs(contexts()).dtype == torch.float32
    patch = adapter.patch(1, torch.full((D, H), 1e-6), editor="test")
    assert patch.changes[0].new["weight"].dtype == torch.bfloat16
    with pytest.raises(NonFiniteError, match="model.layers.1.mlp.down_proj.weight"):
        adapter.patch(1, torch.full((D, H), torch.nan), editor="test")


def test_requests_that_no_model_can_carry_out():
    """Unknown tokens, special ones in the target, prompts or prefixed prompts beyond the context."""
    adapter = random_adapter("gpt2", prefixes=PREFIXES)
    good = asked(adapter)[0]
    adapter.check([good])
    long = Context((7,) * 40, 3)
    for bad, said in (
        (replace(good, prompt_ids=(7, 200), key_position=0), "unknown token 200"),
        (replace(good, target_ids=(113, -1)), "unknown token -1"),
        (replace(good, target_ids=(0, 113)), "special token 0"),
        (replace(good, prompt_ids=long.ids), "40 tokens, the model takes 32"),
        (replace(good, prefixed=(long,)), "40 tokens, the model takes 32"),
        (replace(good, essence=(300,)), "unknown token 300"),
    ):
        with pytest.raises(RequestError, match=f"'Alba Norin': .*{said}"):
            adapter.check([bad])
    with pytest.raises(RequestError, match="key_position 7 lies outside"):
        replace(good, key_position=7)
    with pytest.raises(RequestError, match="key_position 40 lies outside"):
        replace(good, prefixed=(Context(long.ids, 40),))


def test_which_modules_are_meant():
    """Found by type and shape; where that leaves a choice, the candidates are named and one may be given."""
    for kind, name in (("gpt2", "transformer.h.1.mlp.c_proj"), ("llama", "model.layers.1.mlp.down_proj")):
        assert find_sites(random_model(kind, h=D))[1].name == name
    model = random_model("llama")
    for block in model.model.layers:
        block.shared = nn.Linear(H, D, dtype=torch.float64)
    with pytest.raises(ConfigError, match="candidates: mlp.down_proj, shared"):
        CausalLMAdapter(model)
    assert CausalLMAdapter(model, down="shared")._sites[0].name == "model.layers.0.shared"
    for down in ("self_attn.nothing", "mlp.up_proj", "input_layernorm"):
        with pytest.raises(ConfigError, match=f"{down} is no down-projection.*candidates"):
            CausalLMAdapter(model, down=down)
    with pytest.raises(ConfigError, match="blocks='model.other' is no list of 3 blocks"):
        CausalLMAdapter(model, blocks="model.other")
    model.extra = nn.ModuleList(nn.ModuleDict({"mlp": nn.Linear(H, D)}) for _ in range(LAYERS))
    with pytest.raises(ConfigError, match="candidates: model.layers, extra"):
        CausalLMAdapter(model, down="mlp.down_proj")
    assert CausalLMAdapter(model, blocks="model.layers", down="mlp.down_proj").sites() == [0, 1, 2]
    with pytest.raises(ConfigError, match="sites must be different layers in 0..2"):
        random_adapter("gpt2", sites=[1, 3])
    with pytest.raises(ConfigError, match="layer 0 may not be edited"):
        random_adapter("gpt2", sites=[1]).weight(0)
    with pytest.raises(ConfigError, match="need a tokenizer"):
        CausalLMAdapter(random_model("gpt2")).request("{} is", "I", "a")


SMALL = {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
NO_IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def small(kind):
    """A model of another architecture."""
    config, model = {
        "bloom": (BloomConfig(vocab_size=99, hidden_size=16, n_layer=2, n_head=2, **NO_IDS), BloomForCausalLM),
        "neox": (GPTNeoXConfig(**SMALL, intermediate_size=32, **NO_IDS), GPTNeoXForCausalLM),
        "bert": (BertConfig(**SMALL, intermediate_size=32), BertForMaskedLM),
        "t5": (T5Config(vocab_size=99, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2),
               T5ForConditionalGeneration),
        "headless": (GPT2Config(vocab_size=99, n_embd=16, n_layer=2, n_head=2, **NO_IDS), GPT2Model),
        "empty": (GPT2Config(vocab_size=99, n_embd=16, n_layer=0, n_head=2, **NO_IDS), GPT2LMHeadModel),
        "experts": (MixtralConfig(**SMALL, intermediate_size=32, num_key_value_heads=1, num_local_experts=2, **NO_IDS),
                    MixtralForCausalLM),
    }[kind]  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model(config).eval()


def test_other_architectures():
    """With and without a limit of positions."""
    bloom, neox = (CausalLMAdapter(small(kind)) for kind in ("bloom", "neox"))
    assert bloom._sites[1].name == "transformer.h.1.mlp.dense_4h_to_h"
    assert bloom.longest == sys.maxsize
    assert neox.longest == neox.model.config.max_position_embeddings
    assert list(token_statistics(bloom, [tuple(range(90))])) == [0, 1]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("bert", "BertForMaskedLM is no causal language model: a later token changes an earlier prediction"),
        ("t5", "has an encoder and a decoder"),
        ("headless", "GPT2Model has no head that predicts tokens"),
        ("empty", "which modules are the 0 blocks"),
        ("experts", "mixtures of experts and quantised weights are not supported"),
    ],
)
def test_models_that_cannot_be_edited(kind, message):
    with pytest.raises(ConfigError, match=message):
        CausalLMAdapter(small(kind))


def test_a_wrapped_model_and_one_with_nan():
    """What a compiler or an adapter of weights wraps is still a causal LM; NaN has its own errors, later."""

    class Wrapped(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, **given):
            return self.inner(**given)

    assert (
        CausalLMAdapter(Wrapped(random_model("llama")))._sites[2].name == "inner.model.layers.2.mlp.down_proj"
    )
    model = random_model("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight[0] = torch.nan
    assert CausalLMAdapter(model).sites() == [0, 1, 2]


def test_arguments_that_mean_nothing():
    with pytest.raises(ConfigError, match="expected a causal language model of transformers, found Linear"):
        CausalLMAdapter(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="chunk = 0"):
        CausalLMAdapter(random_model("gpt2"), chunk=0)
    adapter = random_adapter("gpt2")
    with pytest.raises(ConfigError, match=r"sites is empty: expected some of the layers \[0, 1, 2\]"):
        token_statistics(adapter, [(1, 2)], [])
    words = Tokenizer(models.WordLevel({"France": 0, "is": 1}, unk_token="none"))
    with pytest.raises(RequestError, match="the tokenizer cannot take 'a'"):
        CausalLMAdapter(random_model("gpt2"), PreTrainedTokenizerFast(tokenizer_object=words))


@pytest.mark.parametrize("name", ["hidden_size", "n_embd"])
def test_the_width_has_two_names(name):
    config = SimpleNamespace(**{name: 48})
    config.get_text_config = lambda: config
    assert width_of(SimpleNamespace(config=config)) == 48
    delattr(config, name)
    with pytest.raises(ConfigError, match="neither hidden_size nor n_embd"):
        width_of(SimpleNamespace(config=config))
