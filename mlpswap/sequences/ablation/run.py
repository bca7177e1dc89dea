"""How many facts toy models store: every architecture at one size, and the full and the simple one as they grow."""

import json
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

import torch

from mlpswap.cost.search import Found, Outcome
from mlpswap.randomness import generator
from mlpswap.sequences.ablation.config import AblationConfig
from mlpswap.sequences.ablation.published import SCALING, WIDTH, published_table
from mlpswap.sequences.ablation.toy import (
    FULL,
    SIMPLE,
    Architecture,
    Shape,
    ToyPack,
    every_architecture,
    parameter_shapes,
)
from mlpswap.sequences.facts import draw_pair_facts
from mlpswap.sequences.scores import RULES, agreed
from mlpswap.sequences.search import capacity, published_search
from mlpswap.sequences.training.recipes import ABLATION, train

Outcomes = dict[int, Outcome]  # by number of facts
NAMED = {"FULL": FULL, "SIMPLE": SIMPLE}


@dataclass(frozen=True)
class Cell:
    """One search: an architecture at one width, with the trials of one repeat."""

    part: str  # table | scaling
    architecture: dict[str, Any]
    d: int
    repeat: int
    epochs: int
    patience: int
    trials: int
    seed: int
    facts_seed: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def switches(self) -> Architecture:
        return Architecture(**self.architecture)

    @property
    def name(self) -> str:
        return f"{describe(self.switches)}, d = {self.d}"

    @property
    def identity(self) -> str:
        return json.dumps(
            {key: value for key, value in asdict(self).items() if key != "part"}, sort_keys=True
        )


def describe(architecture: Architecture) -> str:
    """The parts that are there, as in "learned + MLP + norms, gelu"."""
    a, named = architecture, {each: name for name, each in NAMED.items()}
    if a in named:
        return named[a]
    parts = ["MLP"] if a.mlp else []
    parts += [
        name for name in ("norms", "residual", "bias") if getattr(a, name) and (a.mlp or name == "norms")
    ]
    return " + ".join([a.mixing, *parts]) + (f", {a.activation}" if a.mlp else "")


def cells_of(config: AblationConfig, *, trials: int, seed: int, facts_seed: int) -> list[Cell]:
    """Of the table, then of the scaling; a search that is in both is run once, for it has one identity."""
    common = {"patience": config.patience, "trials": trials, "seed": seed, "facts_seed": facts_seed}
    cells = []
    for repeat in range(config.repeats):
        if config.table is not None:
            cells += [
                Cell("table", asdict(each), config.table, repeat, config.epochs, **common)
                for each in every_architecture()
            ]
        for each in NAMED.values():
            # The published run doubled the epochs whenever it doubled the width.
            cells += [
                Cell("scaling", asdict(each), d, repeat, config.epochs * max(1, d // WIDTH), **common)
                for d in config.scaling
            ]
    return cells


def measure(cell: Cell, count: int, seed: int = 0) -> Outcome:
    """Train all trials on `count` facts. `seed` is not used: the cell has it. The accuracy is the best trial's."""
    shape = Shape.standard(cell.d)
    facts = draw_pair_facts(count, shape.tokens, shape.labels, seed=cell.facts_seed)
    text = json.dumps(cell.architecture, sort_keys=True)
    draws = [
        generator(cell.seed, "sequences", "toy", text, cell.repeat, trial) for trial in range(cell.trials)
    ]
    began = time.perf_counter()
    recipe = replace(ABLATION, epochs=cell.epochs, patience=cell.patience)
    found = train(ToyPack(cell.switches, shape, facts, draws), recipe)
    accuracies = (found.right.double() / count).tolist()
    figures = {
        "accuracies": accuracies,
        "epochs": found.epochs.tolist(),
        "seconds": time.perf_counter() - began,
    }
    return Outcome(count, seed, max(accuracies), figures)


def require_complete(outcome: Outcome) -> None:
    """Raise `ValueError` or `KeyError` for a probe that lacks what the table shows of it."""
    if outcome.accuracy is not None:
        accuracies = outcome.figures["accuracies"]
        if not accuracies or not all(isinstance(each, float) and 0 <= each <= 1 for each in accuracies):
            raise ValueError(f"accuracies = {accuracies!r} of a probe: expected shares")
        float(outcome.figures["seconds"])


def stored(outcome: Outcome, rule: str) -> bool:
    """Whether the trials have every fact right; a probe that took too long does not count."""
    return outcome.accuracy is not None and agreed(outcome.figures["accuracies"], rule) == 1


def search_of(cell: Cell, precision: int | None) -> Generator[tuple[int, int], Outcome, Outcomes]:
    """The published search by each rule in turn; what one has tried, the others know."""
    outcomes: Outcomes = {}
    for rule in RULES:
        probes = published_search(4 * cell.d**2, facts=precision or max(1, cell.d**2 // 32))
        try:
            count = next(probes)
            while True:
                if count not in outcomes:
                    outcomes[count] = yield count, 0
                count = probes.send(stored(outcomes[count], rule))
        except StopIteration:
            pass
    return outcomes


def rows_of(cells: list[Cell], found: dict[int, Any]) -> list[dict[str, Any]]:
    """One row for each architecture and width, with a list of one figure for each repeat by each rule."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, cell in enumerate(cells):
        switches, shape = cell.switches, Shape.standard(cell.d)
        key = (cell.part, switches, cell.d)
        if key not in rows:
            sizes = parameter_shapes(switches, shape).values()
            rows[key] = {
                "part": cell.part, "name": describe(switches), "d": cell.d, **cell.architecture,
                "parameters": sum(torch.Size(size).numel() for size in sizes),
                **{rule: [] for rule in RULES}, **published(cell), "probes": 0, "seconds": 0.0, "note": "",
            }  # fmt: skip
        row, result = rows[key], found[number]
        if isinstance(result, Found):
            row["note"] = str(result.outcomes[0].figures.get("error"))
            continue
        for rule in RULES:
            row[rule].append(capacity({n: stored(each, rule) for n, each in result.items()}).largest)
        row["probes"] += len(result)
        row["seconds"] += sum(each.figures.get("seconds", 0.0) for each in result.values())
        if late := [count for count, each in result.items() if each.accuracy is None]:
            row["note"] = f"{min(late)} facts took too long"
    return list(rows.values())


def published(cell: Cell) -> dict[str, float | None]:
    """The published figure by each rule, the mean where there are four; None where there is none."""
    if cell.part == "scaling":
        three: Any = SCALING[cell.switches].get(cell.d)
    else:
        three = [fmean(four) for four in published_table()[cell.switches]] if cell.d == WIDTH else None
    return {f"published_{rule}": None if three is None else three[n] for n, rule in enumerate(RULES)}


def effects(rows: Sequence[Mapping[str, Any]], rule: str = "any") -> list[dict[str, Any]]:
    """What each switch changes: the ratio of facts in all pairs of architectures of the table that differ in it alone."""
    facts = {
        Architecture(**{name: row[name] for name in FULL.__dataclass_fields__}): fmean(row[rule])
        for row in rows
        if row["part"] == "table" and row[rule]
    }
    found = []
    for label, name, before, after, mlp in _STEPS:
        ratios = []
        for architecture, count in facts.items():
            if getattr(architecture, name) == after and architecture.mlp in mlp:
                other = replace(architecture, **{name: before})
                if name == "mlp":  # without one, only the norms and the mixing are left to differ
                    other = Architecture(architecture.mixing, False, architecture.norms)
                if facts.get(other):
                    ratios.append(count / facts[other])
        if ratios:
            spread = {"least": min(ratios), "median": median(ratios), "most": max(ratios)}
            found.append({"switch": label, "pairs": len(ratios), **spread})
    return found


# What changes, its switch from one value to another, and the models it is seen in: with an MLP, without, or both.
_STEPS: list[tuple[str, str, Any, Any, tuple[bool, ...]]] = [
    ("MLP / none", "mlp", False, True, (True,)),
    ("norms / none, without MLP", "norms", False, True, (False,)),
    ("norms / none, with MLP", "norms", False, True, (True,)),
    ("residual / none", "residual", False, True, (True,)),
    ("bias / none", "bias", False, True, (True,)),
    ("GELU / ReLU", "activation", "relu", "gelu", (True,)),
    ("dual embedding / uniform attention", "mixing", "uniform", "dual", (True, False)),
    ("uniform / learned attention", "mixing", "learned", "uniform", (True, False)),
]
