"""The swap editor (arXiv 2512.00207): build a new fact MLP for the whole altered fact set, and put it in;
nothing else moves.

It edits by construction: as many facts as the MLP can hold, unaltered ones included, from the embeddings
alone. It needs no prompts, no statistics and no gradient through the model, and it does not drift.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mlpswap.config import option
from mlpswap.editing.adapters import Adapter, FactAdapter
from mlpswap.editing.editor import (
    EditConfig,
    EditorState,
    EditResult,
    Statistics,
    check_requests,
    diagnose,
    the_site,
)
from mlpswap.editing.requests import EditRequest
from mlpswap.errors import UnsupportedEditorError
from mlpswap.model.swap import with_defaults
from mlpswap.randomness import generator as stream


@dataclass(frozen=True)
class SwapConfig(EditConfig):
    """How the new fact MLP is made."""

    construction: str | None = option(None, "construction's name; null: the usual one for the MLP in place")
    options: dict[str, Any] = option(factory=dict, help="options of the construction, such as {h: 512}")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.construction is not None:
            with_defaults(self.construction, self.options, {})  # refuses what is no option


class Swap:
    """Rebuild the fact MLP for all facts, and replace it (arXiv 2512.00207). For hosts of mlpswap only."""

    name = "swap"
    Config = SwapConfig

    def edit(
        self,
        adapter: Adapter,
        requests: Sequence[EditRequest],
        config: SwapConfig,
        *,
        statistics: Statistics | None = None,
        state: EditorState | None = None,
        generator: torch.Generator | None = None,
    ) -> EditResult:
        """See `mlpswap.editing.Editor`. Without a `generator` the build draws from seed 0. Raises
        `UnsupportedEditorError` for a model that does not know its facts.
        """
        if not isinstance(adapter, FactAdapter):
            raise UnsupportedEditorError(
                "swap needs a model that knows its facts by name: "
                f"{type(adapter).__name__} has no fact set to rebuild from"
            )
        kept, refused = check_requests(adapter, requests, config.on_conflict)
        if not kept:
            nothing = diagnose(requests, (), refused, ["no request was left to carry out"])
            return EditResult(adapter.patch(the_site(adapter), None, editor=self.name), None, nothing)
        facts = adapter.facts.alter(adapter.changes(kept))
        source = generator if generator is not None else stream(0, "swap")
        mlp = adapter.rebuild(facts, config.construction, dict(config.options), source)
        report = mlp.report.to_dict() if mlp.report else None
        return EditResult(
            adapter.replace(mlp, editor=self.name, facts=facts),
            None,
            diagnose(requests, kept, refused, report=report),
        )

    def grid(self, preset: str = "released") -> list[dict[str, Any]]:
        """One setting: the MLP as it would be built anyway."""
        return [{}]

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        """Options with which it carries out each of a few edits."""
        return {}
