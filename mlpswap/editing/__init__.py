"""Editing facts: requests, adapters, what an editor is, and the parts that editors are made of."""

from mlpswap.editing.adapters import Adapter, FactAdapter
from mlpswap.editing.closed_form import ClippedConfig, ClosedFormEditor, ResidualConfig, Writer
from mlpswap.editing.editor import (
    EditConfig,
    Editor,
    EditorState,
    EditResult,
    NumericConfig,
    Statistics,
    check_requests,
    diagnose,
    moment_at,
    refuse_nonfinite,
    statistics_of,
    the_site,
)
from mlpswap.editing.host import HostAdapter
from mlpswap.editing.moments import SecondMoment, SymmetricFactor, check_policy, exact
from mlpswap.editing.requests import EditRequest, Prompts, requests_of
from mlpswap.editing.residuals import (
    Adam,
    Objective,
    ResidualOptions,
    ResidualRun,
    clip_residuals,
    optimise_residuals,
)

__all__ = [
    "Adam",
    "Adapter",
    "ClippedConfig",
    "ClosedFormEditor",
    "EditConfig",
    "EditRequest",
    "EditResult",
    "Editor",
    "EditorState",
    "FactAdapter",
    "HostAdapter",
    "NumericConfig",
    "Objective",
    "Prompts",
    "ResidualConfig",
    "ResidualOptions",
    "ResidualRun",
    "SecondMoment",
    "Statistics",
    "SymmetricFactor",
    "Writer",
    "check_policy",
    "check_requests",
    "clip_residuals",
    "diagnose",
    "exact",
    "moment_at",
    "optimise_residuals",
    "refuse_nonfinite",
    "requests_of",
    "statistics_of",
    "the_site",
]
