"""What ROME, MEMIT and AlphaEdit share in the single-layer protocol (arXiv 2512.00207, A.3.4). For the original
ones see `mlpswap.editing.layers`.

Each writes residuals R (d, N) at keys K1 (h, N) through a matrix X (h, N) that depends on keys and
statistics alone: Delta = R X^T. So a grid of settings optimises each residual once, factors once per
distinct X, and pays a clip and one product per setting.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mlpswap.config import option
from mlpswap.editing.adapters import Adapter
from mlpswap.editing.editor import (
    EditorState,
    EditResult,
    ProtocolConfig,
    Statistics,
    check_requests,
    diagnose,
    refuse_nonfinite,
    the_site,
)
from mlpswap.editing.moments import exact
from mlpswap.editing.requests import EditRequest
from mlpswap.editing.residuals import ResidualOptions, clip_residuals
from mlpswap.errors import ConfigError, RequestError, UnsupportedEditorError
from mlpswap.facts import printable

logger = logging.getLogger(__name__)

UNCONVERGED = 0.6931  # nats: the target has less than half of the probability


def note_unconverged(unconverged: Sequence[str], edited: int) -> list[str]:
    """A note, if there is reason for one: what is written need not be what is then said."""
    if not unconverged:
        return []
    return [
        f"requests that leave the target less than half of the probability: {len(unconverged)} of {edited}, such as "
        f"'{printable(unconverged[0])}'; more steps or a larger clamp may do better"
    ]


@dataclass(frozen=True)
class ResidualConfig(ProtocolConfig):
    """Settings of the residual optimisation."""

    steps: int = option(25, "Adam steps of each residual, >= 1; published: 10, 25, 100")
    lr: float = option(0.05, "Adam's learning rate, > 0; published: 0.005, 0.05, 0.5")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.residual_options  # which checks them

    @property
    def residual_options(self) -> ResidualOptions:
        return ResidualOptions(self.steps, self.lr)

    @property
    def norm_clip(self) -> float | None:
        """Longest residual, as a multiple of ||W k||; None for no limit."""
        return None


@dataclass(frozen=True)
class ClippedConfig(ResidualConfig):
    """The same with a clip: MEMIT and AlphaEdit."""

    clip: float | None = option(0.75, "longest residual as a multiple of ||W k||, >= 0; null: no clip")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None and self.clip < 0:
            raise ConfigError(f"clip must not be negative: found {self.clip}")

    @property
    def norm_clip(self) -> float | None:
        return self.clip


@dataclass(frozen=True, eq=False)
class Writer:
    """X of Delta = R X^T. `refused`: columns that cannot be written and are zero in X, and the reason."""

    x: Float[Tensor, "h N"]
    refused: Bool[Tensor, " N"]
    reason: str = ""
    notes: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Gathered:
    """The requests that can be written, with their keys and residuals in columns, and who was refused why."""

    requests: tuple[EditRequest, ...]
    keys: Float[Tensor, "h N"]
    residuals: Float[Tensor, "d N"]
    losses: Float[Tensor, " N"]
    refused: dict[str, str]

    def ids_where(self, chosen: Bool[Tensor, " N"]) -> list[str]:
        return [request.id for request in compress(self.requests, chosen)]


def gather(
    adapter: Adapter,
    requests: Sequence[EditRequest],
    site: int,
    config: ResidualConfig,
    options: Sequence[ResidualOptions],
) -> Gathered:
    """Keys and residuals for `config`, whose options are among `options`. The batch may be empty.

    All options go to the adapter at once, so that they share trajectories; it remembers the runs. Raises
    `RequestError` for a request that no change at this site can carry out.
    """
    kept, refused = check_requests(adapter, requests, config.on_conflict)
    if not kept:
        nothing = torch.zeros(0, 0, dtype=torch.float64)
        return Gathered((), nothing, nothing, nothing.flatten(), refused)
    keys = exact(adapter.keys(adapter.prompts(kept), site))
    run = adapter.residuals(kept, site, options)[options.index(config.residual_options)]
    residuals, losses = exact(run.residuals), exact(run.losses)
    sound = keys.isfinite().all(dim=1) & residuals.isfinite().all(dim=1) & losses.isfinite()
    helpless = sound & exact((run.first_gradients == 0) & (run.first_losses > 0)).bool()
    for request in compress(kept, helpless):
        raise RequestError(
            f"request '{printable(request.id)}': the edited token has no influence on the prediction"
        )
    refused |= refuse_nonfinite(kept, sound, config)
    return Gathered(tuple(compress(kept, sound)), keys[sound].T, residuals[sound].T, losses[sound], refused)


class ClosedFormEditor:
    """Optimise residuals, clip them, write them.

    Editors differ in `writer`, which reads only the fields `writer_fields` of its config. `carries_keys`: the state
    sums the keys of all batches.
    """

    name: str
    Config: type
    writer_fields: tuple[str, ...]
    carries_keys = False

    def writer(
        self,
        keys: Float[Tensor, "h N"],
        statistics: Statistics | None,
        site: int,
        config: Any,
        cache: Float[Tensor, "h h"] | None,
    ) -> Writer:
        """X for these keys; `cache` comes from the state."""
        raise NotImplementedError

    def next_state(
        self, state: EditorState | None, site: int, keys: Float[Tensor, "h N"]
    ) -> EditorState | None:
        """The state after the batch. Keys come before the edited weight: those after the edit are those before."""
        if self.carries_keys:
            caches = dict(state.caches) if state else {}
            caches[site] = keys @ keys.T + caches.get(site, 0.0)
            return EditorState(caches)
        if state is not None:
            raise ConfigError(f"{self.name} carries no state from batch to batch: found one")
        return None

    def edit(
        self,
        adapter: Adapter,
        requests: Sequence[EditRequest],
        config: Any,
        *,
        statistics: Statistics | None = None,
        state: EditorState | None = None,
        generator: torch.Generator | None = None,
    ) -> EditResult:
        """See `mlpswap.editing.Editor`. Nothing here is random."""
        if config.protocol == "original":
            return self.edit_original(adapter, requests, config, statistics, state)
        return next(self.edit_grid(adapter, requests, [config], statistics=statistics, state=state))

    def edit_original(
        self,
        adapter: Adapter,
        requests: Sequence[EditRequest],
        config: Any,
        statistics: Statistics | None,
        state: EditorState | None,
    ) -> EditResult:
        """The editor's original protocol, if it has one."""
        raise UnsupportedEditorError(f"{self.name} has no original protocol")

    def edit_grid(
        self,
        adapter: Adapter,
        requests: Sequence[EditRequest],
        configs: Sequence[Any],
        *,
        statistics: Statistics | None = None,
        state: EditorState | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[EditResult]:
        """What `edit` returns, for each config in order; computed one by one, as they are asked for."""
        if any(config.protocol == "original" for config in configs):  # which has no work to share
            for config in configs:
                yield self.edit(adapter, requests, config, statistics=statistics, state=state)
            return
        site = the_site(adapter)
        weight = exact(adapter.weight(site))
        cache = state.caches.get(site) if state else None
        options = list(dict.fromkeys(config.residual_options for config in configs))
        batches: dict[tuple, Gathered] = {}
        writers: dict[tuple, Writer] = {}
        for config in configs:
            asked = (config.residual_options, config.on_conflict, config.on_nonfinite)
            if asked not in batches:
                batches[asked] = gather(adapter, requests, site, config, options)
            batch = batches[asked]
            if not batch.requests:
                nothing = diagnose(requests, (), batch.refused, ["no request was left to carry out"])
                yield EditResult(adapter.patch(site, None, editor=self.name), state, nothing)
                continue
            point = (batch.requests, *(getattr(config, name) for name in self.writer_fields))
            if point not in writers:
                writers[point] = self.writer(batch.keys, statistics, site, config, cache)
                for note in writers[point].notes:
                    logger.warning("%s", note)
            writer = writers[point]
            reference = (weight @ batch.keys).norm(dim=0)
            residuals = clip_residuals(batch.residuals, reference, config.norm_clip)
            delta = residuals @ writer.x.T
            edited = tuple(compress(batch.requests, ~writer.refused))
            yield EditResult(
                adapter.patch(site, delta, editor=self.name, requests=edited),
                self.next_state(state, site, batch.keys),
                diagnose(
                    requests,
                    edited,
                    batch.refused | dict.fromkeys(batch.ids_where(writer.refused), writer.reason),
                    writer.notes,
                    keys=batch.keys.T,
                    residuals=residuals.T,
                    residual_norms=residuals.norm(dim=0),
                    losses=batch.losses,
                    unconverged=batch.ids_where(batch.losses > UNCONVERGED),
                    delta_norm=float(delta.norm()),
                    **writer.figures,
                ),
            )
