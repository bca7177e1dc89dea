"""The training loss: candidate softmax, off-value shuffle, and the draws that a step needs.

Every draw is a function of (seed, step) and is made for the global batch, so that it does not depend on the number of
processes. The shuffle alone is drawn within a rank, from (seed, step, rank).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mlpswap.randomness import generator
from mlpswap.tasks.base import IGNORE, Batch, SampleOrder, Task
from mlpswap.training.config import OptimiserOptions


@dataclass(frozen=True)
class Step:
    """What one process trains on in one step: its slice of the global batch, and the draws."""

    batch: Batch
    kept: Bool[Tensor, "B T"]  # positions whose label is used
    permutation: Int[Tensor, " n"] | None  # over the kept positions
    candidates: Int[Tensor, " c"] | None  # ids of the softmax's columns; None: the whole vocabulary
    negatives: Int[Tensor, " S"] | None  # sampled columns, besides

    def to(self, device: torch.device | str) -> "Step":
        moved = [
            None if t is None else t.to(device) for t in (self.permutation, self.candidates, self.negatives)
        ]
        return Step(self.batch.to(device), self.kept.to(device), *moved)


class StepSource:
    """Makes the batches of a run; `step(n)` is the n-th for this rank, whatever was asked for before."""

    def __init__(self, task: Task, options: OptimiserOptions, seed: int, *, rank: int = 0, world: int = 1):
        self.task, self.options, self.seed = task, options, seed
        self.rank, self.world = rank, world
        self.order = SampleOrder(task.population, seed)
        self.targets = task.target_ids(task.facts)
        vocabulary = task.vocabulary
        self.words = torch.as_tensor(vocabulary.word_ids)
        self.fact_tokens = torch.cat([task.key_ids, torch.as_tensor(vocabulary.value_ids)])
        is_fact = torch.zeros(len(vocabulary), dtype=torch.bool)
        is_fact[self.fact_tokens] = True
        self.always = (~is_fact).nonzero().flatten()  # words, and the three special tokens

    def samples(self, step: int) -> Int[Tensor, " B"]:
        """The sample numbers of the global batch."""
        size = self.options.batch_size
        return self.order.take(step * size, size)

    def step(self, number: int) -> Step:
        options = self.options
        fact, template = self.task.pairs(self.samples(number))
        batch = self.task.batch(fact, template, targets=self.targets)
        kept = batch.labels != IGNORE
        candidates = negatives = None
        if self.task.language:
            batch, replaced = self._with_noise(batch, number)
            kept[:, :-1] &= ~replaced[:, 1:]
            chance = torch.rand(kept.shape, generator=generator(self.seed, "labels", number))
            kept[:, :-1] &= chance[:, :-1] < options.p_nonvalue
            if options.negatives is not None and options.negatives < len(self.fact_tokens):
                draw = generator(self.seed, "negatives", number)
                negatives = self.fact_tokens[
                    torch.randperm(len(self.fact_tokens), generator=draw)[: options.negatives]
                ]
                candidates = torch.unique(torch.cat([self.always, batch.labels[kept]]))
        start, stop = (len(batch) * r // self.world for r in (self.rank, self.rank + 1))
        kept = kept[start:stop]
        permutation = None
        if self.task.language and options.shuffle_offvalue:
            draw = generator(self.seed, "shuffle", number, self.rank)
            permutation = torch.randperm(int(kept.sum()), generator=draw)
        return Step(batch.rows(start, stop), kept, permutation, candidates, negatives)

    def _with_noise(self, batch: Batch, number: int) -> tuple[Batch, Bool[Tensor, "B T"]]:
        draw = generator(self.seed, "noise", number)
        shape = batch.input_ids.shape
        replaced = (torch.rand(shape, generator=draw) < self.options.p_noise) & batch.replaceable
        words = self.words[torch.randint(len(self.words), shape, generator=draw)]
        ids = torch.where(replaced, words, batch.input_ids)
        return Batch(ids, batch.attention_mask, batch.labels, batch.key_position, batch.replaceable), replaced


@dataclass
class StepStats:
    """Means over this rank's slice, for the progress bar and the log."""

    attention_mass: Float[Tensor, ""]
    gate_value: Float[Tensor, ""]
    gate_other: Float[Tensor, ""]


class TrainingObjective(nn.Module):
    """The host together with its loss, so that one forward call does all that a data-parallel wrapper must see."""

    def __init__(self, model, task: Task, options: OptimiserOptions, *, world: int = 1):
        super().__init__()
        self.model = model
        self.language = task.language
        self.options = options
        self.fact_tokens = len(task.vocabulary.key_ids) + len(task.vocabulary.value_ids)
        # Gradients are averaged over processes; slices may differ in length, so each carries its share of the sum.
        # 4 B stands for the usual number of labels (specification, section 7.3).
        self.scale = world / (options.batch_size * (4 if task.language else 1))

    def forward(self, step: Step) -> tuple[Float[Tensor, ""], StepStats]:
        model, batch = self.model, step.batch
        attended = model.attend(
            batch.input_ids, batch.attention_mask, last_only=not self.language, return_attention=True
        )
        kept = step.kept if self.language else step.kept[:, -1:]
        a = attended.a[kept]  # (n, d)
        labels = (batch.labels if self.language else batch.labels[:, -1:])[kept]  # (n,)
        last = torch.zeros_like(kept)
        last[:, -1] = True
        is_value = last[kept]
        z = model.norm_input(a)
        fact_out = model.fact_mlp(z)
        if step.permutation is not None:
            fact_out = torch.where(is_value[:, None], fact_out, fact_out[step.permutation])
        mixed = model.mix(a, z, fact_out)
        losses = self._cross_entropy(model.head_direction(mixed.y), labels, step)
        weights = torch.where(is_value, 1.0, 1.0 / self.options.p_nonvalue)
        with torch.no_grad():
            mass = attended.probabilities[:, :, -1].mean(dim=1)  # (B, T)
            mass = mass.gather(1, batch.key_position[:, None]).mean()
            other = mixed.gate[~is_value]
            stats = StepStats(
                mass, mixed.gate[is_value].mean(), other.mean() if len(other) else other.new_zeros(())
            )
        return (weights * losses).sum() * self.scale, stats

    def _cross_entropy(
        self, direction: Float[Tensor, "n d"], labels: Int[Tensor, " n"], step: Step
    ) -> Float[Tensor, " n"]:
        table = self.model.get_output_embeddings().weight
        if step.candidates is None or step.negatives is None:
            return F.cross_entropy(direction @ table.T, labels, reduction="none")
        logits = direction @ table[step.candidates].T  # (n, c)
        sampled = direction @ table[step.negatives].T  # (n, S)
        # A sample of S stands for all fact tokens; a row's own target among it would count twice.
        sampled = sampled + math.log(self.fact_tokens / len(step.negatives))
        sampled = sampled.masked_fill(step.negatives == labels[:, None], float("-inf"))
        columns = torch.searchsorted(step.candidates, labels)
        return F.cross_entropy(torch.cat([logits, sampled], dim=1), columns, reduction="none")
