"""What an edit does to answers that it should leave alone, compared with the unedited model rather than with the truth."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.constructions.base import FactMLP
from mlpswap.metrics import Rows
from mlpswap.model.modeling import MlpSwapForCausalLM

CHUNK = 512  # rows whose logits are held at a time


@torch.no_grad()
def answers(model: MlpSwapForCausalLM, mlp: FactMLP, rows: Rows) -> Int[Tensor, " n"]:
    """The likeliest token of each row with `mlp` in place."""
    y = rows.mixed(mlp)
    parts = [model.head(part).argmax(dim=1) for part in y.split(CHUNK)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long, device=y.device)


@torch.no_grad()
def mean_kl(model: MlpSwapForCausalLM, before: FactMLP, after: FactMLP, rows: Rows) -> float:
    """Mean over the rows of KL(before || after) between the next-token distributions, in nats; NaN without any row."""
    total = 0.0
    for start in range(0, len(rows), CHUNK):
        part = rows[slice(start, start + CHUNK)]
        old, new = (model.head(part.mixed(mlp)).double().log_softmax(dim=1) for mlp in (before, after))
        total += float((old.exp() * (old - new)).sum())
    return total / len(rows) if len(rows) else float("nan")


def nearest_cosine(keys: Float[Tensor, "n h"], others: Float[Tensor, "m h"]) -> Float[Tensor, " n"]:
    """Largest cosine of each key with one of the others; -1 if there are none."""
    keys, others = (torch.nn.functional.normalize(each, dim=1) for each in (keys, others))
    parts = [(part @ others.T).amax(dim=1) for part in keys.split(4096)] if len(others) else []
    return torch.cat(parts) if parts else keys.new_full((len(keys),), -1.0)
