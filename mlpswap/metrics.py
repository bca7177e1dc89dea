"""Every number that a report shows about a host, defined once.

Ties count as failures. Accuracy of the host is over the full vocabulary. Two fact MLPs are always compared on the same
prompts: attention, router and language expert do not depend on the fact MLP, so they are computed once for both.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mlpswap.constructions.base import FactMLP
from mlpswap.tasks.base import IGNORE, Batch, Task, TemplateTable

DEFINITIONS: dict[str, str] = {
    "value_accuracy": "share of prompts whose value has strictly the largest logit of all, with the fact MLP trained with",
    "fact_adaptive_accuracy": "the same after the swap to another fact set, wanted values from that set; nothing else changes",
    "capacity_trained": "share of facts that the bare fact MLP stores, over the values",
    "capacity_swap": "the same for the MLP swapped in; the ceiling of fact_adaptive_accuracy",
    "usability": "fact_adaptive_accuracy / capacity_swap",
    "attention_mass": "mean attention from the value position to the key, averaged over heads",
    "gate_value": "mean weight of the fact expert where the value is predicted",
    "gate_other": "mean weight of the fact expert at all other positions",
    "nonfact_ce_before": "mean cross-entropy (nats, full vocabulary) of all predicted tokens but the value, before the swap",
    "nonfact_ce_after": "the same after the swap, on the same prompts",
    "nonfact_ce_ratio": "nonfact_ce_after / nonfact_ce_before",
    "nonfact_word_ce_ratio": "the same ratio without the positions that predict the book, which nothing can predict",
    "heldout_accuracy": "value_accuracy on templates 17-32, never trained",
    "heldout_accuracy_after_swap": "fact_adaptive_accuracy on templates 17-32",
}


VOCABULARY_BLOCK = 4096  # columns that pass at a time


@dataclass(frozen=True)
class Rows:
    """What the head needs to know at n positions, and nothing that depends on the fact MLP.

    The mixture's output there is `gate * g(z) + rest` for any fact MLP g.
    """

    z: Float[Tensor, "n d"]
    gate: Float[Tensor, " n"]
    rest: Float[Tensor, "n d"]

    def __len__(self) -> int:
        return len(self.z)

    def __getitem__(self, index: Tensor | slice) -> "Rows":
        return Rows(self.z[index], self.gate[index], self.rest[index])

    def mixed(self, fact_mlp: FactMLP) -> Float[Tensor, "n d"]:
        return self.gate[:, None] * fact_mlp(self.z) + self.rest

    @classmethod
    def cat(cls, parts: list["Rows"]) -> "Rows":
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))


def rows_of(model, a: Float[Tensor, "n d"]) -> Rows:
    """`Rows` from outputs of the attention."""
    gate, rest = model.mix_terms(a)
    return Rows(model.norm_input(a), gate, rest)


@dataclass(frozen=True, eq=False)
class Rivals:
    """What settles most of `is_top1` without the vocabulary, for fact MLPs that answer much as a reference does.

    `tokens` have the k largest logits with the reference, `ceiling` is the next one, `direction` is the head's direction.
    No other token can have more than `ceiling` plus the distance between both directions times the longest embedding.
    """

    tokens: Int[Tensor, "n k"]
    ceiling: Float[Tensor, " n"]
    direction: Float[Tensor, "n d"]

    SLACK = 1e-4  # of the largest possible logit: closer calls are left to the exact comparison

    @classmethod
    @torch.no_grad()
    def of(cls, model, y: Float[Tensor, "n d"], *, k: int = 64, chunk: int = 1024) -> "Rivals | None":
        """From outputs of the mixture with the reference; None where the vocabulary has no more than k tokens."""
        table = model.get_output_embeddings().weight
        if len(table) <= k:
            return None
        parts = []
        for some in y.split(chunk):
            direction = model.head_direction(some)
            best = (direction @ table.T).topk(k + 1, dim=1)
            parts.append((best.indices[:, :k], best.values[:, k], direction))
        return cls(*map(torch.cat, zip(*parts, strict=True))) if parts else None

    def __getitem__(self, index: Tensor | slice) -> "Rivals":
        return Rivals(self.tokens[index], self.ceiling[index], self.direction[index])

    def settle(
        self, direction: Float[Tensor, "n d"], wanted: Int[Tensor, " n"], table: Float[Tensor, "V d"]
    ) -> tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]:
        """(whether `wanted` is on top, whether that is certain)."""
        longest = table.norm(dim=1).max()
        right = torch.einsum("nd,nd->n", direction, table[wanted])
        logits = torch.einsum("nd,nkd->nk", direction, table[self.tokens])
        best = logits.masked_fill(self.tokens == wanted[:, None], float("-inf")).amax(dim=1)
        others = self.ceiling + longest * (direction - self.direction).norm(dim=1)
        slack = self.SLACK * longest * direction.norm(dim=1)
        won = right > torch.maximum(best, others) + slack
        return won, won | (best > right + slack)


@torch.no_grad()
def is_top1(
    model,
    y: Float[Tensor, "n d"],
    wanted: Int[Tensor, " n"],
    *,
    rivals: Rivals | None = None,
    block: int = VOCABULARY_BLOCK,
) -> Bool[Tensor, " n"]:
    """Whether `wanted` has strictly the largest logit; exact, in blocks of the vocabulary, dropping rows once beaten.

    The last tokens of a vocabulary are the values, so the likeliest rivals come first. Rows that `rivals` settle need no
    more.
    """
    direction, table = model.head_direction(y), model.get_output_embeddings().weight
    result = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    alive = torch.arange(len(y), device=y.device)
    if rivals is not None:
        result, certain = rivals.settle(direction, wanted, table)
        alive = alive[~certain]
    right = torch.einsum("nd,nd->n", direction, table[wanted])
    for start in reversed(range(0, len(table), block)):
        columns = table[start : start + block]
        logits = direction[alive] @ columns.T  # (alive, block)
        own = wanted[alive] - start
        inside = (own >= 0) & (own < len(columns))
        # The wanted token's own column is no rival, and its logit is taken from this very product.
        position = own.clamp(0, len(columns) - 1)[:, None]
        mine = logits.gather(1, position).squeeze(1)
        right[alive] = torch.where(inside, mine, right[alive])
        logits.scatter_(1, position, torch.where(inside, float("-inf"), mine)[:, None])
        alive = alive[logits.amax(dim=1) < right[alive]]
    result[alive] = True
    return result


class TokenNll(torch.autograd.Function):
    """-log softmax(direction @ table.T) at the targets, and its gradient along with it.

    The vocabulary passes in blocks, each softmax so far rescaled as a larger logit turns up, so that no n x V logits are
    held, let alone kept for a backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, direction: Float[Tensor, "n d"], table: Float[Tensor, "V d"], targets: Int[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        top = direction.new_full((len(direction), 1), float("-inf"))
        total, pull = torch.zeros_like(top), torch.zeros_like(direction)
        for columns in table.split(VOCABULARY_BLOCK):
            logits = direction @ columns.T
            largest = torch.maximum(top, logits.amax(dim=1, keepdim=True))
            rescaled = (top - largest).exp()
            weights = logits.sub_(largest).exp_()
            total = total * rescaled + weights.sum(dim=1, keepdim=True)
            if ctx.needs_input_grad[0]:
                pull = pull * rescaled + weights @ columns
            top = largest
        own = table[targets]
        ctx.save_for_backward(pull / total - own)
        return (total.log() + top).squeeze(1) - (direction * own).sum(dim=1)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return upstream[0][:, None] * gradient, None, None


@torch.no_grad()
def token_nll(
    model, y: Float[Tensor, "n d"], wanted: Int[Tensor, " n"], *, chunk: int = 1024
) -> Float[Tensor, " n"]:
    """-log softmax over the full vocabulary at `wanted`, in nats."""
    table = model.get_output_embeddings().weight
    pairs = zip(y.split(chunk), wanted.split(chunk), strict=True)
    parts = [TokenNll.apply(model.head_direction(rows), table, tokens) for rows, tokens in pairs]
    return torch.cat(parts) if parts else y.new_zeros(0)


@dataclass(frozen=True)
class PairScores:
    """Measurements of n prompts, one row each, so that processes gather rows and every mean is taken once.

    `correct[m]` belongs to the m-th fact MLP. For a language task, `nll` and `word_nll` are sums over the positions other
    than the value's (the latter also without the book's), `tokens` and `words` their numbers; else zero.
    """

    correct: Bool[Tensor, "n mlps"]
    attention: Float[Tensor, " n"]
    gate: Float[Tensor, " n"]
    gate_other: Float[Tensor, " n"]
    nll: Float[Tensor, "n mlps"]
    word_nll: Float[Tensor, "n mlps"]
    tokens: Int[Tensor, " n"]
    words: Int[Tensor, " n"]

    @classmethod
    def cat(cls, parts: list["PairScores"]) -> "PairScores":
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))


@torch.no_grad()
def score_batch(
    model,
    batch: Batch,
    wanted: Int[Tensor, "mlps B"],
    fact_mlps: list[FactMLP],
    key_ids: Int[Tensor, " F"],
    *,
    language: bool,
) -> PairScores:
    """Measure one batch for several fact MLPs, row m of `wanted` holding the value ids under the m-th."""
    attended = model.attend(
        batch.input_ids, batch.attention_mask, last_only=not language, return_attention=True
    )
    last = rows_of(model, attended.a[:, -1])
    heads_mean = attended.probabilities[:, :, -1].mean(dim=1)  # (B, T)
    attention = heads_mean.gather(1, batch.key_position[:, None]).squeeze(1)
    correct = torch.stack(
        [is_top1(model, last.mixed(mlp), want) for mlp, want in zip(fact_mlps, wanted, strict=True)], dim=1
    )
    n, zero = len(batch), torch.zeros(len(batch), dtype=torch.float64, device=attention.device)
    nll = zero[:, None].repeat(1, len(fact_mlps))
    word_nll, gate_other = nll.clone(), zero.clone()
    tokens = words = torch.zeros(n, dtype=torch.long, device=zero.device)
    if language:
        labelled = batch.labels != IGNORE
        labelled[:, -1] = False  # (B, T): every predicted token but the value
        owner = labelled.nonzero()[:, 0]
        targets = batch.labels[labelled]
        rows = rows_of(model, attended.a[labelled])
        is_word = ~torch.isin(targets, key_ids)
        tokens = torch.bincount(owner, minlength=n)
        words = torch.bincount(owner[is_word], minlength=n)
        gate_other.index_add_(0, owner, rows.gate.double())
        for m, mlp in enumerate(fact_mlps):
            losses = token_nll(model, rows.mixed(mlp), targets).double()
            nll[:, m].index_add_(0, owner, losses)
            word_nll[:, m].index_add_(0, owner[is_word], losses[is_word])
    return PairScores(
        correct, attention.double(), last.gate.double(), gate_other, nll, word_nll, tokens, words
    )


def score_pairs(
    model,
    task: Task,
    samples: Int[Tensor, " n"],
    fact_mlps: Mapping[str, FactMLP],
    targets: Mapping[str, Int[Tensor, " F"]],
    *,
    table: TemplateTable | None = None,
    language: bool,
    chunk: int = 64,
    rank: int = 0,
    world: int = 1,
) -> Iterator[tuple[int, PairScores]]:
    """Yield (first sample's place, scores) for chunks of `samples`, every `world`-th chunk starting with `rank`.

    The chunks do not depend on the number of processes, so neither does any score.
    """
    device = model.device
    key_ids = task.key_ids.to(device)
    for number, start in enumerate(range(0, len(samples), chunk)):
        if number % world != rank:
            continue
        fact, template = task.pairs(samples[start : start + chunk], table)
        first = next(iter(targets.values()))
        batch = task.batch(fact, template, targets=first, table=table).to(device)
        wanted = torch.stack([targets[name][fact] for name in fact_mlps]).to(device)
        yield start, score_batch(model, batch, wanted, list(fact_mlps.values()), key_ids, language=language)


def summarise(scores: PairScores, before: int = 0, after: int = 1) -> dict[str, float]:
    """The means of a report: column `before` is the MLP trained with, `after` the one swapped in."""
    tokens, words = scores.tokens.sum().double(), scores.words.sum().double()
    accuracy = scores.correct.double().mean(dim=0)
    summary = {
        "value_accuracy": float(accuracy[before]),
        "fact_adaptive_accuracy": float(accuracy[after]),
        "attention_mass": float(scores.attention.mean()),
        "gate_value": float(scores.gate.mean()),
    }
    if tokens > 0:
        ce, word_ce = scores.nll.sum(dim=0) / tokens, scores.word_nll.sum(dim=0) / words
        summary |= {
            "gate_other": float(scores.gate_other.sum() / tokens),
            "nonfact_ce_before": float(ce[before]),
            "nonfact_ce_after": float(ce[after]),
            "nonfact_ce_ratio": float(ce[after] / ce[before]),
            "nonfact_word_ce_ratio": float(word_ce[after] / word_ce[before]),
        }
    return summary
