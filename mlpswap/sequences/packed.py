"""Many networks of the challenge as one computation, with the gradients of their cross-entropy written out.

A fact reads two rows of a table, and the gradient of a row is the sum over the facts that read it: products with a
two-hot matrix and its transpose. Both are sums over bags of rows, far cheaper than the products.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.network import PairNetwork


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
    found.scatter_add_(
        1,
        label.expand(len(logits), 1, -1),
        found.new_full((1, 1, 1), -1.0).expand(len(logits), 1, len(label)),
    )
    return found


class NetworkPack:
    """Whole networks: the rows of E1, E2 and U stand in one tensor (T, 2V + C, d)."""

    def __init__(self, facts: PairFacts, networks: Sequence[PairNetwork]):
        self.tokens, self.label, self.facts = facts.tokens, facts.label, len(facts)
        self.weights = [torch.stack([torch.cat([n.first, n.second, n.unembedding]) for n in networks])]
        pairs = torch.stack([facts.first, facts.second + facts.tokens], dim=1)
        self.reads = Reads(pairs, self.weights[0].shape[1], len(networks))

    def gradients(self) -> tuple[Int[Tensor, " T"], list[Tensor]]:
        (weights,) = self.weights
        unembedding = weights[:, 2 * self.tokens :]
        hidden = self.reads.gather(weights).relu_()
        logits = torch.bmm(unembedding, hidden.transpose(1, 2))
        residual = residuals(logits, self.label)
        # From here on only neurons that are open pass anything on.
        back = torch.bmm(residual.transpose(1, 2), unembedding)
        gradient = self.reads.scatter(torch.ops.aten.threshold_backward(back, hidden, 0))
        gradient[:, 2 * self.tokens :] = torch.bmm(residual, hidden)
        return right_answers(logits, self.label), [gradient.div_(self.facts)]

    def keep(self, models: Int[Tensor, " K"]) -> None:
        self.weights = [weight[models] for weight in self.weights]


class UnembeddingPack:
    """Unembeddings (T, C, d) alone, above hidden activations that stay as they are."""

    def __init__(
        self,
        hidden: Float[Tensor, "T N d"],
        unembedding: Float[Tensor, "T C d"],
        label: Int[Tensor, " N"],
    ):
        self.hidden, self.weights, self.label, self.facts = hidden, [unembedding.clone()], label, len(label)

    def gradients(self) -> tuple[Int[Tensor, " T"], list[Tensor]]:
        logits = torch.bmm(self.weights[0], self.hidden.transpose(1, 2))
        gradient = torch.bmm(residuals(logits, self.label), self.hidden)
        return right_answers(logits, self.label), [gradient.div_(self.facts)]

    def keep(self, models: Int[Tensor, " K"]) -> None:
        self.weights, self.hidden = [self.weights[0][models]], self.hidden[models]


def networks(weights: Float[Tensor, "T R d"], tokens: int) -> list[PairNetwork]:
    """The networks whose rows of E1, E2 and U stand in `weights`."""
    return [PairNetwork(each[:tokens], each[tokens : 2 * tokens], each[2 * tokens :]) for each in weights]
