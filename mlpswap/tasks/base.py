"""What both tasks share: templates with one hole for the key, batches made from (fact, template) pairs by number.

A prompt is a template with the key's token put into its hole; the value is what follows. Batches are padded on the left,
so that the value is always predicted at the last position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mlpswap.facts import FactSet
from mlpswap.model.tokenization import Vocabulary
from mlpswap.randomness import generator

IGNORE = -100
KEY = object()  # stands for the key among the tokens of a template


@dataclass(frozen=True)
class Batch:
    """Prompts as token ids, padded on the left. `labels[b, t]` is the token after position t, or -100.

    `key_position` is where the key's token stands. `hidden_words` marks words that noise may replace.
    """

    input_ids: Int[Tensor, "B T"]
    attention_mask: Bool[Tensor, "B T"]
    labels: Int[Tensor, "B T"]
    key_position: Int[Tensor, " B"]
    replaceable: Bool[Tensor, "B T"]

    def __len__(self) -> int:
        return len(self.input_ids)

    def rows(self, start: int, stop: int) -> "Batch":
        return Batch(*(getattr(self, name)[start:stop] for name in self.__dataclass_fields__))

    def to(self, device: torch.device | str) -> "Batch":
        return Batch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))

    def trimmed(self) -> "Batch":
        """Without the leading columns that are padding in every row."""
        used = self.attention_mask.any(dim=0).nonzero()
        first = int(used[0]) if len(used) else 0
        return Batch(
            self.input_ids[:, first:],
            self.attention_mask[:, first:],
            self.labels[:, first:],
            self.key_position - first,
            self.replaceable[:, first:],
        )


class TemplateTable:
    """Templates as one padded table of ids. A template is a sequence of ids with `KEY` in one place."""

    def __init__(
        self, templates: Sequence[Sequence[object]], *, pad_id: int, bos_id: int | None, all_labels: bool
    ):
        rows = [([bos_id] if bos_id is not None else []) + list(template) for template in templates]
        width = max(map(len, rows))
        shape = (len(rows), width)
        self.input_ids = torch.full(shape, pad_id)
        self.attention_mask = torch.zeros(shape, dtype=torch.bool)
        self.replaceable = torch.zeros(shape, dtype=torch.bool)
        self.key_position = torch.zeros(len(rows), dtype=torch.long)
        for i, row in enumerate(rows):
            start = width - len(row)
            self.key_position[i] = start + row.index(KEY)
            self.attention_mask[i, start:] = True
            self.input_ids[i, start:] = torch.tensor([0 if token is KEY else token for token in row])
            # Never <s>, never the key, never the word that announces the value.
            self.replaceable[i, start + (bos_id is not None) : -1] = True
            self.replaceable[i, self.key_position[i]] = False
        self.all_labels = all_labels

    def __len__(self) -> int:
        return len(self.input_ids)

    def batch(
        self,
        templates: Int[Tensor, " B"],
        key_ids: Int[Tensor, " B"],
        value_ids: Int[Tensor, " B"],
    ) -> Batch:
        """Prompts for the given templates and keys, with the values as the label of the last position."""
        input_ids = self.input_ids[templates]  # (B, T), a copy
        position = self.key_position[templates]
        input_ids.scatter_(1, position[:, None], key_ids[:, None])
        mask = self.attention_mask[templates]
        labels = torch.full_like(input_ids, IGNORE)
        if self.all_labels:
            labels[:, :-1] = input_ids[:, 1:].masked_fill(~mask[:, :-1], IGNORE)
        labels[:, -1] = value_ids
        return Batch(input_ids, mask, labels, position, self.replaceable[templates]).trimmed()


@dataclass(frozen=True)
class Task:
    """A fact set, its vocabulary, and the templates in which the facts are told.

    `table` holds the templates that are trained, `held_out` those that never are (None for SSFR). `language`: every
    position carries a label, and the host mixes a language expert in; otherwise only the value does.
    """

    name: str
    facts: FactSet
    vocabulary: Vocabulary
    table: TemplateTable
    held_out: TemplateTable | None
    language: bool

    @property
    def population(self) -> int:
        """Number of different training sequences: facts times templates."""
        return len(self.facts) * len(self.table)

    @property
    def key_ids(self) -> Int[Tensor, " F"]:
        return torch.as_tensor(self.vocabulary.key_ids)

    def target_ids(self, facts: FactSet) -> Int[Tensor, " F"]:
        """Token id of each fact's value under `facts`, which must have this task's keys and values."""
        return torch.as_tensor(self.vocabulary.value_ids)[facts.targets()]

    def batch(
        self,
        facts: Int[Tensor, " B"],
        templates: Int[Tensor, " B"],
        *,
        targets: Int[Tensor, " F"],
        table: TemplateTable | None = None,
    ) -> Batch:
        """The prompts of the pairs (fact, template); `targets` comes from `target_ids`."""
        return (table or self.table).batch(templates, self.key_ids[facts], targets[facts])

    def pairs(self, samples: Int[Tensor, " B"], table: TemplateTable | None = None) -> tuple[Tensor, Tensor]:
        """(facts, templates) of sample numbers 0 .. facts * templates - 1."""
        templates = len(table or self.table)
        return samples // templates, samples % templates

    def to_dataset(self, facts: FactSet | None = None):
        """Every training prompt as a `datasets.Dataset` with columns prompt, answer, key, template, input_ids, labels."""
        from datasets import Dataset

        facts = facts or self.facts
        fact, template = self.pairs(torch.arange(self.population))
        batch = self.batch(fact, template, targets=self.target_ids(facts))
        real = batch.attention_mask
        entries = self.vocabulary.entries
        ids = [row[mask].tolist() for row, mask in zip(batch.input_ids, real, strict=True)]
        return Dataset.from_dict(
            {
                "prompt": [" ".join(entries[i][1] for i in row if entries[i][0] != "special") for row in ids],
                "answer": [entries[int(i)][1] for i in batch.labels[:, -1]],
                "key": [facts.keys[i] for i in fact.tolist()],
                "template": template.tolist(),
                "input_ids": ids,
                "labels": [row[mask].tolist() for row, mask in zip(batch.labels, real, strict=True)],
            }
        )


class SampleOrder:
    """An endless order of samples that depends on (seed, epoch) alone, addressed by position.

    Position p lies in epoch p // population; every epoch visits each sample once. So a run can go on from any position,
    with any number of processes, and see what it would have seen.
    """

    def __init__(self, population: int, seed: int):
        self.population, self.seed = population, seed
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    def _of(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.randperm(self.population, generator=generator(self.seed, "order", epoch))
        return self._order

    def take(self, start: int, count: int) -> Int[Tensor, " count"]:
        """Samples at positions start .. start + count - 1."""
        parts = []
        while count > 0:
            epoch, offset = divmod(start, self.population)
            part = self._of(epoch)[offset : offset + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return torch.cat(parts)
