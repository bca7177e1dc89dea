"""One editor on one split: its settings are tried and scored, its best ones measured closely and saved.

An editor may be anybody's code. Whatever it does wrong costs its own rows and no one else's: a row without a score
says what went wrong.
"""

from pathlib import Path

from mlpswap.benchmark.base import Base
from mlpswap.benchmark.contest import Exam, Row, close_ups, failure, save_patch, with_ridge
from mlpswap.benchmark.entries import Contender
from mlpswap.benchmark.progress import Progress
from mlpswap.benchmark.trials import KINDS, Trials, best
from mlpswap.constructions.base import FactMLP
from mlpswap.editing.evaluation import patched_fact_mlp
from mlpswap.errors import RegistryError
from mlpswap.progress_bar import ProgressBar
from mlpswap.registry import plug_in
from mlpswap.runs import finite_or_null


def compete(
    base: Base,
    exam: Exam,
    contender: Contender,
    file: Path,
    progress: Progress,
    split: str,
    bar: ProgressBar,
) -> tuple[list[Row], FactMLP | None]:
    """Rows of the grid with the oracle and the selected row, and the fact MLP of the oracle row, whose patch goes to `file`.

    Settings that `progress` knows by the split's label are not tried again. Without a setting that can be scored there is
    no best one, and the MLP is None.
    """
    label = contender.label
    for old in (file, file.with_suffix(".json")):
        old.unlink(missing_ok=True)
    settings = [with_ridge(config, exam.statistics) for config in contender.settings]
    trials = Trials(base, exam, contender, settings, progress, split, bar)
    tried = trials.run()
    whole = [each for each in tried if each.row["selection"] == "grid"]
    rows = [each.row for each in sorted(tried, key=lambda each: each.place)]
    winners = [(best(whole, kind)[0], kind) for kind in KINDS if best(whole, kind)]
    mlp = None
    try:
        with plug_in(f"{label} failed"):
            patches = [trials.result(trial).patch for trial, _ in winners]
            base.require_unchanged()
            if patches:
                mlp = patched_fact_mlp(base.model, patches[0])
                save_patch(patches[0], file)
    except RegistryError as error:
        if isinstance(error.__cause__, OSError):  # ours: the disk
            raise error.__cause__ from None
        base.reopen()
        return [failure(exam, label, config, error) for config in settings], None
    if winners and winners[0][0] is winners[-1][0]:
        rows += close_ups(base, exam, winners[0][0].row, patches[0], KINDS)
    else:
        for (trial, kind), patch in zip(winners, patches, strict=True):
            rows += close_ups(base, exam, trial.row, patch, [kind])
    return finite_or_null(rows), mlp
