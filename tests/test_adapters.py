"""The host's adapter: what it reads from the model, what it refuses, what it writes into a patch."""

import logging

import pytest
import torch

from mlpswap.editing import EditRequest, HostAdapter, Prompts, requests_of
from mlpswap.errors import FactsError, NonFiniteError, RequestError
from mlpswap.model.configuration import MlpSwapConfig
from mlpswap.model.modeling import MlpSwapForCausalLM
from tests.reference import books_host

TEMPLATES = ("The writer of {book} is", "Who wrote {book} ? Surely")


@pytest.fixture(scope="module")
def adapter():
    return HostAdapter(books_host(output_bias=True)[1])


def ask(adapter, i=0, j=1, template=TEMPLATES[0], **options):
    facts = adapter.facts
    return adapter.request(template, facts.keys[i], facts.value_of(facts.keys[j]), **options)


@pytest.mark.parametrize("host", [{}, {"mixture": False}, {"residual": True, "n_layer": 2}], ids=str)
def test_it_reads_what_the_model_computes(host):
    """Keys, outputs and answers of prompts of different lengths equal those of whole single forward passes."""
    _, model = books_host(**host)
    adapter = HostAdapter(model, chunk=2)
    requests = [ask(adapter, i, 0, TEMPLATES[i % 2]) for i in range(5)]
    (site,) = adapter.sites()
    prompts, seen = adapter.prompts(requests), {}
    hook = model.fact_mlp.down.register_forward_hook(
        lambda module, args, out: seen.update(key=args[0], out=out)
    )
    keys, outputs, answers, losses = [], [], [], []
    with torch.no_grad():
        for request in requests:
            logits = model(torch.tensor([request.prompt_ids])).logits[0, -1]
            keys.append(seen["key"][0, -1])
            outputs.append(seen["out"][0, -1])
            answers.append(int(logits.argmax()))
            losses.append(-logits.log_softmax(0)[request.target_ids[0]])
    hook.remove()
    torch.testing.assert_close(adapter.keys(prompts, site), torch.stack(keys))
    torch.testing.assert_close(adapter.outputs(prompts, site), torch.stack(outputs))
    assert adapter.predict(prompts).tolist() == answers
    objective = adapter.objective(requests, site)
    torch.testing.assert_close(objective.nll(torch.zeros(5, 32, dtype=torch.float64)), torch.stack(losses))


def test_a_residual_is_a_change_of_the_output(adapter):
    """The objective at r is the model with r added to the output's bias."""
    _, model = books_host(output_bias=True)
    request = ask(adapter)
    r = torch.linspace(-1, 1, 32, dtype=torch.float64)
    with torch.no_grad():
        model.fact_mlp.down.bias += r
        logits = model(torch.tensor([request.prompt_ids])).logits[0, -1]
    loss = -logits.log_softmax(0)[request.target_ids[0]]
    torch.testing.assert_close(adapter.objective([request], 0).nll(r[None])[0], loss)


def test_weights_are_copies_in_the_papers_layout(adapter):
    weight, bias = adapter.weight(0), adapter.bias(0)
    assert weight.shape == (32, 48)
    torch.testing.assert_close(
        adapter.keys(adapter.prompts([ask(adapter)]), 0) @ weight.T + bias,
        adapter.outputs(adapter.prompts([ask(adapter)]), 0),
    )
    weight.zero_()
    bias.zero_()
    assert adapter.weight(0).any()
    assert adapter.bias(0).any()
    assert HostAdapter(books_host()[1]).bias(0) is None
    with pytest.raises(RequestError, match="layer 1 has no fact MLP"):
        adapter.weight(1)


def test_requests_in_words(adapter):
    """Ids, old value and position; the key and the value stand for themselves whatever they contain."""
    request = ask(adapter, 2, 5, id="third")
    vocabulary, facts = adapter.vocabulary, adapter.facts
    words = [vocabulary.id_of("word", word) for word in ("The", "writer", "of", "is")]
    assert request.prompt_ids == (vocabulary.bos_id, *words[:3], vocabulary.key_ids[2], words[3])
    assert request.key_position == 5
    assert request.target_ids == (vocabulary.id_of("value", facts.value_of("k5")),)
    assert request.old_target_ids == (vocabulary.id_of("value", facts.value_of("k2")),)
    assert not request.unchanged
    assert adapter.changes([request]) == {"k2": facts.value_of("k5")}


@pytest.mark.parametrize(
    ("prompt", "key", "value", "message"),
    [
        ("The writer of {book} is", "k99", "v0", "no key 'k99'"),
        ("The writer of {book} is", "k0", "v99", "no value 'v99'"),
        ("The singer of {book} is", "k0", "v0", "no word 'singer'"),
        ("The writer is", "k0", "v0", "one word in braces"),
        ("{book} and {book} is", "k0", "v0", "one word in braces"),
    ],
)
def test_unknown_names_are_refused_with_the_request(adapter, prompt, key, value, message):
    with pytest.raises(RequestError, match=f"request 'mine': .*{message}"):
        adapter.request(prompt, key, value, id="mine")


def test_what_is_no_text_is_refused(adapter):
    with pytest.raises(RequestError, match="request 'k0': prompt must be text: found NoneType"):
        adapter.request(None, "k0", "v0")
    with pytest.raises(RequestError, match="value must be text: found int"):
        adapter.request("The writer of {book} is", "k0", 3)


def test_requests_from_a_task_are_those_in_words():
    """Data sets go through ids, people through words: both must ask for the same."""
    task, model = books_host()
    adapter, facts = HostAdapter(model), torch.tensor([3, 5])
    after = task.facts.alter({"k3": task.facts.value_of("k5"), "k5": task.facts.value_of("k3")})
    batch = task.batch(facts, torch.tensor([0, 3]), targets=task.target_ids(after))
    old = task.target_ids(task.facts)[facts]
    assert requests_of(batch, ["k3", "k5"], old) == [
        ask(adapter, 3, 5, TEMPLATES[0]),
        ask(adapter, 5, 3, TEMPLATES[1]),
    ]
    assert requests_of(batch, ["k3", "k5"])[0].old_target_ids is None


def test_malformed_requests_are_refused():
    for fields, message in (
        (((), 0, (1,)), "prompt is empty"),
        (((1, 2), 1, ()), "target is empty"),
        (((1, 2), 2, (1,)), "outside"),
        (((1, 2), -1, (1,)), "outside"),
    ):
        with pytest.raises(RequestError, match=f"'mine': .*{message}"):
            EditRequest("mine", *fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key_position": 4}, "no influence"),
        ({"target_ids": (2,)}, "one value"),
        ({"target_ids": (80, 81)}, "one value"),
        ({"target_ids": (10**6,)}, "unknown token 1000000"),
        ({"prompt_ids": (2, 1, 70), "key_position": 2}, "unknown token 1"),
        ({"prompt_ids": (2, 3, 4), "key_position": 2}, "one key .*found 0"),
        ({"prompt_ids": (2,) * 40, "key_position": 39}, "40 tokens, the model takes 32"),
    ],
)
def test_requests_the_host_cannot_carry_out(adapter, change, message):
    """Each is refused by id, before anything is computed: no position is guessed and no target falls back to <unk>."""
    good = ask(adapter, id="mine")
    assert adapter.vocabulary.value_ids[0] <= 80 < 81 <= adapter.vocabulary.value_ids[-1]
    adapter.check([good])
    with pytest.raises(RequestError, match=f"'mine': .*{message}"):
        adapter.check([good, EditRequest(**(vars(good) | change))])


def test_prompts_are_padded_on_the_left():
    prompts = Prompts.of([(5, 6, 7), (8,)], pad_id=0)
    assert prompts.input_ids.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert prompts.attention_mask.tolist() == [[True] * 3, [False, False, True]]


def test_a_host_without_facts_is_refused():
    with pytest.raises(FactsError, match="no facts"):
        HostAdapter(MlpSwapForCausalLM(MlpSwapConfig(vocab_size=20, n_embd=8)))


def test_patches(adapter):
    """W + delta in float64 and back, with the altered facts; NaN is never written."""
    delta = torch.full((32, 48), 1e-3, dtype=torch.float64)
    patch = adapter.patch(0, delta, editor="test", requests=[ask(adapter), ask(adapter, 3, 3)])
    (change,) = patch.changes
    assert torch.equal(change.new["down.weight"], change.old["down.weight"] + delta)
    facts = adapter.facts
    assert patch.altered == (("k0", facts.value_of("k0"), facts.value_of("k1")),)
    assert patch.facts_after == facts.alter({"k0": facts.value_of("k1")}).fingerprint
    delta[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match="down.weight"):
        adapter.patch(0, delta, editor="test")


def test_a_change_that_gets_lost_is_told(caplog):
    """bfloat16 has eight bits: a change of 1e-5 of the weight vanishes."""
    adapter = HostAdapter(books_host(dtype=torch.bfloat16)[1])
    delta = 1e-5 * adapter.weight(0).double()
    with caplog.at_level(logging.WARNING):
        patch = adapter.patch(0, delta, editor="test")
    assert patch.is_empty
    assert "100 % of the change of down.weight got lost" in caplog.text
