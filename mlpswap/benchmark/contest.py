"""What editors compete in: their settings, the exam on one split, and the rows that come of it.

An editor may be anybody's code. Whatever it does wrong costs its own rows and no one else's: a row without a score
says what went wrong.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from mlpswap.benchmark.base import Base
from mlpswap.benchmark.splits import Split, preserved_statistics, requests_of
from mlpswap.config import to_plain
from mlpswap.constructions.base import FactMLP
from mlpswap.editing import EditRequest, EditResult, Statistics
from mlpswap.editing.evaluation import (
    PROBES,
    SCORER,
    Probes,
    language_losses,
    nonfact_change,
    outcomes,
    patched_fact_mlp,
    scores,
)
from mlpswap.errors import NonFiniteError, SingularMomentError
from mlpswap.facts import printable
from mlpswap.model import Patch
from mlpswap.model.saving import parameters_sha256
from mlpswap.randomness import generator

logger = logging.getLogger(__name__)

PROTOCOL = "single_layer"
RATIOS = ("nonfact_ce_ratio", "nonfact_word_ce_ratio", "nonfact_ppl_ratio")
SCORES = (*PROBES, "success", "score_harmonic", "score_geometric", *RATIOS)
SAMPLE = 2048  # preserved facts on which settings are screened

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Exam:
    """What every editor is asked on one split, and how its answers are scored. `sample`: fewer of the same prompts, on
    which settings are screened. `marked`: the scores of fact MLPs by their hash, since many settings of a grid come to
    the same weights.
    """

    split: Split
    seed: int
    probes: Probes
    sample: Probes | None
    requests: list[EditRequest]
    statistics: Statistics | None
    marked: dict[str, tuple[dict[str, float], float]] = field(default_factory=dict)

    @classmethod
    def of(cls, base: Base, split: Split, seed: int, *, screen: bool = False) -> "Exam":
        groups = {
            "altered": split.altered,
            "preserved": split.preserved,
            "edit_template": split.edit_template,
        }
        probes = Probes.of(base.model, base.task, split.after, **groups, names=PROBES)
        probes = probes.with_rivals(base.model)
        statistics = preserved_statistics(base.adapter, base.task, split)
        requests = requests_of(base.adapter, base.task, split)
        sample = probes.sample(SAMPLE, generator(seed, "screening", len(split.altered))) if screen else None
        return cls(split, seed, probes, sample, requests, statistics)

    def generator(self) -> torch.Generator:
        """The same draws for every editor and setting."""
        return generator(self.seed, "edit", len(self.split.altered))


def with_ridge(config: Any, statistics: Statistics | None) -> Any:
    """The same setting with a ridge where it would refuse a singular second moment; the row's setting shows it."""
    if getattr(config, "on_singular", None) != "error" or statistics is None:
        return config
    try:
        for moment in statistics.values():
            moment.factor("error")
    except SingularMomentError:
        return replace(config, on_singular="ridge")
    return config


def edits(base: Base, exam: Exam, editor: Any, settings: Sequence[Any]) -> Iterator[Any]:
    """The editor's result for each setting, one by one; editors that can share work between settings do."""
    if hasattr(editor, "edit_grid"):
        return iter(
            editor.edit_grid(
                base.adapter,
                [*exam.requests],
                settings,
                statistics=exam.statistics,
                generator=exam.generator(),
            )
        )
    return (
        editor.edit(
            base.adapter, [*exam.requests], config, statistics=exam.statistics, generator=exam.generator()
        )
        for config in settings
    )


def score(
    base: Base, exam: Exam, label: str, config: Any, result: Any, seconds: float, probes: Probes
) -> tuple[Row, float]:
    """The row of one setting, and its score on the half of the facts that settings are selected on.

    Raises `ConfigError` if the editor has written to the model.
    """
    base.require_unchanged()
    mlp = checked_result(base.model, result)
    marks = f"{mlp.config} {parameters_sha256(mlp)} {id(probes)}"
    if marks not in exam.marked:
        found = outcomes(base.model, mlp, probes)
        exam.marked[marks] = (
            scores(probes, found),
            scores(probes, found, exam.split.chosen)["score_harmonic"],
        )
    measured, half = exam.marked[marks]
    told = {"seconds": seconds, "notes": remarks(label, result, len(exam.requests))}
    return blank_row(exam, label, config) | measured | told, half


def checked_result(model: Any, result: Any) -> FactMLP:
    """The fact MLP that an editor asks for. Raises `TypeError` or `NonFiniteError` for what is no edit."""
    if not isinstance(result, EditResult):
        raise TypeError(f"expected an EditResult, found {type(result).__name__}")
    mlp = patched_fact_mlp(model, result.patch)
    if not all(parameter.isfinite().all() for parameter in mlp.parameters()):
        raise NonFiniteError("its patch holds NaN or infinity")
    return mlp


def refusals(result: EditResult) -> tuple[dict[str, str], list[str]]:
    """(request id -> why it was refused, the editor's notes), as far as the editor tells."""
    told = result.diagnostics
    refused = {str(name): str(reason) for name, reason in dict(told.get("refused", {})).items()}
    return refused, [printable(str(note)) for note in told.get("notes", [])]


def remarks(label: str, result: EditResult, requests: int) -> list[str]:
    """The editor's notes, and how many of the requests it refused."""
    refused, notes = refusals(result)
    if refused:
        why = printable(str(next(iter(refused.values()))))
        notes.append(f"{label}: {len(refused)} of {requests} requests refused: {why}")
    return notes


def blank_row(exam: Exam, label: str, config: Any) -> Row:
    """A row of the grid in which nothing is measured yet."""
    split = exam.split
    return {
        "editor": label,
        "setting": plain_setting(config),
        "protocol": PROTOCOL,
        "scorer": SCORER,
        "seed": exam.seed,
        "altered": len(split.altered),
        "preserved": len(split.preserved),
        "unchanged": split.unchanged,
        **dict.fromkeys(SCORES),
        "seconds": None,
        "selection": "grid",
        "notes": [],
        "error": None,
    }


def plain_setting(config: Any) -> dict[str, Any]:
    """An editor's options as JSON holds them."""
    return json.loads(json.dumps(to_plain(config), default=str))


def failure(exam: Exam, label: str, config: Any, error: Exception) -> Row:
    """The row of a setting that has no scores, and why."""
    reason = printable(str(error))
    logger.warning("%s", reason)
    return blank_row(exam, label, config) | {"error": reason}


def close_ups(base: Base, exam: Exam, row: Row, patch: Patch, selections: Sequence[str]) -> list[Row]:
    """A row of a best setting with everything measured, for each way to select it: one that was selected on half of the
    facts is reported on the other.
    """
    mlp = patched_fact_mlp(base.model, patch)
    found = outcomes(base.model, mlp, exam.probes, PROBES)
    change = nonfact_change(base.language, base.losses, language_losses(base.model, mlp, base.language))
    among = {"oracle": None, "selected": exam.split.reported}
    return [
        row | scores(exam.probes, found, among[selection]) | change | {"selection": selection}
        for selection in selections
    ]


def save_patch(patch: Patch, file: Path) -> None:
    """As a file and its sidecar; an empty patch has none."""
    if not patch.is_empty:
        patch.save(file)
