"""Layer spreading, the original protocol of MEMIT and AlphaEdit (arXiv 2210.07229, 4.3 and algorithm 1).

Target hidden states z are found at the last of the layers l_1 < ... < l_m. Each layer in turn is asked for the
share R = (z - z_now) / (m - j + 1) of what is still missing there, z_now being the hidden state at l_m after the
edits of the layers below, and writes it as a change of its MLP's output: Delta_j = R X_j^T.
"""

import logging
from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch

from mlpswap.editing.adapters import Adapter
from mlpswap.editing.closed_form import UNCONVERGED, ClosedFormEditor, note_unconverged
from mlpswap.editing.editor import (
    EditorState,
    EditResult,
    Statistics,
    check_requests,
    diagnose,
    refuse_nonfinite,
)
from mlpswap.editing.moments import exact
from mlpswap.editing.requests import EditRequest
from mlpswap.editing.targets import layered, mean_over_contexts, optimise_targets

logger = logging.getLogger(__name__)


class SpreadingEditor(ClosedFormEditor):
    """Its `writer` reads the same fields of `config.original` as of `config`."""

    def edit_original(
        self,
        adapter: Adapter,
        requests: Sequence[EditRequest],
        config: Any,
        statistics: Statistics | None,
        state: EditorState | None,
    ) -> EditResult:
        """The state sums the outer products of all edited keys, read after their batch; pass it to the next
        batch to hold this one (MEMIT does not need it, AlphaEdit does).
        """
        options = config.original
        model, sites = layered(adapter, options.layers, self.name)
        kept, refused = check_requests(model, requests, config.on_conflict)
        targets = optimise_targets(model, kept, sites[-1], "block", options) if kept else None
        sound = targets.finite if targets else torch.zeros(0, dtype=torch.bool)
        refused |= refuse_nonfinite(kept, sound, config)
        kept = list(compress(kept, sound))
        if targets is None or not kept:
            nothing = diagnose(requests, (), refused, ["no request was left to carry out"])
            return EditResult(model.patch_sites({}, editor=self.name), state, nothing)
        z = (targets.start + targets.delta)[sound]
        caches = dict(state.caches) if state else {}
        deltas: dict[int, torch.Tensor] = {}
        layers: dict[int, dict[str, Any]] = {}
        notes: list[str] = []
        for place, site in enumerate(sites):
            with model.trial(deltas):
                keys = mean_over_contexts(model, kept, site, balanced=True)
                now = exact(model.outputs(model.prompts(kept), sites[-1], "block"))
            residuals = (z - now) / (len(sites) - place)
            writer = self.writer(keys.T, statistics, site, options, caches.get(site))
            notes += [f"{note} (layer {site})" for note in writer.notes]
            deltas[site] = residuals.T @ writer.x.T
            layers[site] = {"keys": keys, "now": now, "residuals": residuals, **writer.figures}
            layers[site]["delta_norm"] = float(deltas[site].norm())
        with model.trial(deltas):
            for site in sites:
                after = mean_over_contexts(model, kept, site, balanced=True)
                caches[site] = after.T @ after + caches.get(site, 0.0)
        for note in notes:
            logger.warning("%s", note)
        losses = targets.losses[sound]
        unconverged = [request.id for request in compress(kept, losses > UNCONVERGED)]
        notes += note_unconverged(unconverged, len(kept))
        return EditResult(
            model.patch_sites(deltas, editor=self.name, requests=kept),
            EditorState(caches),
            diagnose(
                requests,
                kept,
                refused,
                notes,
                targets=z,
                layers=layers,
                losses=losses,
                updates=list(compress(targets.updates, sound)),
                unconverged=unconverged,
            ),
        )
