"""One editor on one split: its settings are tried and scored, its best ones measured closely and saved.

An editor may be anybody's code. Whatever it does wrong costs its own rows and no one else's: a row without a score
says what went wrong.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlpswap.benchmark.base import Base
from mlpswap.benchmark.contest import Contender, Exam, Row, close_up, failure, save_patch, with_ridge
from mlpswap.benchmark.progress import Progress
from mlpswap.benchmark.trials import KINDS, Trials, best
from mlpswap.constructions.base import FactMLP
from mlpswap.editing.evaluation import patched_fact_mlp
from mlpswap.errors import RegistryError
from mlpswap.registry import plug_in
from mlpswap.runs import finite_or_null


def compete(
    base: Base,
    exam: Exam,
    contender: Contender,
    file: Path,
    progress: Progress,
    split: str,
    advance: Callable[[], Any],
) -> tuple[list[Row], FactMLP | None]:
    """Rows of the grid with the oracle and the selected row, and the fact MLP of the oracle row, whose patch goes to `file`.

    Settings that `progress` knows by the split's label are not tried again. Without a setting that can be scored there is
    no best one, and the MLP is None.
    """
    label = contender.label
    for old in (file, file.with_suffix(".json")):
        old.unlink(missing_ok=True)
    settings = [with_ridge(config, exam.statistics) for config in contender.settings]
    trials = Trials(base, exam, contender, settings, progress, split, advance)
    tried = trials.run()
    whole = [each for each in tried if each.row["selection"] == "grid"]
    rows = [each.row for each in sorted(tried, key=lambda each: each.place)]
    winners, mlp = {}, None
    try:
        with plug_in(f"{label} failed"):
            for kind in KINDS:
                for trial in best(whole, kind):
                    winners[kind] = (trial.row, trials.result(trial).patch)
            base.require_unchanged()
            if winners:
                mlp = patched_fact_mlp(base.model, winners["oracle"][1])
                save_patch(winners["oracle"][1], file)
    except RegistryError as error:
        if isinstance(error.__cause__, OSError):  # ours: the disk
            raise error.__cause__ from None
        base.reopen()
        return [failure(exam, label, config, error) for config in settings], None
    rows += [close_up(base, exam, row, patch, kind) for kind, (row, patch) in winners.items()]
    return finite_or_null(rows), mlp
