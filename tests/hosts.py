"""Small hosts for tests, with random fact MLPs, so that no construction is needed to make one."""

import torch

from mlpswap.facts import FactSet
from mlpswap.model import MlpSwapConfig, MlpSwapForCausalLM, Vocabulary, build_host
from mlpswap.testing.hosts import random_mlp

FACTS = FactSet.from_pairs(
    [
        ("Emma", "Jane Austen"),
        ("It", "Stephen King"),
        ("Ulysses", "James Joyce"),
        ("Persuasion", "Jane Austen"),
        ("The Waves", "Virginia Woolf"),
    ]
)
WORDS = ("The", "writer", "of", "is", ",", "by", "wrote")


def small_host(
    facts: FactSet = FACTS,
    *,
    d: int = 16,
    kind: str = "swiglu",
    h: int = 24,
    dtype: torch.dtype = torch.float32,
    length: float = 1.0,
    **options,
) -> MlpSwapForCausalLM:
    """A host whose embedding rows have the given length."""
    vocabulary = Vocabulary.books(facts, WORDS)
    source = torch.Generator().manual_seed(1)
    table = torch.randn(len(vocabulary), d, generator=source, dtype=dtype)
    table *= length / table.norm(dim=1, keepdim=True)
    config = MlpSwapConfig(n_embd=d, **options)
    return build_host(vocabulary, config, facts, random_mlp(kind, d, h), table, generator=source)


def prompts(model: MlpSwapForCausalLM, count: int = 4, longest: int = 7) -> list[torch.Tensor]:
    """Random token ids of different lengths."""
    source = torch.Generator().manual_seed(2)
    size = model.config.vocab_size
    return [torch.randint(3, size, (longest - i,), generator=source) for i in range(count)]


def padded(rows: list[torch.Tensor], side: str, pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(input_ids, attention_mask) of shape (B, T)."""
    longest = max(map(len, rows))
    ids, mask = torch.full((len(rows), longest), pad), torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        ids[i, place], mask[i, place] = row, 1
    return ids, mask
