"""FT-L: fine-tuning of the down-projection within a box around the old weights (Zhu et al. 2020, arXiv
2012.00363, as the baseline of arXiv 2202.05262), in the single-layer protocol of arXiv 2512.00207, A.3.4.

Adam on the cross-entropy of the wanted tokens. Nothing below the down-projection changes, so its keys are
computed once, and a change of W is a change (W - W0) k of the MLP's output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.config import option
from mlpswap.editing import (
    Adam,
    Adapter,
    EditorState,
    EditRequest,
    EditResult,
    NumericConfig,
    Objective,
    Statistics,
    check_requests,
    diagnose,
    refuse_nonfinite,
    the_site,
)
from mlpswap.errors import ConfigError


@dataclass(frozen=True)
class FineTuningConfig(NumericConfig):
    """Settings of FT-L. The published clamps are 5e-5 (GPT-J) to 2e-3 (GPT-2 medium)."""

    lr: float = option(5e-4, "Adam's learning rate, > 0")
    epochs: int = option(25, "passes over the edits at most, >= 1")
    batch_size: int = option(128, "edits in a batch, >= 1")
    clamp: float | None = option(5e-4, "epsilon: each weight stays within +- of its start, > 0; null: no box")
    enough: float = option(1e-2, "no step for a batch with a lower loss, the end at a lower mean of an epoch")
    train_bias: bool = option(False, "train the bias too, as the original does")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr <= 0 or self.epochs < 1 or self.batch_size < 1:
            raise ConfigError(
                f"lr must be positive, epochs and batch_size at least 1: "
                f"found {self.lr}, {self.epochs} and {self.batch_size}"
            )
        if self.clamp is not None and self.clamp <= 0:
            raise ConfigError(f"clamp must be positive or null: found {self.clamp}")


class FineTuning:
    """Adam on W, clamped after each step."""

    name = "ft"
    Config = FineTuningConfig

    def edit(
        self,
        adapter: Adapter,
        requests: Sequence[EditRequest],
        config: FineTuningConfig,
        *,
        statistics: Statistics | None = None,
        state: EditorState | None = None,
        generator: torch.Generator | None = None,
    ) -> EditResult:
        """See `mlpswap.editing.Editor`. Batches come in the order of the requests: nothing here is random."""
        if state is not None:
            raise ConfigError("ft carries no state from batch to batch: found one")
        site = the_site(adapter)
        bias = adapter.bias(site) if config.train_bias else None
        if config.train_bias and bias is None:
            raise ConfigError("train_bias: this down-projection has no bias")
        kept, refused = check_requests(adapter, requests, config.on_conflict)
        if kept:
            objective = adapter.objective(kept, site)
            keys = adapter.keys(adapter.prompts(kept), site).to(objective.output.dtype)
            sound = keys.isfinite().all(dim=1) & losses_of(objective, config.batch_size).isfinite()
            refused |= refuse_nonfinite(kept, sound.cpu(), config)
            kept, objective, keys = list(compress(kept, sound.tolist())), objective[sound], keys[sound]
        if not kept:
            nothing = diagnose(requests, (), refused, ["no request was left to carry out"])
            return EditResult(adapter.patch(site, None, editor=self.name), None, nothing)
        changes = [torch.zeros_like(adapter.weight(site), dtype=keys.dtype)]
        if bias is not None:
            changes.append(torch.zeros_like(bias, dtype=keys.dtype))
        first, last, epochs = fine_tune(objective, keys, changes, config)
        if not all(change.isfinite().all() for change in changes):
            everyone = torch.zeros(len(kept), dtype=torch.bool)
            refused |= refuse_nonfinite(kept, everyone, config, f"training diverged at lr = {config.lr}")
            nothing = diagnose(
                requests, (), refused, [f"ft: training diverged at lr = {config.lr}: nothing changes"]
            )
            return EditResult(adapter.patch(site, None, editor=self.name), None, nothing)
        delta, shift = changes[0], changes[1] if config.train_bias else None
        return EditResult(
            adapter.patch(site, delta, bias=shift, editor=self.name, requests=kept),
            None,
            diagnose(
                requests,
                kept,
                refused,
                keys=keys,
                first_loss=first,
                last_loss=last,
                epochs=epochs,
                delta_norm=float(delta.norm()),
            ),
        )

    def grid(self, preset: str = "released") -> list[dict[str, Any]]:
        """Neither source fine-tunes, so both presets are ours: three learning rates times four boxes."""
        if preset not in ("released", "paper"):
            raise ConfigError(f"no grid '{preset}' of ft: there are released, paper")
        points = product((5e-5, 5e-4, 5e-3), (5e-5, 5e-4, 5e-3, None))
        return [dict(zip(("lr", "clamp"), point, strict=True)) for point in points]

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        """Options with which it carries out each of a few edits."""
        return {"lr": 1e-2, "clamp": None, "epochs": 200}


def losses_of(objective: Objective, batch_size: int) -> Float[Tensor, " n"]:
    """Before any step, in batches: what is NaN here would be NaN in its whole batch."""
    parts = [objective[start : start + batch_size] for start in range(0, len(objective), batch_size)]
    return torch.cat([part.nll(torch.zeros_like(part.output)) for part in parts])


def fine_tune(
    objective: Objective, keys: Float[Tensor, "n h"], changes: list[Tensor], config: FineTuningConfig
) -> tuple[float, float, int]:
    """Train W - W0 (d, h) and, if it is there, b - b0 (d,), in place. Returns the mean losses of the first
    and the last epoch and the number of epochs.
    """
    optimisers = [Adam(config.lr) for _ in changes]
    first = last = float("nan")
    for epoch in range(1, config.epochs + 1):
        total = 0.0
        for start in range(0, len(keys), config.batch_size):
            rows = slice(start, start + config.batch_size)
            with torch.enable_grad():
                parameters = [change.detach().requires_grad_() for change in changes]
                moved = keys[rows] @ parameters[0].T  # (batch, d)
                moved = moved + parameters[1] if len(parameters) > 1 else moved
                loss = objective[rows].nll(moved).mean()
            total += loss.item() * len(moved)
            if loss < config.enough:
                continue
            gradients = torch.autograd.grad(loss, parameters)
            for change, gradient, adam in zip(changes, gradients, optimisers, strict=True):
                adam.step(change, gradient)
                if config.clamp is not None:
                    box = min(config.clamp, torch.finfo(change.dtype).max)
                    change.clamp_(-box, box)
        last = total / len(keys)
        first = last if epoch == 1 else first
        if last < config.enough:
            break
    return first, last, epoch
