"""FT-L: fine-tuning of the down-projection within a box around the old weights (Zhu et al. 2020, arXiv 2012.00363, as the
baseline of arXiv 2202.05262), in the single-layer protocol of arXiv 2512.00207, A.3.4.

Adam on the cross-entropy of the wanted tokens. Nothing below the down-projection changes, so its keys are computed once, and a
change of W is a change (W - W0) k of the MLP's output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from mlpswap.config import option
from mlpswap.editing import (
    Adam,
    Adapter,
    EditConfig,
    EditorState,
    EditRequest,
    EditResult,
    Statistics,
    check_requests,
    diagnose,
    the_site,
)
from mlpswap.errors import ConfigError


@dataclass(frozen=True)
class FineTuningConfig(EditConfig):
    """Settings of FT-L. The published clamps are 5e-5 (GPT-J) to 2e-3 (GPT-2 medium)."""

    lr: float = option(5e-4, "Adam's learning rate, > 0")
    epochs: int = option(25, "passes over the edits at most, >= 1")
    batch_size: int = option(128, "edits in a batch, >= 1")
    clamp: float | None = option(5e-4, "epsilon: each weight stays within +- of its start, > 0; null: no box")
    enough: float = option(1e-2, "no step for a batch with a lower loss, the end at a lower mean of an epoch")
    train_bias: bool = option(False, "train the bias too, as the original does")

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.epochs < 1 or self.batch_size < 1:
            raise ConfigError(
                f"lr must be positive, epochs and batch_size at least 1: "
                f"found {self.lr}, {self.epochs} and {self.batch_size}"
            )
        if self.clamp is not None and self.clamp <= 0:
            raise ConfigError(f"clamp must be positive or null: found {self.clamp}")
