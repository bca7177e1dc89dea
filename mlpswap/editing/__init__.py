"""Editing facts: requests, adapters, what an editor is, and the parts that editors are made of."""

from mlpswap.editing.adapters import Adapter, FactAdapter, LayeredAdapter
from mlpswap.editing.causal_lm import CausalLMAdapter
from mlpswap.editing.closed_form import (
    UNCONVERGED,
    ClippedConfig,
    ClosedFormEditor,
    ResidualConfig,
    Writer,
    note_unconverged,
)
from mlpswap.editing.editor import (
    EditConfig,
    Editor,
    EditorState,
    EditResult,
    NumericConfig,
    ProtocolConfig,
    Statistics,
    check_requests,
    diagnose,
    moment_at,
    refuse_nonfinite,
    statistics_of,
    the_site,
)
from mlpswap.editing.host import HostAdapter
from mlpswap.editing.layers import SpreadingEditor
from mlpswap.editing.moments import SecondMoment, SymmetricFactor, check_policy, exact
from mlpswap.editing.prefixes import memit_prefixes, rome_prefixes, sample_prefixes
from mlpswap.editing.requests import Context, EditRequest, Prompts, requests_of
from mlpswap.editing.residuals import (
    Adam,
    Losses,
    Objective,
    ResidualOptions,
    ResidualRun,
    clip_residuals,
    optimise_residuals,
)
from mlpswap.editing.statistics import TokenStatistics, token_statistics, tokens_sha256
from mlpswap.editing.targets import (
    LayersConfig,
    TargetConfig,
    Targets,
    layered,
    mean_over_contexts,
    optimise_targets,
)

__all__ = [
    "Adam",
    "Adapter",
    "CausalLMAdapter",
    "ClippedConfig",
    "ClosedFormEditor",
    "Context",
    "EditConfig",
    "EditRequest",
    "EditResult",
    "Editor",
    "EditorState",
    "FactAdapter",
    "HostAdapter",
    "LayeredAdapter",
    "LayersConfig",
    "Losses",
    "NumericConfig",
    "Objective",
    "Prompts",
    "ProtocolConfig",
    "ResidualConfig",
    "ResidualOptions",
    "ResidualRun",
    "SecondMoment",
    "SpreadingEditor",
    "Statistics",
    "SymmetricFactor",
    "TargetConfig",
    "Targets",
    "TokenStatistics",
    "UNCONVERGED",
    "Writer",
    "check_policy",
    "check_requests",
    "clip_residuals",
    "diagnose",
    "exact",
    "layered",
    "mean_over_contexts",
    "memit_prefixes",
    "note_unconverged",
    "moment_at",
    "optimise_residuals",
    "optimise_targets",
    "refuse_nonfinite",
    "requests_of",
    "rome_prefixes",
    "sample_prefixes",
    "statistics_of",
    "the_site",
    "token_statistics",
    "tokens_sha256",
]
