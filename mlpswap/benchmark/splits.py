"""Which facts are altered, to what, and with which prompt (arXiv 2512.00207, A.3.4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mlpswap.editing import EditRequest, HostAdapter, Prompts
from mlpswap.errors import ConfigError, FactsError
from mlpswap.facts import FactSet
from mlpswap.randomness import generator
from mlpswap.registry import labels_of
from mlpswap.tasks import Task
from mlpswap.tasks.books import TRAINED


@dataclass(frozen=True, eq=False)
class Split:
    """Facts `altered`, whose values are permuted among themselves, giving `after`; facts `preserved`; the rest is unused.

    `edit_template[i]` is the template of fact i's edit prompt. `chosen` and `reported` halve both groups: settings are
    selected on the first half and reported on the second.
    """

    altered: Int[Tensor, " N"]
    preserved: Int[Tensor, " P"]
    after: FactSet
    edit_template: Int[Tensor, " F"]
    chosen: Int[Tensor, " c"]
    reported: Int[Tensor, " r"]
    unchanged: int

    @property
    def size(self) -> tuple[int, int]:
        """(altered, preserved): no two splits of a run share it."""
        return len(self.altered), len(self.preserved)


def make_splits(task: Task, wanted: Sequence[Mapping[str, Any]], seed: int, *, derange: bool) -> list[Split]:
    """All splits of a configuration. Raises `ConfigError` naming the one that cannot be or stands twice."""
    splits: list[Split] = []
    for number, each in enumerate(wanted):
        try:
            split = make_split(task, each["altered"], each.get("preserved"), seed, derange=derange)
        except (ConfigError, FactsError) as error:
            raise ConfigError(f"splits[{number}]: {error}") from error
        for other, earlier in enumerate(splits):
            if earlier.size == split.size:
                raise ConfigError(
                    f"splits[{number}] is the same as splits[{other}]: {split.size[0]} altered, {split.size[1]} preserved"
                )
        splits.append(split)
    return splits


def split_labels(sizes: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """The names of splits in files and metrics: how many are altered, numbered where two splits alter as many."""
    different = list(dict.fromkeys(sizes))
    return dict(zip(different, labels_of([str(altered) for altered, _ in different]), strict=True))


def make_split(task: Task, altered: int, preserved: int | None, seed: int, *, derange: bool = False) -> Split:
    """Draw a split. Raises `ConfigError` naming both numbers if the facts do not suffice."""
    facts = task.facts
    rest = len(facts) - altered
    keep = rest if preserved is None else preserved
    if altered < 1 or keep < 0 or keep > rest:
        raise ConfigError(f"cannot alter {altered} and preserve {keep} of {len(facts)} facts")
    keep_ids, change_ids = facts.split(generator(seed, "split", altered), keep, altered)
    after = facts.permute(generator(seed, "permutation", altered), indices=change_ids, derange=derange)
    template = torch.randint(len(task.table), (len(facts),), generator=generator(seed, "edit templates"))
    halves: tuple[list[int], list[int]] = ([], [])
    for group, name in ((change_ids, "altered"), (keep_ids, "preserved")):
        order = torch.randperm(len(group), generator=generator(seed, "halves", name, altered)).tolist()
        for place, index in enumerate(order):
            halves[place < len(group) // 2].append(group[index])
    return Split(
        torch.tensor(change_ids),
        torch.tensor(keep_ids, dtype=torch.long),
        after,
        template,
        chosen=torch.tensor(halves[1], dtype=torch.long),
        reported=torch.tensor(halves[0], dtype=torch.long),
        unchanged=altered - len(facts.changed(after)),
    )


def preserved_prompts(task: Task, split: Split) -> Prompts:
    """The preserved facts' edit prompts, whose keys make the second moment."""
    facts = split.preserved
    batch = task.batch(facts, split.edit_template[facts], targets=task.target_ids(task.facts))
    return Prompts(batch.input_ids, batch.attention_mask)


def requests_of(adapter: HostAdapter, task: Task, split: Split) -> list[EditRequest]:
    """One request for each altered fact, on its edit prompt."""
    facts, prompts = task.facts, [text.rsplit(" ", 1)[0] for text in TRAINED]  # without the author
    return [
        adapter.request(
            prompts[int(split.edit_template[i])],
            facts.keys[i],
            split.after.value_of(facts.keys[i]),
        )
        for i in split.altered.tolist()
    ]
