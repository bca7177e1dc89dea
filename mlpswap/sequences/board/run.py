"""The leader board: which searches are run, and what they found as rows beside the published figures."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from mlpswap.config import build_options
from mlpswap.cost.search import Found, Outcome
from mlpswap.errors import ConfigError
from mlpswap.sequences.base import Method, Screening
from mlpswap.sequences.board.config import SequenceEntry, SequencesConfig, Size
from mlpswap.sequences.board.frontier import frontier
from mlpswap.sequences.board.probe import Cell
from mlpswap.sequences.board.published import expected, published
from mlpswap.sequences.methods import get_method
from mlpswap.sequences.scores import RULES
from mlpswap.sequences.search import Probes, bisection, bracketed_search, capacity, full_search

Outcomes = dict[int, Outcome]  # by number of facts
WIDTH = 0.1  # of a bracket about what the rule before has found


@dataclass(frozen=True)
class Task:
    """One search: a method at one size, for all thresholds that one build serves. `cell` is None if it is not run."""

    entry: SequenceEntry
    size: Size
    cell: Cell | None
    thresholds: list[float]


def check_methods(config: SequencesConfig) -> None:
    """Raise `ConfigError` or `RegistryError` for a method or an option that does not exist."""
    for entry in config.methods:
        method = get_method(entry.method)
        if entry.keep is not None and not isinstance(method, Screening):
            raise ConfigError(
                f"{entry.name}: keep = {entry.keep}: '{entry.method}' has no screening; leave it null"
            )
        for choice in _cell(config, entry, Size(), [1.0]).choices():
            build_options(method.Config, entry.options | choice, f"methods: {entry.name}")


def tasks_of(config: SequencesConfig) -> list[Task]:
    """Every method at every size; those that are not run have no cell."""
    tasks = []
    for size in config.all_sizes():
        for entry in config.methods:
            groups = [[each] for each in config.thresholds]
            if not get_method(entry.method).gives_up:
                groups = [list(config.thresholds)]
            for thresholds in groups:
                run = entry.d is None or size.d in entry.d
                tasks.append(
                    Task(entry, size, _cell(config, entry, size, thresholds) if run else None, thresholds)
                )
    names = {(task.entry.name, task.size.d) for task in tasks if task.cell}
    # An entry of the same name may be what runs at this size.
    return [task for task in tasks if task.cell or (task.entry.name, task.size.d) not in names]


def _cell(config: SequencesConfig, entry: SequenceEntry, size: Size, thresholds: list[float]) -> Cell:
    return Cell(
        entry.name, entry.method, dict(entry.options), dict(entry.grid), entry.keep,
        *size.shape,
        thresholds, entry.trials or config.trials, config.seed, config.facts_seed,
    )  # fmt: skip


def series_of(entry: SequenceEntry, method: Method) -> str:
    """The published figures that an entry stands beside."""
    return entry.beside or ("random embedding" if method.name == "random_embedding" else method.column)


def search_of(config: SequencesConfig, task: Task) -> Generator[tuple[int, int], Outcome, Outcomes]:
    """Ask for one number of facts after the other until all thresholds and rules are settled."""
    assert task.cell is not None
    entry, ceiling = task.entry, task.cell.tokens**2
    series = series_of(entry, get_method(entry.method))
    outcomes: Outcomes = {}
    for threshold in task.thresholds:
        for rule in RULES:
            stored = storing(threshold, rule)
            if entry.search == "full":
                probes = full_search(ceiling, config.precision)
            else:
                guess = expected(series, threshold, task.size.d)
                probes = narrowed(outcomes, stored, guess, ceiling, config.precision)
            try:
                count = next(probes)
                while True:
                    if count not in outcomes:
                        outcomes[count] = yield count, 0
                    count = probes.send(stored(outcomes[count]))
            except StopIteration:
                pass
    return outcomes


def storing(threshold: float, rule: str) -> Callable[[Outcome], bool]:
    """Whether a probe counts as stored; one that took too long does not, nor one that is infeasible."""

    def stored(outcome: Outcome) -> bool:
        best = outcome.figures.get("best")
        return outcome.accuracy is not None and best is not None and best[rule]["accuracy"] >= threshold

    return stored


def narrowed(
    outcomes: Outcomes, stored: Callable[[Outcome], bool], guess: float, ceiling: int, precision: float
) -> Probes:
    """A bracket from what is known by other rules, and about `guess` where that says nothing."""
    found = capacity({count: stored(outcome) for count, outcome in outcomes.items()})
    first = min((count for count, outcome in outcomes.items() if not stored(outcome)), default=None)
    if found.largest and found.failed:
        return bisection(found.largest, found.failed, precision)
    if first is not None:  # nothing stored so far
        return bracketed_search(first, ceiling, precision, width=WIDTH, high=first)
    if found.largest:
        return bracketed_search(found.largest, ceiling, precision, width=WIDTH, low=found.largest)
    return bracketed_search(min(guess, ceiling), ceiling, precision)


def rows_of(tasks: list[Task], found: dict[int, Any]) -> list[dict[str, Any]]:
    """One row for each method, size and threshold. `found` has what each task with a cell came to, in their order."""
    rows: list[dict[str, Any]] = []
    number = 0
    for task in tasks:
        result = None
        if task.cell is not None:
            result, number = found[number], number + 1
        rows += [_row(task, threshold, result) for threshold in task.thresholds]
    return [row | {"frontier": _shared_frontier(rows, row)} for row in rows]


def _shared_frontier(rows: list[dict[str, Any]], row: dict[str, Any]) -> list[list[int]]:
    """What is stored at a higher threshold, by a search of its own, is stored at this one."""
    same = ("method", "d", "tokens", "labels")
    return frontier(
        (facts, bits)
        for other in rows
        if other["threshold"] >= row["threshold"] and all(other[name] == row[name] for name in same)
        for bits, facts in other.get("frontier", ())
    )


def _row(task: Task, threshold: float, result: Any) -> dict[str, Any]:
    entry, size, method = task.entry, task.size, get_method(task.entry.method)
    series = series_of(entry, method)
    _, tokens, labels = size.shape
    standard = (tokens, labels) == (2 * size.d, size.d)
    beside = published(series, threshold, size.d) if standard else (None,) * len(RULES)
    row: dict[str, Any] = {
        "method": entry.name, "kind": entry.method, "column": method.column, "source": method.source,
        "d": size.d, "tokens": tokens, "labels": labels, "threshold": threshold,
        "parameters": (2 * tokens + labels) * size.d, "beside": series,
        **{f"published_{rule}": figure for rule, figure in zip(RULES, beside, strict=True)},
    }  # fmt: skip
    if task.cell is None:
        return row | {"status": "not run", "note": "not run"}
    row |= {"trials": task.cell.trials, "cells": len(task.cell.choices()), "kept": entry.keep}
    if isinstance(result, Found):
        return row | {"status": "error", "note": str(result.outcomes[0].figures.get("error"))}
    return row | _measured(result, threshold)


def _measured(outcomes: Outcomes, threshold: float) -> dict[str, Any]:
    """What the probes of one search say at one threshold."""
    capacities = {
        rule: capacity({count: storing(threshold, rule)(each) for count, each in outcomes.items()})
        for rule in RULES
    }
    found: dict[str, Any] = {"status": "found", "note": ""}
    for rule, each in capacities.items():
        found |= {rule: each.largest, f"{rule}_unbroken": each.unbroken, f"{rule}_fails_at": each.failed}
        if each.largest:
            found[f"{rule}_options"] = outcomes[each.largest].figures["best"][rule]["options"]
    if (largest := capacities["any"].largest) == 0:
        found["status"] = "none"
    else:
        figures = outcomes[largest].figures
        found |= {"seconds": figures["seconds"], "margin": figures["margin"]}
        found["bits"] = figures["bits"].get(str(threshold))
        found["frontier"] = frontier(
            (count, each.figures["bits"][str(threshold)])
            for count, each in outcomes.items()
            if storing(threshold, "any")(each) and str(threshold) in each.figures["bits"]
        )
    late = [count for count, each in outcomes.items() if each.accuracy is None]
    if any(capacities[rule].failed in late for rule in RULES):
        found |= {"status": "capped", "note": f"{min(late)} facts took too long"}
    infeasible = [each.figures["infeasible"] for each in outcomes.values() if "infeasible" in each.figures]
    if found["status"] == "none" and infeasible:
        found["note"] = infeasible[0]
    found["probes"] = len(outcomes)
    return found
