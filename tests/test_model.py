"""The host's forward pass, piece by piece, against a naive reference and under every option."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from mlpswap.errors import ConfigError, FactsError, MlpSwapError
from mlpswap.model import MlpSwapConfig, MlpSwapForCausalLM, Vocabulary, build_host
from tests.hosts import FACTS, WORDS, padded, prompts, random_mlp, small_host

OPTIONS = {
    "plain": {},
    "two heads": {"n_head": 2},
    "two layers": {"n_layer": 2, "residual": True},
    "learned": {"qk": "linear", "value_output": "learned", "norm": "learned", "n_head": 4},
    "fact MLP alone": {"mixture": False, "residual": True, "norm_scale": 0.7, "train_logit_scale": False},
    "three layers without residual": {"n_layer": 3, "rope_theta": 100.0, "tie_word_embeddings": False},
}


def _linear(state, name, x):
    y = state[name + ".weight"] @ x
    return y + state[name + ".bias"] if name + ".bias" in state else y


def _rms(x):
    return x / math.sqrt(sum(float(v) ** 2 for v in x) / len(x))


def _rotated(x, position, theta):
    half, out = len(x) // 2, x.clone()
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def _projected(state, name, config, x):
    if config.qk == "linear":
        return _linear(state, name, x)
    return _linear(state, name + ".2", F.gelu(_linear(state, name + ".0", x)))


def reference(model, ids):
    """Logits (T, V) of one sequence, position by position and head by head, as the specification says."""
    config, state = model.config, dict(model.state_dict())
    d, width = config.n_embd, config.n_embd // config.n_head
    xs = [_rms(state["transformer.wte.weight"][token]) for token in ids]
    for layer in range(config.n_layer):
        attn = f"transformer.h.{layer}.attn."
        us = [_rms(x) for x in xs]
        qs = [_projected(state, attn + "q", config, u) for u in us]
        ks = [_projected(state, attn + "k", config, u) for u in us]
        learned = config.value_output == "learned"
        vs = [_linear(state, attn + "v", u) if learned else u for u in us]
        out = []
        for t in range(len(ids)):
            read = torch.zeros(d, dtype=torch.float64)
            for head in range(config.n_head):
                part = slice(head * width, (head + 1) * width)
                q = _rotated(qs[t][part], t, config.rope_theta)
                scores = [float(q @ _rotated(ks[s][part], s, config.rope_theta)) for s in range(t + 1)]
                weights = [math.exp(score / math.sqrt(width)) for score in scores]
                for s, weight in enumerate(weights):
                    read[part] += weight / sum(weights) * vs[s][part]
            a = _linear(state, attn + "c_proj", read) if learned else read
            out.append(a + xs[t] if config.residual else a)
        xs = out
    block, logits = f"transformer.h.{config.n_layer - 1}.", []
    for a in xs:
        z = _rms(a) * (d**-0.5 if config.norm_scale is None else config.norm_scale)
        if config.norm == "learned":
            z = _rms(a) * state[block + "ln_2.weight"]
        y = model.fact_mlp(z)
        if config.mixture:
            router = block + "mixture.router"
            w = torch.sigmoid(_linear(state, router + ".2", F.gelu(_linear(state, router + ".0", a))))
            language = state[block + "mixture.v.weight"] @ (state[block + "mixture.u.weight"] @ a)
            y = w * y + (1 - w) * language / math.sqrt(d)
        if config.residual:
            y = y + a
        logits.append(math.exp(state["log_s"]) * (state["lm_head.weight"] @ (y / y.norm())))
    return torch.stack(logits)


@pytest.mark.parametrize("kind", ["swiglu", "relu"])
@pytest.mark.parametrize("name", OPTIONS)
def test_forward_equals_a_naive_reference(name, kind):
    model = small_host(dtype=torch.float64, kind=kind, **OPTIONS[name])
    with torch.no_grad():
        if model.config.norm == "learned":
            model.transformer.h[-1].ln_2.weight.uniform_(0.1, 0.5)
        for ids in prompts(model, count=2):
            torch.testing.assert_close(
                model(ids[None]).logits[0], reference(model, ids.tolist()), rtol=0, atol=1e-10
            )


CHOICES = {
    "qk": ("mlp", "linear"),
    "value_output": ("identity", "learned"),
    "residual": (False, True),
    "norm": ("frozen", "learned"),
    "mixture": (True, False),
    "n_layer": (1, 2),
    "train_logit_scale": (True, False),
}


def test_every_combination_trains_exactly_what_it_should():
    for values in itertools.product(*CHOICES.values()):
        options = dict(zip(CHOICES, values, strict=True))
        model = small_host(d=8, h=6, **options)
        model(torch.tensor([[2, 3, 9, 4]]), labels=torch.tensor([[2, 3, 9, 4]])).loss.backward()
        wanted = {"attn.q", "attn.k"}
        wanted |= {"attn.v", "attn.c_proj"} if options["value_output"] == "learned" else set()
        wanted |= {"ln_2"} if options["norm"] == "learned" else set()
        wanted |= {"mixture"} if options["mixture"] else set()
        wanted |= {"log_s"} if options["train_logit_scale"] else set()
        for name, parameter in model.named_parameters():
            trains = any(part in name for part in wanted)
            assert parameter.requires_grad == trains, (options, name)
            has_gradient = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
            assert has_gradient == trains, (options, name)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["plain", "two layers"])
def test_padding_on_either_side_changes_nothing(name, side):
    """Positions count real tokens, and no real token sees a padded one."""
    model = small_host(dtype=torch.float64, **OPTIONS[name])
    rows = prompts(model)
    ids, mask = padded(rows, side)
    with torch.no_grad():
        together = model(ids, attention_mask=mask).logits
        for i, row in enumerate(rows):
            torch.testing.assert_close(together[i][mask[i].bool()], model(row[None]).logits[0])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", OPTIONS)
def test_last_only_is_the_last_real_position_of_the_whole(name, side):
    model = small_host(dtype=torch.float64, **OPTIONS[name])
    rows = prompts(model)
    ids, mask = padded(rows, side)
    last = model.attend(ids, mask, last_only=True, return_attention=True)
    everything = model.attend(ids, mask, return_attention=True)
    assert last.a.shape == (len(rows), 1, model.config.n_embd)
    assert last.probabilities.shape == (len(rows), model.config.n_head, 1, ids.shape[1])
    for i, row in enumerate(rows):
        at = ids.shape[1] - 1 if side == "left" else len(row) - 1
        torch.testing.assert_close(last.a[i, 0], everything.a[i, at])
        torch.testing.assert_close(last.probabilities[i, :, 0], everything.probabilities[i, :, at])
    torch.testing.assert_close(last.probabilities.sum(dim=-1), torch.ones_like(last.probabilities[..., 0]))
    assert model.attend(ids, mask).probabilities is None


def test_given_positions_are_used():
    """RoPE sees differences only: a common shift changes nothing, a gap does."""
    model = small_host(dtype=torch.float64)
    ids, usual = prompts(model, count=1)[0][None], torch.arange(7)[None]
    a = model.attend(ids).a
    torch.testing.assert_close(model.attend(ids, position_ids=usual + 5).a, a)
    assert not torch.allclose(model.attend(ids, position_ids=2 * usual).a, a)


def test_logits_to_keep_are_the_last_ones():
    model = small_host()
    ids = prompts(model, count=1)[0][None]
    everything = model(ids).logits
    assert everything.shape == (1, 7, model.config.vocab_size)
    for keep in (1, 3):
        torch.testing.assert_close(model(ids, logits_to_keep=keep).logits, everything[:, -keep:])


@pytest.mark.parametrize("length", [1e-3, 1.0, 30.0])
def test_attention_on_the_key_alone_hands_its_unit_vector_to_the_mlp(length):
    """Whatever the length of the rows of E (specification, section 8 item 10)."""
    model = small_host(length=length)
    ids = torch.tensor(list(model.tokenizer.key_ids))[:, None]
    z = model.norm_input(model.attend(ids).a)[:, 0]
    torch.testing.assert_close(z, model.key_rows(), rtol=0, atol=1e-6)


def test_mixture_is_affine_in_the_fact_mlps_output():
    """Editors and metrics rely on y = gate g(z) + rest."""
    for options in OPTIONS.values():
        model = small_host(**options)
        a = model.attend(prompts(model, count=1)[0][None]).a
        z = model.norm_input(a)
        gate, rest = model.mix_terms(a)
        mixed = model.mix(a, z)
        torch.testing.assert_close(mixed.y, gate[..., None] * model.fact_mlp(z) + rest)
        torch.testing.assert_close(mixed.gate, gate)
        torch.testing.assert_close(model.mix(a, z, torch.zeros_like(a)).y, rest)


def test_logits_are_the_scaled_cosine_with_the_head():
    model = small_host(logit_scale=11.5)
    y = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    rows = F.normalize(model.lm_head.weight, dim=1)  # of length 1 already
    torch.testing.assert_close(model.head(y), 11.5 * F.normalize(y, dim=1) @ rows.T)
    torch.testing.assert_close(model.head(100 * y), model.head(y))
    torch.testing.assert_close(model.head_direction(y) @ model.lm_head.weight.T, model.head(y))


def test_loss_scores_each_position_against_the_next_label():
    model = small_host()
    ids = prompts(model, count=1)[0][None]
    labels = ids.clone()
    labels[0, 2] = -100
    output = model(ids, labels=labels)
    logs = output.logits.log_softmax(dim=-1)[0]
    wanted = -torch.stack([logs[t, ids[0, t + 1]] for t in range(6) if t + 1 != 2]).mean()
    torch.testing.assert_close(output.loss, wanted)
    assert model(ids, return_dict=False)[0].shape == output.logits.shape


@pytest.mark.parametrize("name", OPTIONS)
def test_half_precision_stays_close(name):
    """As bfloat16 throughout, and as float32 under autocast."""
    model = small_host(**OPTIONS[name])
    ids, mask = padded(prompts(model), "left")
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits[:, -1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = model(ids, attention_mask=mask).logits[:, -1]
        half = model.to(torch.bfloat16)(ids, attention_mask=mask).logits[:, -1]
    assert half.dtype == torch.bfloat16
    for logits in (cast, half):
        assert torch.cosine_similarity(logits.float(), wanted, dim=1).min() > 0.97


def _replica(model):
    """What `torch.nn.parallel.replicate` makes for a device: modules whose parameters are plain attributes."""
    modules = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, copy in modules.items():
        for name, child in module._modules.items():
            setattr(copy, name, None if child is None else modules[child])
        for name, parameter in module._parameters.items():
            if parameter is None:
                copy._parameters[name] = None
            else:
                setattr(copy, name, parameter.detach())
    return modules[model]


def test_data_parallel_replicas_work():
    """Stock GPT-2 asked its parameters for a dtype and stopped there (huggingface/transformers #7731)."""
    model = small_host(**OPTIONS["learned"])
    ids, mask = padded(prompts(model), "left")
    wanted = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(torch.nn.DataParallel(model)(ids, attention_mask=mask).logits, wanted)
    replica = _replica(model)
    assert not list(replica.parameters())
    torch.testing.assert_close(replica(ids, attention_mask=mask).logits, wanted)


def test_an_empty_batch_gives_empty_logits():
    """A rank may be left without rows."""
    model = small_host()
    for keep in (0, 1):
        assert model(torch.zeros(0, 5, dtype=torch.long), logits_to_keep=keep).logits.shape[0] == 0


def test_a_host_depends_on_its_generator_alone():
    first, again = small_host(), small_host()
    torch.rand(3)
    assert first.state_sha256() == again.state_sha256() == small_host().state_sha256()


def test_fresh_weights_have_the_variances_of_the_specification():
    model = small_host(d=256, language_rank=64)
    mixture = model.transformer.h[0].mixture
    assert mixture.u.weight.std().item() == pytest.approx(256**-0.5, rel=0.05)
    assert mixture.v.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert model.transformer.h[0].attn.q[0].weight.abs().max().item() <= 256**-0.5
    assert model.log_s.detach().exp().item() == pytest.approx(16.0)


def test_building_a_host_copies_what_it_is_given():
    mlp, vocabulary = random_mlp("gelu", h=5), Vocabulary.books(FACTS, WORDS)
    table, config = torch.randn(len(vocabulary), 16), MlpSwapConfig(n_embd=16)
    before = {name: tensor.clone() for name, tensor in mlp.state_dict().items()}
    model = build_host(vocabulary, config, FACTS, mlp, table, generator=torch.Generator())
    assert model.config.fact_mlp == mlp.config.to_dict() != config.fact_mlp
    assert (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id) == (0, 2, 0)
    assert torch.equal(model.transformer.wte.weight, table)
    for name, tensor in model.fact_mlp.state_dict().items():
        assert torch.equal(tensor, before[name])
    with torch.no_grad():
        model.fact_mlp.down.weight.zero_()
        model.transformer.wte.weight.zero_()
    assert torch.equal(mlp.down.weight, before["down.weight"])
    assert table.abs().max() > 0


def test_building_a_host_refuses_what_does_not_fit():
    vocabulary, generator = Vocabulary.books(FACTS, WORDS), torch.Generator()
    table = torch.randn(len(vocabulary), 16)
    arguments = (MlpSwapConfig(n_embd=16), FACTS, random_mlp())
    with pytest.raises(ConfigError, match=r"embeddings must be .* found \(16, 16\)"):
        build_host(vocabulary, *arguments, table[:16], generator=generator)
    with pytest.raises(ConfigError, match="width d must be n_embd = 16: found 8"):
        build_host(vocabulary, *arguments[:2], random_mlp(d=8), table, generator=generator)
    with pytest.raises(FactsError, match="not those of the fact set"):
        build_host(vocabulary, arguments[0], FACTS.take(2), arguments[2], table, generator=generator)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary": None}, "vocabulary must be a Vocabulary: found NoneType"),
        ({"config": {}}, "config must be a MlpSwapConfig: found dict"),
        ({"facts": "Emma"}, "facts must be a FactSet: found str"),
        ({"fact_mlp": None}, "fact_mlp must be a FactMLP: found NoneType"),
        ({"embeddings": [[1.0]]}, "embeddings must be a Tensor: found list"),
        ({"embeddings": torch.ones(19, 16).long()}, "embeddings must be floating-point numbers: found torch.int64"),
        ({"embeddings": torch.full((19, 16), torch.inf)}, "cannot be built: NaN or infinity in embeddings"),
        ({"generator": None}, "generator must be a Generator: found NoneType"),
    ],
)  # fmt: skip
def test_building_a_host_refuses_other_types(change, message, unchecked):
    vocabulary = Vocabulary.books(FACTS, WORDS)
    arguments = {
        "vocabulary": vocabulary,
        "config": MlpSwapConfig(n_embd=16),
        "facts": FACTS,
        "fact_mlp": random_mlp(),
    }
    arguments |= {"embeddings": torch.ones(len(vocabulary), 16), "generator": torch.Generator()}
    with pytest.raises(MlpSwapError, match=message):
        build_host(**arguments | change)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("ab", "entries must be a list of .kind, surface. pairs: found 'ab'"),
        ([("key",)], r"token 0 must be a pair of texts, \(kind, surface\): found \('key',\)"),
        ([("key", "a"), ("key", 2)], "token 1 must be a pair of texts"),
    ],
)
def test_what_is_no_vocabulary_is_refused(entries, message):
    with pytest.raises(FactsError, match=message):
        Vocabulary(entries)


def test_rows_belong_to_their_tokens():
    model = small_host(length=3.0, tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight.mul_(2).add_(0.1)
    vocabulary = model.vocabulary
    rows = [vocabulary.id_of("value", name) for name in model.facts.values]
    torch.testing.assert_close(model.value_rows(), F.normalize(model.lm_head.weight[rows], dim=1))
    rows = [vocabulary.id_of("key", name) for name in model.facts.keys]
    torch.testing.assert_close(model.key_rows(), F.normalize(model.transformer.wte.weight[rows], dim=1))
    others = [i for i, (kind, _) in enumerate(vocabulary.entries) if kind != "value"]
    torch.testing.assert_close(model.other_rows(), F.normalize(model.lm_head.weight[others], dim=1))


def test_asking_is_one_argmax_over_the_vocabulary():
    model = small_host()
    prompt = "The writer of Emma is"
    logits = model(torch.tensor([model.tokenizer.encode(prompt)])).logits[0, -1]
    top = model.ask_top(prompt, 3)
    assert model.ask(prompt) == top[0][0] == model.tokenizer.entry(int(logits.argmax()))[1]
    assert [logit for _, logit in top] == pytest.approx(logits.topk(3).values.tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"],), r"the prompt must be text: found \['a'\] \(list\)"),
        ((None,), "the prompt must be text: found None"),
        (("",), "nothing to continue: the prompt is empty"),
        ((" \n",), "nothing to continue: the prompt is empty"),
        (("The writer of Emma is", -1), "k must be a whole number from 1 to 19: found -1"),
        (("The writer of Emma is", 20), "k must be a whole number from 1 to 19: found 20"),
        (("The writer of Emma is", 2.0), "k must be a whole number from 1 to 19: found 2.0"),
        (("The " * 64,), "a sequence has 65 tokens: the model takes at most 64"),
    ],
)
def test_what_cannot_be_asked_is_refused(arguments, message, unchecked):
    with pytest.raises(MlpSwapError, match=message):
        small_host().ask_top(*arguments)


def test_a_model_from_a_configuration_alone_has_no_names():
    model = MlpSwapForCausalLM(MlpSwapConfig(n_embd=8))
    with pytest.raises(FactsError, match="no vocabulary"):
        model.ask("Emma")
    with pytest.raises(FactsError, match="no facts"):
        model.known_facts()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_layr": 3}, "no field 'n_layr'; did you mean 'n_layer'"),
        ({"n_embd": 0}, "n_embd must be at least 1: found 0"),
        ({"n_embd": 12, "n_head": 5}, "multiple of 2 n_head.*n_embd = 12, n_head = 5"),
        ({"n_embd": 6, "n_head": 2}, "multiple of 2 n_head"),
        ({"router_hidden": 0}, "router_hidden must be at least 1"),
        ({"qk": "conv"}, "qk must be one of mlp, linear: found 'conv'"),
        ({"norm": "none"}, "norm must be one of frozen, learned"),
        ({"logit_scale": 0.0}, "logit_scale must be positive"),
        ({"norm_scale": math.nan}, "norm_scale must be positive and finite: found nan"),
        ({"fact_mlp": {"d": 64, "h": 0}}, "positive widths"),
        ({"fact_mlp": {"d": 64, "h": 3, "width": 3}}, "not the configuration of a fact MLP.*'width'"),
        ({"fact_mlp": {"d": 32, "h": 3}}, "width d must be n_embd = 64: found 32"),
    ],
)
def test_configurations_that_cannot_be_are_refused_at_once(options, message):
    with pytest.raises(ConfigError, match=message):
        MlpSwapConfig(**options)
