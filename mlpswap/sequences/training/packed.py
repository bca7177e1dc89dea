"""Many networks of the challenge as one computation, with the gradients of their cross-entropy written out.

A fact reads two rows of a table, and the gradient of a row is the sum over the facts that read it: products with a
two-hot matrix and its transpose. Both are sums over bags of rows, far cheaper than the products.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.network import PairNetwork

CACHE = 2**16  # numbers: a tensor of so many and its like stay in the second-level cache of a core


class Reads:
    """Which rows of a table each fact reads; the same for T tables, or for fewer of them later."""

    def __init__(self, rows: Int[Tensor, "N k"], table: int, models: int):
        """rows: of a table of `table` rows."""
        count, each = rows.shape
        model = torch.arange(models, device=rows.device)[:, None]
        readers = rows.flatten().argsort(stable=True) // each
        sizes = torch.bincount(rows.flatten(), minlength=table)
        self._rows = (rows + table * model[:, :, None]).reshape(-1, each)
        self._readers = (readers + count * model).flatten()
        self._starts = (sizes.cumsum(0) - sizes + count * each * model).flatten()
        self.count, self.each, self.table = count, each, table

    def gather(self, tables: Float[Tensor, "T R d"]) -> Float[Tensor, "T N d"]:
        """The sum of the rows that each fact reads."""
        models, _, width = tables.shape
        rows = self._rows[: models * self.count]
        return F.embedding_bag(rows, tables.reshape(-1, width), mode="sum").view(models, -1, width)

    def scatter(self, values: Float[Tensor, "T N d"]) -> Float[Tensor, "T R d"]:
        """For each row, the sum of the values of the facts that read it: the transpose of `gather`."""
        models, _, width = values.shape
        readers = self._readers[: models * self.count * self.each]
        starts = self._starts[: models * self.table]
        sums = F.embedding_bag(readers, values.reshape(-1, width), starts, mode="sum")
        return sums.view(models, -1, width)


def right_answers(logits: Float[Tensor, "T C N"], label: Int[Tensor, " N"]) -> Int[Tensor, " T"]:
    """Facts whose label has the largest logit. All logits of a fact that opens no neuron are 0: a tie, and so a miss."""
    mine = logits.gather(1, label.expand(len(logits), 1, -1))
    return ((mine == logits.amax(1, keepdim=True)) & (mine != 0)).sum((1, 2))


def residuals(logits: Float[Tensor, "T C N"], label: Int[Tensor, " N"]) -> Float[Tensor, "T C N"]:
    """The gradient of each fact's cross-entropy in its logits: softmax less the one-hot label."""
    found = torch.softmax(logits, 1)
    less = found.new_full((1, 1, 1), -1.0).expand(len(logits), 1, len(label))
    return found.scatter_add_(1, label.expand(len(logits), 1, -1), less)


def in_parts(
    step: Callable[..., tuple[Tensor, Tensor]], facts: int, width: int, *tensors: Tensor
) -> tuple[Int[Tensor, " T"], Tensor]:
    """`step` on tensors (T, ...): on a CPU, on as few models at a time as keep what it works on in the cache."""
    at_once = max(1, CACHE // (facts * width))
    if tensors[0].device.type != "cpu" or at_once >= len(tensors[0]):
        return step(*tensors)
    parts = zip(*(each.split(at_once) for each in tensors), strict=True)
    right, gradients = zip(*(step(*part) for part in parts), strict=True)
    return torch.cat(right), torch.cat(gradients)


class NetworkPack:
    """Whole networks: the rows of E1, E2 and U stand in one tensor (T, 2V + C, d)."""

    def __init__(self, facts: PairFacts, networks: Sequence[PairNetwork]):
        self.tokens, self.label, self.facts = facts.tokens, facts.label, len(facts)
        self.weights = torch.stack([torch.cat([n.first, n.second, n.unembedding]) for n in networks])
        pairs = torch.stack([facts.first, facts.second + facts.tokens], dim=1)
        self._reads = Reads(pairs, self.weights.shape[1], len(networks))

    def gradients(self) -> tuple[Int[Tensor, " T"], Tensor]:
        rows, width = self.weights.shape[1:]
        return in_parts(self._step, self.facts, max(width, rows - 2 * self.tokens), self.weights)

    def _step(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        unembedding = weights[:, 2 * self.tokens :]
        hidden = self._reads.gather(weights).relu_()
        logits = torch.bmm(unembedding, hidden.mT)
        residual = residuals(logits, self.label)
        # From here on only neurons that are open pass anything on.
        back = torch.ops.aten.threshold_backward(torch.bmm(residual.mT, unembedding), hidden, 0)
        gradient = self._reads.scatter(back)
        gradient[:, 2 * self.tokens :] = torch.bmm(residual, hidden)
        return right_answers(logits, self.label), gradient.div_(self.facts)

    def keep(self, models: Int[Tensor, " K"]) -> None:
        self.weights = self.weights[models]


class UnembeddingPack:
    """Unembeddings (T, C, d) alone, above hidden activations that stay as they are."""

    def __init__(
        self,
        hidden: Float[Tensor, "T N d"],
        unembedding: Float[Tensor, "T C d"],
        label: Int[Tensor, " N"],
    ):
        self.hidden, self.weights, self.label, self.facts = hidden, unembedding.clone(), label, len(label)

    def gradients(self) -> tuple[Int[Tensor, " T"], Tensor]:
        return in_parts(self._step, self.facts, max(self.weights.shape[1:]), self.weights, self.hidden)

    def _step(self, unembedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.bmm(unembedding, hidden.mT)
        gradient = torch.bmm(residuals(logits, self.label), hidden)
        return right_answers(logits, self.label), gradient.div_(self.facts)

    def keep(self, models: Int[Tensor, " K"]) -> None:
        self.weights, self.hidden = self.weights[models], self.hidden[models]


def networks(weights: Float[Tensor, "T R d"], tokens: int) -> list[PairNetwork]:
    """The networks whose rows of E1, E2 and U stand in `weights`."""
    return [PairNetwork(each[:tokens], each[tokens : 2 * tokens], each[2 * tokens :]) for each in weights]
