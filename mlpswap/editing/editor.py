"""What an editor is: it computes a change and returns it, and never touches the model.

The caller applies, times, scores, undoes and saves, the same way for every editor.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import compress
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mlpswap.config import default_of, option, require_plain
from mlpswap.editing.adapters import Adapter
from mlpswap.editing.moments import SecondMoment
from mlpswap.editing.requests import EditRequest, Prompts, merge_requests
from mlpswap.errors import ConfigError, NonFiniteError
from mlpswap.facts import printable
from mlpswap.model.patch import Patch

logger = logging.getLogger(__name__)

Statistics = Mapping[int, SecondMoment]  # by site


@dataclass(frozen=True, eq=False)
class EditorState:
    """What an editor carries from batch to batch: by site, the summed outer products of edited keys."""

    caches: Mapping[int, Float[Tensor, "h h"]]


@dataclass(frozen=True, eq=False)
class EditResult:
    """The change, the state after it (None for editors without one), and what there is to know about the
    edit.

    `diagnostics` always has `requested`, `edited` (ids carried out), `refused` (id -> reason), `unchanged`
    (how many ask for what is there) and `notes`; editors add their own figures.
    """

    patch: Patch
    state: EditorState | None
    diagnostics: dict[str, Any]


@runtime_checkable
class Editor(Protocol):
    """A way to change facts in a model, registered in the group "mlpswap.editors".

    `Config` is a dataclass whose fields carry help text. `edit` is pure: model, requests, statistics and
    state stay as they are. Optional: `edit_grid(adapter, requests, configs, *, statistics, state,
    generator) -> Iterator[EditResult]`, the same results for many settings with shared work; `grid(preset)
    -> list[dict]`, the published settings; `example(generator) -> dict`, options with which the editor
    carries out each of a few edits of a small host.
    """

    name: str
    Config: type

    def edit(
        self,
        adapter: Adapter,
        requests: Sequence[EditRequest],
        config: Any,
        *,
        statistics: Statistics | None = None,
        state: EditorState | None = None,
        generator: torch.Generator | None = None,
    ) -> EditResult: ...


@dataclass(frozen=True)
class EditConfig:
    """What every editor lets the user choose."""

    on_conflict: str = option(
        "error", "one fact, two targets: 'error' refuses, 'last' keeps the last request"
    )

    def __post_init__(self) -> None:
        require_plain(self)
        merge_requests((), (), self.on_conflict)  # which checks it


@dataclass(frozen=True)
class NumericConfig(EditConfig):
    """What editors that compute from keys and losses let the user choose besides."""

    on_nonfinite: str = option(
        "drop", "NaN or infinity in a request's key, residual or loss: 'drop' or 'raise'"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on_nonfinite not in ("drop", "raise"):
            raise ConfigError(f"on_nonfinite must be 'drop' or 'raise': found '{self.on_nonfinite}'")


@dataclass(frozen=True)
class ProtocolConfig(NumericConfig):
    """What editors that know two protocols let the user choose besides.

    Everything else in their configs belongs to the single-layer protocol; `original` holds the settings of the
    other one.
    """

    protocol: str = option(
        "single_layer",
        "'single_layer' (arXiv 2512.00207, A.3.4) or 'original', as the editor was first published",
    )
    original: Any = option(
        None, "settings of the original protocol, such as {layers: [17]}; null: protocol single_layer"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in ("single_layer", "original"):
            raise ConfigError(f"protocol must be 'single_layer' or 'original': found '{self.protocol}'")
        if (self.protocol == "original") != (self.original is not None):
            raise ConfigError(
                "original needs its settings, such as original.layers=[17]"
                if self.original is None
                else "settings of the original protocol need protocol=original"
            )
        if self.original is None:
            return
        if not is_dataclass(self.original):
            raise ConfigError(
                f"original = {self.original!r}: expected an object with the settings of that protocol"
            )
        shared = {each.name for each in fields(ProtocolConfig)}
        for each in fields(self):
            if each.init and each.name not in shared and getattr(self, each.name) != default_of(each):
                names = ", ".join(known.name for known in fields(self.original))
                raise ConfigError(
                    f"{each.name} is a setting of the single-layer protocol; original has {names}"
                )


def statistics_of(adapter: Adapter, prompts: Prompts | Iterable[Prompts]) -> dict[int, SecondMoment]:
    """Second moments of the keys at the last tokens of `prompts`, for every site: the preserved facts' edit
    prompts.

    Several batches of prompts are read as a stream, so any token stream will do.
    """
    batches = [prompts] if isinstance(prompts, Prompts) else list(prompts)
    return {
        site: SecondMoment.from_keys(adapter.keys(batch, site) for batch in batches)
        for site in adapter.sites()
    }


def check_requests(
    adapter: Adapter, requests: Sequence[EditRequest], on_conflict: str
) -> tuple[list[EditRequest], dict[str, str]]:
    """Checked and merged requests, and those left out with the reason. Raises `RequestError`."""
    adapter.check(requests)
    kept, left_out = merge_requests(requests, [adapter.subject(each) for each in requests], on_conflict)
    for name, reason in left_out.items():
        logger.info("request '%s' left out: %s", printable(name), reason)
    return kept, left_out


def refuse_nonfinite(
    requests: Sequence[EditRequest],
    finite: Bool[Tensor, " N"],
    config: NumericConfig,
    reason: str = "NaN or infinity in its key, residual or loss",
) -> dict[str, str]:
    """Id -> reason of the requests that are not finite. Raises `NonFiniteError` instead if the config says so."""
    refused = {request.id: reason for request in compress(requests, ~finite)}
    if refused and config.on_nonfinite == "raise":
        raise NonFiniteError(f"request '{printable(next(iter(refused)))}': {reason}")
    return refused


def the_site(adapter: Adapter) -> int:
    """The one editable layer of the single-layer protocol."""
    sites = adapter.sites()
    if len(sites) != 1:
        raise ConfigError(
            f"the single-layer protocol edits one layer: this model offers {len(sites)}; "
            "set protocol=original, or offer one layer with sites=[...]"
        )
    return sites[0]


def moment_at(statistics: Statistics | None, site: int, editor: str) -> SecondMoment:
    """The keys' second moment, which the editor cannot do without. Raises `ConfigError`."""
    if statistics is None or site not in statistics or statistics[site].count < 1:
        raise ConfigError(
            f"{editor} needs the second moment of the preserved facts' keys at layer {site}: "
            "pass statistics, or preserve at least one fact"
        )
    return statistics[site]


def diagnose(
    requests: Sequence[EditRequest],
    edited: Sequence[EditRequest],
    refused: Mapping[str, str],
    notes: Sequence[str] = (),
    **figures: Any,
) -> dict[str, Any]:
    """The diagnostics that every editor gives, and its own `figures`."""
    return {
        "requested": len(requests),
        "edited": [request.id for request in edited],
        "refused": dict(refused),
        "unchanged": sum(request.unchanged for request in edited),
        "notes": list(notes),
        **figures,
    }
