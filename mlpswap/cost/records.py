"""The list of all builds of a run, one JSON line each, from which a run that was cut short goes on."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlpswap.cost.pool import Measure, Search, run_searches
from mlpswap.cost.search import Outcome
from mlpswap.errors import CheckpointError
from mlpswap.progress_bar import ProgressBar

Builds = dict[tuple[str, int, int], Outcome]  # by the identity of the cell, size and seed


def run_recorded(
    log: Path,
    searches: Sequence[tuple[Any, Search]],
    known: Builds,
    *,
    measure: Measure,
    workers: int | None,
    seconds: float,
    size_of: Callable[[Any], float] = lambda cell: 0.0,
) -> dict[int, Any]:
    """Run all searches side by side and return what each found; every build is added to `known` and to the file `log`.

    Searches of large cells go first, as `size_of` says.

    Cells are dataclasses with `name`, `identity` and `to_dict`. workers: null means one per CPU.
    """
    found: dict[int, Any] = {}
    with (
        log.open("a", encoding="utf-8") as lines,
        ProgressBar(unit="build", desc=f"0 of {len(searches)} searches") as bar,
    ):

        def record(cell: Any, outcome: Outcome) -> None:
            known[cell.identity, outcome.size, outcome.seed] = outcome
            line = {"cell": cell.to_dict(), "size": outcome.size, "seed": outcome.seed}
            line |= {"accuracy": outcome.accuracy, **outcome.figures}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            lines.flush()
            bar.set_postfix_str(f"{cell.name} at {outcome.size}", refresh=False)
            bar.update()

        for number, result in run_searches(
            searches,
            known,
            measure=measure,
            workers=workers or os.cpu_count() or 1,
            seconds=seconds,
            record=record,
            size_of=size_of,
        ):
            found[number] = result
            bar.set_description(f"{len(found)} of {len(searches)} searches", refresh=False)
    return found


def read_probes(
    path: Path, seconds: float, cell_of: Callable[..., Any], require_complete: Callable[[Outcome], None]
) -> Builds:
    """The builds of an earlier part of the run; those that ended for a shorter time limit, or an error, are left out.

    A last line that a kill cut short is left out as well. Raises `CheckpointError` for any other damage, and where
    `require_complete` raises `ValueError`, `TypeError` or `KeyError`.
    """
    known: Builds = {}
    if not path.exists():
        return known
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        for line in lines[:-1]:
            content = json.loads(line)
            cell, size, seed = cell_of(**content.pop("cell")), content.pop("size"), content.pop("seed")
            outcome = Outcome(size, seed, content.pop("accuracy"), content)
            require_complete(outcome)
            if outcome.accuracy is not None or outcome.figures.get("capped_after", 0) >= seconds:
                known[cell.identity, size, seed] = outcome
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if lines[-1]:
        path.write_text("\n".join([*lines[:-1], ""]), encoding="utf-8")
    return known
