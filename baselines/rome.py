"""ROME: rank-one edits of the down-projection (Meng et al. 2022, arXiv 2202.05262), in the X
One edit, with key k, wanted change r and C0 the mean second moment of preserved keys, meets its constraint
exactly while it moves the preserved keys' outputs least:

    Delta = r u^T / (k^T u),   u = C0^-1 k

Many edits with keys, residuals and C0 held fixed are the sum of these, so their order is irrelevant. That
sum meets the constraints together only if the directions u_i are C0-orthogonal, hence ROME's collapse for
many edits.

The original averages keys over prefixed prompts, kbar, and takes u = C0^-1 kbar, but divides by the bare prompt's
k^T u, which may be close to zero: the update explodes. r-ROME (Gupta et al. 2024, arXiv 2403.07175) uses kbar
throughout, p-ROME the bare key. With one prompt all three coincide.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mlpswap.config import option
from mlpswap.editing import (
    UNCONVERGED,
    Adapter,
    ClosedFormEditor,
    EditorState,
    EditRequest,
    EditResult,
    LayeredAdapter,
    ResidualConfig,
    ResidualOptions,
    Statistics,
    SymmetricFactor,
    TargetConfig,
    Writer,
    check_policy,
    check_requests,
    diagnose,
    exact,
    layered,
    mean_over_contexts,
    moment_at,
    note_unconverged,
    optimise_targets,
    refuse_nonfinite,
)
from mlpswap.errors import ConfigError, DegenerateKeysError

logger = logging.getLogger(__name__)

KEY_MODES = ("r-rome", "p-rome", "rome")
WEAK, DEAD = 0.2, 1e-6  # (k.u) / (kbar.u) of the original that is worth a warning, and that is refused
UNWRITABLE = "its key is zero or outside the range of C0"


def rome_delta(
    R: Float[Tensor, "d N"], K1: Float[Tensor, "h N"], C0: Float[Tensor, "h h"], *, on_singular: str = "error"
) -> Float[Tensor, "d h"]:
    """Sum of the rank-one edits, float64. Raises `DegenerateKeysError` for zero keys (0 / 0) and for keys
    outside the range of a singular C0, `SingularMomentError` for a singular C0 under "error".
    """
    factor = SymmetricFactor(C0, on_singular=on_singular, name="second moment C0")
    directions, refused = rome_directions(K1, factor)
    if refused.any():
        rows = tuple(refused.nonzero().flatten().tolist())
        raise DegenerateKeysError(
            f"keys {', '.join(map(str, rows))} are zero or outside the range of C0", rows
        )
    return exact(R) @ directions.T


def rome_directions(
    K1: Float[Tensor, "h N"], factor: SymmetricFactor
) -> tuple[Float[Tensor, "h N"], Bool[Tensor, " N"]]:
    """u_i / (k_i^T u_i) for each key, and which keys have none; those columns are zero."""
    K1 = exact(K1)
    U = factor.solve(K1)
    scale = (K1 * U).sum(dim=0)
    refused = factor.outside(K1) | (scale <= 0)
    return torch.where(refused, 0.0, U / torch.where(refused, 1.0, scale)), refused


@dataclass(frozen=True)
class RomeOriginal(TargetConfig):
    """Settings of ROME's original protocol. `clamp` is 3 for GPT-2 medium, else 4."""

    key_mode: str = option(
        "r-rome", "keys averaged over prompts: 'r-rome' everywhere, 'p-rome' nowhere, 'rome' in u alone"
    )
    mom2_adjustment: bool = option(True, "u = C0^-1 k; off: C0 = I, as some toolkits' r-ROME")
    on_singular: str = option(
        "error", "singular C0: 'error', 'pinv' (its range only) or 'ridge' (1e-6 trace/h)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_mode not in KEY_MODES:
            raise ConfigError(f"key_mode must be one of {', '.join(KEY_MODES)}: found '{self.key_mode}'")
        check_policy(self.on_singular)


@dataclass(frozen=True)
class RomeConfig(ResidualConfig):
    """Settings of ROME. There is no clip."""

    original: RomeOriginal | None = option(None, "settings of the original protocol, such as {layers: [17]}")
    weight_decay: float = option(0.0, "Adam's coupled decay of r, >= 0; published: 1.5e-3, 1.5e-4, 0")
    early_stop: float | None = option(0.05, "stop a residual once its loss is below, > 0; null: all steps")
    on_singular: str = option(
        "error", "singular C0: 'error', 'pinv' (its range only) or 'ridge' (1e-6 trace/h)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_policy(self.on_singular)

    @property
    def residual_options(self) -> ResidualOptions:
        return ResidualOptions(self.steps, self.lr, self.weight_decay, self.early_stop)


@dataclass(frozen=True, eq=False)
class RankOne:
    """One request at one layer: W + r u^T, |u| = 1. `reason`: why it cannot be written, if so.

    start, target: v_0 and v*, the wanted output of the MLP. ratio: (k.u) / (kbar.u), 1 unless key_mode is "rome".
    """

    key: Float[Tensor, " h"]
    mean_key: Float[Tensor, " h"]
    start: Float[Tensor, " d"]
    target: Float[Tensor, " d"]
    u: Float[Tensor, " h"]
    r: Float[Tensor, " d"]
    ratio: float
    loss: float
    updates: int
    reason: str = ""

    @property
    def finite(self) -> bool:
        return bool(torch.cat([self.mean_key, self.target, self.r]).isfinite().all())


def rank_one(
    model: LayeredAdapter,
    request: EditRequest,
    site: int,
    factor: SymmetricFactor | None,
    options: RomeOriginal,
) -> RankOne:
    """The original's update of one layer; `factor` is C0's, None for C0 = I."""
    targets = optimise_targets(model, [request], site, "mlp", options)
    start, target = targets.start[0], (targets.start + targets.delta)[0]
    bare = exact(model.keys(model.prompts([request]), site))[0]
    mean = mean_over_contexts(model, [request], site, balanced=False)[0]
    column = (bare if options.key_mode == "p-rome" else mean)[:, None]
    u = (column if factor is None else factor.solve(column))[:, 0]
    u = u / u.norm().clamp(min=torch.finfo(u.dtype).tiny)
    scale, now = float(column[:, 0] @ u), start
    outside = scale <= 0 or (factor is not None and bool(factor.outside(column)))
    reason, ratio = UNWRITABLE if outside else "", 1.0
    if options.key_mode == "r-rome":
        now = mean_over_contexts(model, [request], site, of="outputs", balanced=False)[0]
    elif options.key_mode == "rome" and not reason:
        ratio = float(bare @ u) / scale
        scale *= ratio
        if abs(ratio) < DEAD:
            reason = f"(k.u)/(kbar.u) = {ratio:.1g}: its key is orthogonal to the mean of its prefixed ones"
    r = (target - now) / (1.0 if reason else scale)
    return RankOne(
        bare, mean, start, target, u, r, ratio, float(targets.losses[0]), targets.updates[0], reason
    )


class Rome(ClosedFormEditor):
    """Rank-one edits, summed (arXiv 2202.05262). Meets each edit exactly; many of them disturb other facts."""

    name = "rome"
    Config = RomeConfig
    writer_fields = ("on_singular",)

    def writer(
        self, keys: Tensor, statistics: Statistics | None, site: int, config: RomeConfig, cache: Tensor | None
    ) -> Writer:
        factor = moment_at(statistics, site, self.name).factor(config.on_singular)
        directions, refused = rome_directions(keys, factor)
        figures = {"rcond": factor.rcond, "rank": factor.rank, "ridge": factor.ridge}
        return Writer(directions, refused, UNWRITABLE, figures=figures)

    def edit_original(
        self,
        adapter: Adapter,
        requests: Sequence[EditRequest],
        config: RomeConfig,
        statistics: Statistics | None,
        state: EditorState | None,
    ) -> EditResult:
        """Each request at each layer on top of all edits before, so that their order matters."""
        self.next_state(state, 0, torch.zeros(0, 0))  # which refuses one
        options = config.original
        assert options is not None
        model, sites = layered(adapter, options.layers, self.name)
        kept, refused = check_requests(model, requests, config.on_conflict)
        deltas: dict[int, Tensor] = {}
        edits: dict[str, dict[int, RankOne]] = {}
        for request in kept:
            trial, parts = dict(deltas), dict[int, RankOne]()
            for site in sites:
                factor = None
                if options.mom2_adjustment:
                    factor = moment_at(statistics, site, self.name).factor(options.on_singular)
                with model.trial(trial):
                    part = rank_one(model, request, site, factor, options)
                if not part.finite:
                    refused |= refuse_nonfinite([request], torch.tensor([False]), config)
                elif part.reason:
                    refused[request.id] = part.reason
                else:
                    trial[site] = trial.get(site, 0.0) + torch.outer(part.r, part.u)
                    parts[site] = part
            if len(parts) == len(sites):
                deltas, edits[request.id] = trial, parts
        edited = [request for request in kept if request.id in edits]
        notes = [
            f"rome: request {name!r} is written with (k.u)/(kbar.u) = {part.ratio:.2g} at layer {site}, "
            "which may disable the model; take key_mode=r-rome"
            for name, parts in edits.items()
            for site, part in parts.items()
            if part.ratio < WEAK
        ]
        for note in notes:
            logger.warning("%s", note)
        if not edited:
            notes.append("no request was left to carry out")
        last = [edits[request.id][sites[-1]].loss for request in edited]
        unconverged = [each.id for each, loss in zip(edited, last, strict=True) if loss > UNCONVERGED]
        notes += note_unconverged(unconverged, len(edited))
        return EditResult(
            model.patch_sites(deltas, editor=self.name, requests=edited),
            None,
            diagnose(
                requests,
                edited,
                refused,
                notes,
                edits=edits,
                losses=torch.tensor(last, dtype=torch.float64),
                unconverged=unconverged,
                delta_norm={site: float(delta.norm()) for site, delta in deltas.items()},
            ),
        )

    def grid(self, preset: str = "released") -> list[dict[str, Any]]:
        """The 54 published settings; both presets are the same."""
        if preset not in ("released", "paper"):
            raise ConfigError(f"no grid '{preset}' of rome: there are released, paper")
        points = product((10, 25, 100), (0.005, 0.05, 0.5), (1.5e-3, 1.5e-4, 0.0), (0.05, None))
        names = ("steps", "lr", "weight_decay", "early_stop")
        return [dict(zip(names, point, strict=True)) for point in points]

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        """Options with which it carries out each of a few edits."""
        return {"steps": 100, "lr": 0.5, "early_stop": None, "on_singular": "ridge"}
