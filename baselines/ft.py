"""FT-L: fine-tuning of the down-projection within a box around the old weights (Zhu et al. 2020, arXiv
2012.00363, as the baseline of arXiv 2202.05262), in the single-layer protocol of arXiv 2512.00207, A.3.4, and in
its original one.

Adam on the cross-entropy of the wanted tokens. In the single-layer protocol nothing below the down-projection
changes, so its keys are computed once, and a change of W is a change (W - W0) k of the MLP's output. In the
original one it acts at every token, and all tokens of a target are scored at the one last token of the prompt.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, product
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mlpswap.config import option, require_plain
from mlpswap.editing import (
    Adam,
    Adapter,
    EditorState,
    EditRequest,
    EditResult,
    LayeredAdapter,
    LayersConfig,
    ProtocolConfig,
    Statistics,
    check_requests,
    diagnose,
    layered,
    refuse_nonfinite,
    the_site,
)
from mlpswap.errors import ConfigError


@dataclass(frozen=True)
class TrainingOptions:
    """How long, how fast and how far. The published clamps are 5e-5 (GPT-J) to 2e-3 (GPT-2 medium)."""

    lr: float = option(5e-4, "Adam's learning rate, > 0")
    epochs: int = option(25, "passes over the edits at most, >= 1")
    batch_size: int = option(128, "edits in a batch, >= 1")
    clamp: float | None = option(5e-4, "epsilon: each weight stays within +- of its start, > 0; null: no box")
    enough: float = option(1e-2, "no step for a batch with a lower loss, the end at a lower mean of an epoch")
    train_bias: bool = option(False, "train the bias too, as the original does")

    def __post_init__(self) -> None:
        require_plain(self)
        if self.lr <= 0 or self.epochs < 1 or self.batch_size < 1:
            raise ConfigError(
                f"lr must be positive, epochs and batch_size at least 1: "
                f"found {self.lr}, {self.epochs} and {self.batch_size}"
            )
        if self.clamp is not None and self.clamp <= 0:
            raise ConfigError(f"clamp must be positive or null: found {self.clamp}")


@dataclass(frozen=True)
class FineTuningOriginal(TrainingOptions, LayersConfig):
    """Settings of the original protocol; `train_bias` reproduces it entirely."""

    def __post_init__(self) -> None:
        TrainingOptions.__post_init__(self)
        LayersConfig.__post_init__(self)


@dataclass(frozen=True)
class FineTuningConfig(TrainingOptions, ProtocolConfig):
    """Settings of FT-L."""

    original: FineTuningOriginal | None = option(
        None, "settings of the original protocol, such as {layers: [0]}"
    )

    def __post_init__(self) -> None:
        ProtocolConfig.__post_init__(self)
        TrainingOptions.__post_init__(self)


class FineTuning:
    """FT-L: Adam on W, each weight clamped near its start (arXiv 2012.00363). The baseline of all editors."""

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
        if config.original is None:
            options: TrainingOptions = config
            sites, lessons = [the_site(adapter)], single_layer
        else:
            options = config.original
            sites, lessons = layered(adapter, config.original.layers, self.name)[1], original
        biases = {site: adapter.bias(site) for site in sites if options.train_bias}
        if None in biases.values():
            raise ConfigError("train_bias: this down-projection has no bias")
        kept, refused = check_requests(adapter, requests, config.on_conflict)
        changes: list[Tensor] = []
        figures: dict[str, Any] = {}
        notes = ["no request was left to carry out"]
        if kept:
            losses, dtype, figures = lessons(adapter, kept, sites)
            starts = [*map(adapter.weight, sites), *(bias for bias in biases.values() if bias is not None)]
            changes = [torch.zeros_like(start, dtype=dtype) for start in starts]
            with torch.no_grad():  # what is NaN here would be NaN in its whole batch
                rows = torch.arange(len(kept)).split(options.batch_size)
                sound = torch.cat([losses(part, changes) for part in rows]).isfinite().cpu()
            refused |= refuse_nonfinite(kept, sound, config)
            kept = list(compress(kept, sound))
        if kept:
            first, last, epochs = fine_tune(losses, sound.nonzero()[:, 0], changes, options)
            figures = {name: figure[sound] for name, figure in figures.items()}
            figures |= {"first_loss": first, "last_loss": last, "epochs": epochs}
            notes = []
            if not all(change.isfinite().all() for change in changes):
                everyone, why = (
                    torch.zeros(len(kept), dtype=torch.bool),
                    f"training diverged at lr = {options.lr}",
                )
                refused |= refuse_nonfinite(kept, everyone, config, why)
                kept, figures, notes = [], {}, [f"ft: {why}: nothing changes"]
        if not kept:
            nothing = diagnose(requests, (), refused, notes)
            return EditResult(adapter.patch(sites[0], None, editor=self.name), None, nothing)
        deltas = dict(zip(sites, changes, strict=False))
        shifts = dict(zip(biases, changes[len(sites) :], strict=True))
        if isinstance(adapter, LayeredAdapter):
            patch = adapter.patch_sites(deltas, shifts, editor=self.name, requests=kept)
        else:
            (site,) = sites
            patch = adapter.patch(site, deltas[site], bias=shifts.get(site), editor=self.name, requests=kept)
        figures["delta_norm"] = float(torch.stack([delta.norm() for delta in deltas.values()]).norm())
        return EditResult(patch, None, diagnose(requests, kept, refused, **figures))

    def grid(self, preset: str = "released") -> list[dict[str, Any]]:
        """Neither source fine-tunes, so both presets are ours: three learning rates times four boxes."""
        if preset not in ("released", "paper"):
            raise ConfigError(f"no grid '{preset}' of ft: there are released, paper")
        points = product((5e-5, 5e-4, 5e-3), (5e-5, 5e-4, 5e-3, None))
        return [dict(zip(("lr", "clamp"), point, strict=True)) for point in points]

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        """Options with which it carries out each of a few edits."""
        return {"lr": 1e-2, "clamp": None, "epochs": 200}


Lessons = Callable[[Int[Tensor, " rows"], list[Tensor]], Float[Tensor, " rows"]]


def single_layer(
    adapter: Adapter, requests: Sequence[EditRequest], sites: Sequence[int]
) -> tuple[Lessons, torch.dtype, dict[str, Any]]:
    """Losses of some requests as a function of [W - W0] or [W - W0, b - b0], the dtype of both, and the keys."""
    (site,) = sites
    objective = adapter.objective(requests, site)
    dtype = objective.output.dtype
    keys = adapter.keys(adapter.prompts(requests), site).to(dtype)

    def losses(rows: Tensor, changes: list[Tensor]) -> Tensor:
        return objective[rows].nll(F.linear(keys[rows], *changes))

    return losses, dtype, {"keys": keys}


def original(
    adapter: Adapter, requests: Sequence[EditRequest], sites: Sequence[int]
) -> tuple[Lessons, torch.dtype, dict[str, Any]]:
    """The same for the changes of all sites' weights and then, maybe, of all their biases."""
    assert isinstance(adapter, LayeredAdapter)

    def losses(rows: Tensor, changes: list[Tensor]) -> Tensor:
        deltas = dict(zip(sites, changes, strict=False))
        chosen = [requests[int(row)] for row in rows]
        with adapter.trial(deltas, dict(zip(sites, changes[len(sites) :], strict=False))):
            log_probs = adapter.log_probs([request.contexts[0] for request in chosen])
        return -torch.stack(
            [row[list(each.target_ids)].mean() for row, each in zip(log_probs, chosen, strict=True)]
        )

    return losses, adapter.working, {}


def fine_tune(
    losses: Lessons, rows: Int[Tensor, " n"], changes: list[Tensor], config: TrainingOptions
) -> tuple[float, float, int]:
    """Train the changes in place. Returns the mean losses of the first and the last epoch and the number of
    epochs.
    """
    optimisers = [Adam(config.lr) for _ in changes]
    first = last = float("nan")
    for epoch in range(1, config.epochs + 1):
        total = 0.0
        for batch in rows.split(config.batch_size):
            with torch.enable_grad():
                parameters = [change.detach().requires_grad_() for change in changes]
                loss = losses(batch, parameters).mean()
            total += loss.item() * len(batch)
            if loss < config.enough:
                continue
            gradients = torch.autograd.grad(loss, parameters)
            for change, gradient, adam in zip(changes, gradients, optimisers, strict=True):
                adam.step(change, gradient)
                if config.clamp is not None:
                    box = min(config.clamp, torch.finfo(change.dtype).max)
                    change.clamp_(-box, box)
        last = total / len(rows)
        first = last if epoch == 1 else first
        if last < config.enough:
            break
    return first, last, epoch
