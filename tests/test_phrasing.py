"""Text becomes requests by what a tokenizer makes of whole texts, with or without a BOS, fast or slow."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mlpswap.editing import CausalLMAdapter, memit_prefixes, rome_prefixes, sample_prefixes
from mlpswap.editing.phrasing import Phrasing
from mlpswap.errors import ConfigError, RequestError
from mlpswap.randomness import generator
from tests.causal_lms import golden_tokenizer, random_adapter, random_model


def byte_pairs(*merged):
    """A byte-level BPE that learns to merge across whatever stands in these texts, spaces included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(merged, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


class Slow:
    """As much of a slow tokenizer as is needed: lists of ids, one token per character, a BOS before every text."""

    unk_token_id, bos_token_id, eos_token_id, all_special_ids = None, 1, None, (1,)

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [1] * add_special_tokens + [ord(each) for each in text]}

    def decode(self, ids, skip_special_tokens=False):
        return "".join(chr(each) for each in ids if each != 1)


def test_a_bos_stands_before_prompts_and_never_in_targets():
    plain, marked = random_adapter("llama"), random_adapter("llama", bos=True)
    for prefixes in ((), ("I walk.",)):
        one = plain.request("The city of {} is", "Port Amber", "Velsh", prefixes=prefixes)
        other = marked.request("The city of {} is", "Port Amber", "Velsh", prefixes=prefixes)
        assert other.prompt_ids == (0, *one.prompt_ids)
        assert other.target_ids == one.target_ids
        assert other.essence == (0, *one.essence)
        for bare, context in zip(one.contexts, other.contexts, strict=True):
            assert context == ((0, *bare.ids), bare.edited + 1)


def test_slow_tokenizers_are_as_good():
    request = Phrasing(Slow()).request("The {name} is", "Alba", "old", prefixes=["So it was."])
    assert request.prompt_ids == (1, *map(ord, "The Alba is"))
    assert request.key_position == 8
    assert request.target_ids == tuple(map(ord, " old"))
    (prefixed,) = request.prefixed
    assert prefixed.ids == (1, *map(ord, "So it was. The Alba is"))
    assert chr(prefixed.ids[prefixed.edited]) == "a"
    assert request.essence == (1, *map(ord, "Alba"))


def test_a_subject_may_share_its_last_token():
    """With what follows it; then that token holds its end. Cutting the text there would give another token."""
    tokenizer = byte_pairs(*["ba's"] * 9)
    phrasing = Phrasing(tokenizer)
    assert len(phrasing.encode("ba's")) == 1
    request = phrasing.request("So {}'s tongue is", "Alba", "old")
    token = request.prompt_ids[request.key_position]
    assert phrasing.decode([token]) == "ba's"


def test_leading_spaces_belong_to_the_target():
    """A target with white space of its own gets no other; a separator may be chosen."""
    adapter = random_adapter("gpt2")
    plain = adapter.request("{} lives in", "Minos", "Port Amber")
    assert adapter.request("{} lives in", "Minos", " Port Amber") == plain
    assert adapter.phrasing.decode(plain.target_ids) == " Port Amber"
    bare = Phrasing(Slow()).request("{}", "北京", "中", separator="")
    assert bare.target_ids == (ord("中"),)


def test_what_cannot_be_phrased_is_refused_with_the_id():
    adapter = random_adapter("gpt2")
    for prompt, subject, target, said in (
        ("The city is", "Minos", "old", "one pair of braces.*found 0"),
        ("{} is {}", "Minos", "old", "one pair of braces.*found 2"),
        ("{} is", " ", "old", "the subject is empty"),
        ("{} is", "Minos", " ", "the target is empty"),
        ("{} is ", "Minos", "old", "ends in white space"),
        ("{} zzz", "Minos", "old", "does not know all"),
        ("{} is", "Minos", "zzz", "does not know all"),
    ):
        with pytest.raises(RequestError, match=f"request 'mine': .*{said}"):
            adapter.request(prompt, subject, target, id="mine")
    for said, texts in (
        ("prompt must be text: found NoneType", (None, "Minos", "old")),
        ("subject must be text: found int", ("{} is", 3, "old")),
        ("target must be text: found bytes", ("{} is", "Minos", b"old")),
    ):
        with pytest.raises(RequestError, match=f"request 'mine': {said}"):
            adapter.request(*texts, id="mine")
    with pytest.raises(RequestError, match="request None: id must be text: found NoneType"):
        adapter.request("{} is", None, "old")
    merging = Phrasing(byte_pairs(*["is old"] * 9))
    with pytest.raises(RequestError, match="'old' changes the tokens of the prompt"):
        merging.request("Alba {}", "is", "old")
    lossy = golden_tokenizer()
    lossy.backend_tokenizer.decoder = decoders.Replace("Norin", "")
    with pytest.raises(RequestError, match="no token of .* ends the subject 'Alba Norin'"):
        Phrasing(lossy).request("{} is", "Alba Norin", "old")
    with pytest.raises(ConfigError, match="gives no token"):
        Phrasing(lambda text, add_special_tokens=True: {"input_ids": []})


def test_prefixes_are_drawn_by_the_generator():
    adapter = random_adapter("gpt2")
    found = memit_prefixes(adapter, generator(0, "prefixes"))
    assert found == memit_prefixes(adapter, generator(0, "prefixes"))
    assert found != memit_prefixes(adapter, generator(1, "prefixes"))
    assert len(found) == 5
    assert all(text.startswith(start) for text, start in zip(found, ("The", "Therefore"), strict=False))
    assert len(rome_prefixes(adapter, generator(0, "prefixes"))) == 20
    (greedy,) = sample_prefixes(adapter, generator=generator(0), starts=["I"], length=3, top=1)
    request = adapter.request("{}", "I", "a")
    ids = list(request.prompt_ids)
    for _ in range(3):
        ids.append(int(random_model("gpt2").eval()(torch.tensor([ids])).logits[0, -1].argmax()))
    assert greedy == adapter.phrasing.decode(ids) + "."
    with pytest.raises(ConfigError, match="generator must be"):
        sample_prefixes(adapter, generator=0)
    with pytest.raises(ConfigError, match="give the adapter a tokenizer"):
        memit_prefixes(CausalLMAdapter(random_model("gpt2")), generator(0))
