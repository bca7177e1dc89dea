"""Sentences to put before a prompt, so that a key is not that of one context alone: drawn from the model itself,
as in the original protocols, but by a generator, and handed to the adapter.
"""

from collections.abc import Sequence

import torch

from mlpswap.editing.causal_lm import CausalLMAdapter
from mlpswap.editing.requests import Context
from mlpswap.errors import ConfigError
from mlpswap.randomness import require_generator

MEMIT_STARTS = ("The", "Therefore", "Because", "I", "You")


def sample_prefixes(
    adapter: CausalLMAdapter,
    *,
    generator: torch.Generator,
    starts: Sequence[str] = ("",),
    length: int = 10,
    top: int = 5,
) -> list[str]:
    """One sentence for each of `starts`, of about `length` tokens, each drawn from the `top` likeliest.

    An empty start is the tokenizer's first special token. Raises `ConfigError` without a tokenizer.
    """
    require_generator(generator)
    if adapter.phrasing is None:
        raise ConfigError("prefixes are text: give the adapter a tokenizer")
    tokenizer, lead = adapter.phrasing.tokenizer, adapter.phrasing.lead
    first = [each for each in (tokenizer.bos_token_id, tokenizer.eos_token_id) if each is not None]
    if "" in starts and not first:
        raise ConfigError("the tokenizer has no special token to begin with: give other starts than ''")
    sequences = [(*lead, *adapter.phrasing.encode(start)) if start else (first[0],) for start in starts]
    for _ in range(length):
        with torch.no_grad():
            log_probs = adapter.log_probs([Context(ids, 0) for ids in sequences]).cpu()
        best = log_probs.topk(min(top, log_probs.shape[1]), dim=1)
        chosen = torch.multinomial(best.values.exp(), 1, generator=generator)
        tokens = best.indices.gather(1, chosen)[:, 0].tolist()
        sequences = [(*ids, token) for ids, token in zip(sequences, tokens, strict=True)]
    return [" ".join(adapter.phrasing.decode(ids).split()) + "." for ids in sequences]


def rome_prefixes(adapter: CausalLMAdapter, generator: torch.Generator) -> list[str]:
    """Ten of about 5 tokens and ten of about 10, from the first special token (arXiv 2202.05262)."""
    return [
        prefix
        for length in (5, 10)
        for prefix in sample_prefixes(adapter, generator=generator, starts=("",) * 10, length=length)
    ]


def memit_prefixes(adapter: CausalLMAdapter, generator: torch.Generator) -> list[str]:
    """Five of about 10 tokens, from "The", "Therefore", "Because", "I" and "You" (arXiv 2210.07229)."""
    return sample_prefixes(adapter, generator=generator, starts=MEMIT_STARTS)
