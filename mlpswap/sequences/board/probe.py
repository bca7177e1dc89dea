"""One probe of a leader board: build all trials of a method for one number of facts, and measure them."""

import itertools
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from mlpswap.config import build_options
from mlpswap.cost.search import Outcome
from mlpswap.errors import InfeasibleConstructionError
from mlpswap.sequences.base import Screening, trial_generator
from mlpswap.sequences.bits import bit_budget, smallest_margin
from mlpswap.sequences.facts import PairFacts, draw_pair_facts
from mlpswap.sequences.methods import get_method
from mlpswap.sequences.network import PairNetwork
from mlpswap.sequences.scores import RULES, agreed

SCREENING_TRIALS = 2


@dataclass(frozen=True)
class Cell:
    """One method at one size. Where the threshold changes what is built, there is one; otherwise a build serves all."""

    name: str
    method: str
    options: dict[str, Any]
    grid: dict[str, list[Any]]
    keep: int | None
    d: int
    tokens: int
    labels: int
    thresholds: list[float]
    trials: int
    seed: int
    facts_seed: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def identity(self) -> str:
        """What a probe depends on besides the number of facts: everything but the name."""
        return json.dumps({k: v for k, v in asdict(self).items() if k != "name"}, sort_keys=True)

    def choices(self) -> list[dict[str, Any]]:
        """The options of every point of the grid."""
        return [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())
        ]


def measure(cell: Cell, count: int, seed: int = 0) -> Outcome:
    """Build all trials at every point of the grid, and keep the best point by each rule.

    Any, Most and All are asked of each point by itself, as published. `seed` is not used: the cell has it. Accuracies are
    those of the float32 forward pass. A method that is infeasible at this size has accuracy 0.

    Figures: best, by rule {accuracy, options}; accuracies of all trials at the best point by Any; seconds for one of its
    networks; and bits, {threshold: significant bits of its weights that keep this accuracy}, for thresholds that it
    reaches, and the smallest margin of the network that counts: of those with the best accuracy, that of fewest bits.
    """
    method = get_method(cell.method)
    facts = draw_pair_facts(count, cell.tokens, cell.labels, seed=cell.facts_seed)
    best: dict[str, dict[str, Any]] = {}
    figures: dict[str, Any] = {}
    candidates: list[PairNetwork] = []
    for choice in chosen(cell, facts):
        config: Any = build_options(method.Config, cell.options | choice, cell.name)
        draws = [trial_generator(method.name, trial, cell.seed) for trial in range(cell.trials)]
        began = time.perf_counter()
        try:
            built = method.build(facts, cell.d, config, draws, threshold=cell.thresholds[0])
        except InfeasibleConstructionError as error:
            figures.setdefault("infeasible", str(error))
            continue
        seconds = (time.perf_counter() - began) / cell.trials
        accuracies = [each.accuracy(facts) for each in built]
        for rule in RULES:
            accuracy = agreed(accuracies, rule)
            if rule not in best or accuracy > best[rule]["accuracy"]:
                best[rule] = {"accuracy": accuracy, "options": choice}
                if rule == "any":
                    candidates = [
                        each for each, got in zip(built, accuracies, strict=True) if got == accuracy
                    ]
                    figures |= {"accuracies": accuracies, "seconds": seconds}
        if best["all"]["accuracy"] == 1:  # no other point can do better
            break
    if not candidates:
        return Outcome(count, seed, 0.0, figures)
    reached = [each for each in cell.thresholds if best["any"]["accuracy"] >= each]
    budgets = [[bit_budget(each, facts, threshold) for threshold in reached] for each in candidates]
    fewest = min(range(len(candidates)), key=lambda place: budgets[place])
    figures |= {"best": best, "margin": smallest_margin(candidates[fewest], facts)}
    figures["bits"] = {str(each): bits for each, bits in zip(reached, budgets[fewest], strict=True)}
    return Outcome(count, seed, best["any"]["accuracy"], figures)


def chosen(cell: Cell, facts: PairFacts) -> list[dict[str, Any]]:
    """The points of the grid that are built: all, or those that the method's own screening finds best."""
    choices = cell.choices()
    if cell.keep is None or cell.keep >= len(choices):
        return choices
    method = get_method(cell.method)
    assert isinstance(method, Screening)  # checked by the configuration
    configs: list[Any] = [
        build_options(method.Config, cell.options | choice, cell.name) for choice in choices
    ]
    draws = [
        trial_generator(f"{method.name} screening", trial, cell.seed) for trial in range(SCREENING_TRIALS)
    ]
    ranked = method.screened(facts, cell.d, configs, draws)[: cell.keep]
    return [choices[configs.index(config)] for config, _ in ranked]


def require_complete(outcome: Outcome) -> None:
    """Raise `ValueError` or `KeyError` for a probe that lacks what the table shows of it."""
    if outcome.accuracy is None or (outcome.accuracy == 0 and "infeasible" in outcome.figures):
        return
    best = outcome.figures["best"]
    shares = [outcome.accuracy, *outcome.figures["accuracies"], *(best[rule]["accuracy"] for rule in RULES)]
    for share in shares:
        if isinstance(share, bool) or not (isinstance(share, int | float) and 0 <= share <= 1):
            raise ValueError(f"accuracy = {share!r} of a probe: expected a share")
    for name, kinds in (("seconds", int | float), ("margin", int | float), ("bits", dict)):
        if not isinstance(outcome.figures[name], kinds):
            raise ValueError(f"{name} = {outcome.figures[name]!r} of a probe: expected {kinds}")
    if not all(type(bits) is int and bits > 0 for bits in outcome.figures["bits"].values()):
        raise ValueError(f"bits = {outcome.figures['bits']} of a probe: expected whole numbers")
    if not all(isinstance(best[rule]["options"], dict) for rule in RULES):
        raise ValueError(f"best = {best} of a probe: expected a mapping of options")
