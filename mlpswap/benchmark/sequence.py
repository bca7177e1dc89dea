"""Batches of edits, one after the other, without going back: which facts, in which order, and the unedited model's answers."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mlpswap.benchmark.base import Base
from mlpswap.benchmark.config import SequentialConfig
from mlpswap.benchmark.retention import LOCAL
from mlpswap.benchmark.splits import Edits, edit_templates, preserved_statistics
from mlpswap.constructions.base import FactMLP
from mlpswap.editing import SecondMoment
from mlpswap.editing.evaluation import (
    Probes,
    PromptCache,
    correct,
    language_losses,
    mean_over_facts,
    nonfact_change,
)
from mlpswap.editing.locality import answers, mean_kl, nearest_cosine
from mlpswap.errors import ConfigError
from mlpswap.facts import FactSet
from mlpswap.randomness import generator
from mlpswap.tasks import Task

QUARTERS = 4  # of the preserved facts, by how near their keys come to an edited one


def make_steps(task: Task, config: SequentialConfig) -> list[Edits]:
    """The calls of an editor: T batches, or, in mode "batch", one. Raises `ConfigError` if the facts do not suffice.

    In each round all facts that may be edited, as far as they fill whole batches, permute their present values among
    themselves and are edited batch by batch. `after` is the truth once a batch is done; in mode "independent" it holds that
    batch's changes alone.
    """
    facts, count = task.facts, len(task.facts)
    asked = config.batches * config.size
    preserved = count - asked if config.preserved is None else config.preserved
    if preserved < 0:
        raise ConfigError(
            f"cannot edit {config.batches} batches of {config.size} different facts: there are {count}; "
            "with preserved=N all others are edited again and again"
        )
    if count - preserved < config.size:
        raise ConfigError(f"cannot edit {config.size} facts at a time and preserve {preserved} of {count}")
    keep, pool = facts.split(generator(config.seed, "split", config.size), preserved, count - preserved)
    batches: list[tuple[list[int], dict[str, str]]] = []
    while len(batches) < config.batches:
        truth, rounds = _altered(facts, batches), len(batches)
        full = min(len(pool) // config.size, config.batches - rounds) * config.size
        order = torch.randperm(len(pool), generator=generator(config.seed, "order", rounds))[:full].tolist()
        chosen = [pool[i] for i in order]
        draw = generator(config.seed, "permutation", rounds)
        target = truth.permute(draw, indices=chosen, derange=config.derange)
        for start in range(0, full, config.size):
            part = chosen[start : start + config.size]
            batches.append((part, {facts.keys[i]: target.value_of(facts.keys[i]) for i in part}))
    if config.mode == "batch":
        everyone = list(dict.fromkeys(i for part, _ in batches for i in part))
        stages = [(everyone, _altered(facts, batches))]
    elif config.mode == "independent":
        stages = [(part, facts.alter(changes)) for part, changes in batches]
    else:
        stages, truth = [], facts
        for part, changes in batches:
            truth = truth.alter(changes)
            stages.append((part, truth))
    kept, template = torch.tensor(keep, dtype=torch.long), edit_templates(task, config.seed)
    return [Edits(torch.tensor(part), kept, after, template) for part, after in stages]


def _altered(facts: FactSet, batches: list[tuple[list[int], dict[str, str]]]) -> FactSet:
    return facts.alter({key: value for _, changes in batches for key, value in changes.items()})


@dataclass(frozen=True, eq=False)
class Course:
    """What every editor goes through, and the unedited model's side of each comparison.

    carry: whether a batch finds what the batches before it left. `right`: which preserved facts the unedited model
    tells right.
    """

    base: Base
    seed: int
    mode: str
    steps: list[Edits]
    probes: Probes
    statistics: Mapping[int, SecondMoment] | None
    unedited: FactMLP
    right: Bool[Tensor, " P"]
    said: PromptCache
    spoken: PromptCache
    keys: Mapping[str, Float[Tensor, "_ h"]]

    @property
    def carry(self) -> bool:
        return self.mode != "independent"

    @classmethod
    def of(cls, base: Base, config: SequentialConfig) -> "Course":
        model, steps = base.model, make_steps(base.task, config)
        first, mlp = steps[0], deepcopy(base.model.fact_mlp)
        everyone = torch.cat([step.altered for step in steps]).unique()
        groups = {"altered": everyone, "preserved": first.preserved, "edit_template": first.edit_template}
        probes = Probes.of(model, base.task, base.task.facts, **groups).with_rivals(model)
        kept, edited = probes.caches["specificity"], probes.caches["efficacy"]
        tokens = base.language.rows[slice(0, LOCAL)]
        none = torch.zeros(len(tokens), dtype=torch.long, device=model.device)
        return cls(
            base, config.seed, config.mode, steps, probes,
            preserved_statistics(base.adapter, base.task, first),
            mlp,
            correct(model, mlp, kept),
            replace(kept, wanted=answers(model, mlp, kept.rows)),
            PromptCache(tokens, answers(model, mlp, tokens), none),
            {name: mlp.hidden(cache.rows.z).detach() for name, cache in (("kept", kept), ("edited", edited))},
        )  # fmt: skip

    def facts_until(self, number: int) -> Int[Tensor, " m"]:
        """The facts whose edits are scored after the step of this number, from 0: all so far, where they are kept."""
        steps = self.steps[: number + 1] if self.carry else [self.steps[number]]
        return torch.cat([step.altered for step in steps]).unique()

    def measure(self, number: int, mlp: FactMLP) -> dict[str, float | list[float] | None]:
        """The scores of the fact MLP that stands after the step of this number, from 0."""
        model, step = self.base.model, self.steps[number]
        wanted = self.base.task.target_ids(step.after).to(model.device)
        now, edited = step.altered.to(model.device), self.facts_until(number).to(model.device)
        measured: dict[str, float | list[float] | None] = {}
        for name in ("efficacy", "paraphrase"):
            cache = self.probes.caches[name]
            cache = cache[torch.isin(cache.facts, edited)]
            found = correct(model, mlp, replace(cache, wanted=wanted[cache.facts]))
            measured[f"immediate_{name}"] = mean_over_facts(found, cache.facts, now)
            measured[f"retained_{name}"] = mean_over_facts(found, cache.facts) if self.carry else None
        kept = self.probes.caches["specificity"]
        right = correct(model, mlp, kept)
        new = language_losses(model, mlp, self.base.language)
        some = self.said.rows[slice(0, LOCAL)]
        return (
            measured
            | nonfact_change(self.base.language, self.base.losses, new)
            | {
                "specificity": mean_over_facts(right, kept.facts),
                "agreement": mean_over_facts(correct(model, mlp, self.said), kept.facts),
                "kl": mean_kl(model, self.unedited, mlp, some),
                "agreement_language": float(correct(model, mlp, self.spoken).double().mean()),
                "kl_language": mean_kl(model, self.unedited, mlp, self.spoken.rows),
                "specificity_change_by_distance": self.change_by_distance(right, edited),
                "weight_change": self.weight_change(mlp),
            }
        )

    def change_by_distance(self, right: Bool[Tensor, " P"], edited: Int[Tensor, " m"]) -> list[float]:
        """Change of the share of preserved facts told right, per quarter, from the farthest to the nearest."""
        asked = torch.isin(self.probes.caches["efficacy"].facts, edited)
        order = nearest_cosine(self.keys["kept"], self.keys["edited"][asked]).argsort(stable=True)
        change = (right.double() - self.right.double())[order]
        return [float(part.mean()) for part in change.tensor_split(QUARTERS)]

    def weight_change(self, mlp: FactMLP) -> float | None:
        """None where the down-projections differ in shape."""
        old, new = (each.down.weight.detach().double() for each in (self.unedited, mlp))
        return float((new - old).norm() / old.norm()) if new.shape == old.shape else None
