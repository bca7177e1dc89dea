"""Which facts are altered, to what, and with which prompt (arXiv 2512.00207, A.3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from mlpswap.editing import EditRequest, HostAdapter
from mlpswap.errors import ConfigError
from mlpswap.facts import FactSet, printable
from mlpswap.randomness import generator
from mlpswap.tasks import Task


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


def requests_of(adapter: HostAdapter, task: Task, split: Split, prompts: Sequence[str]) -> list[EditRequest]:
    """One request for each altered fact, on its edit prompt. `prompts` are the trained templates without the author."""
    facts = task.facts
    return [
        adapter.request(
            prompts[int(split.edit_template[i])],
            facts.keys[i],
            split.after.value_of(facts.keys[i]),
            id=printable(facts.keys[i]),
        )
        for i in split.altered.tolist()
    ]
