"""Which facts are altered, to what, and with which prompt (arXiv 2512.00207, A.3.4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mlpswap.editing import EditRequest, HostAdapter, Prompts, SecondMoment, statistics_of
from mlpswap.errors import ConfigError, FactsError
from mlpswap.facts import FactSet
from mlpswap.randomness import generator
from mlpswap.registry import labels_of
from mlpswap.tasks import Task
from mlpswap.tasks.books import TRAINED


@dataclass(frozen=True, eq=False)
class Edits:
    """Facts `altered` take the values that they have in `after`, facts `preserved` keep theirs; the rest is unused.

    `edit_template[i]` is the template of fact i's edit prompt.
    """

    altered: Int[Tensor, " N"]
    preserved: Int[Tensor, " P"]
    after: FactSet
    edit_template: Int[Tensor, " F"]


@dataclass(frozen=True, eq=False)
class Split(Edits):
    """Edits that permute the values of the altered facts among themselves.

    `chosen` and `reported` halve both groups: settings are selected on the first half and reported on the second.
    """

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
    halves: tuple[list[int], list[int]] = ([], [])
    for group, name in ((change_ids, "altered"), (keep_ids, "preserved")):
        order = torch.randperm(len(group), generator=generator(seed, "halves", name, altered)).tolist()
        for place, index in enumerate(order):
            halves[place < len(group) // 2].append(group[index])
    return Split(
        torch.tensor(change_ids),
        torch.tensor(keep_ids, dtype=torch.long),
        after,
        edit_templates(task, seed),
        chosen=torch.tensor(halves[1], dtype=torch.long),
        reported=torch.tensor(halves[0], dtype=torch.long),
        unchanged=altered - len(facts.changed(after)),
    )


def edit_templates(task: Task, seed: int) -> Int[Tensor, " F"]:
    """A trained template for each fact's edit prompt, drawn at random."""
    return torch.randint(len(task.table), (len(task.facts),), generator=generator(seed, "edit templates"))


def preserved_statistics(adapter: HostAdapter, task: Task, edits: Edits) -> dict[int, SecondMoment] | None:
    """Second moments of the keys at the preserved facts' edit prompts; None if nothing is preserved."""
    facts = edits.preserved
    if not len(facts):
        return None
    batch = task.batch(facts, edits.edit_template[facts], targets=task.target_ids(task.facts))
    return statistics_of(adapter, Prompts(batch.input_ids, batch.attention_mask))


def requests_of(adapter: HostAdapter, task: Task, edits: Edits) -> list[EditRequest]:
    """One request for each altered fact, on its edit prompt."""
    facts, prompts = task.facts, [text.rsplit(" ", 1)[0] for text in TRAINED]  # without the author
    return [
        adapter.request(
            prompts[int(edits.edit_template[i])],
            facts.keys[i],
            edits.after.value_of(facts.keys[i]),
        )
        for i in edits.altered.tolist()
    ]
