"""What an editor may ask of a model. Editors talk to an adapter and never to the model itself.

A key is what enters the down-projection at the edited token, never with a constant 1 for the bias. Vectors
come in rows here; the closed forms have them in columns.
"""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.constructions.base import FactMLP
from mlpswap.editing.requests import Context, EditRequest, Prompts
from mlpswap.editing.residuals import Losses, ResidualOptions, ResidualRun
from mlpswap.facts import FactSet
from mlpswap.model.patch import Patch


@runtime_checkable
class Adapter(Protocol):
    """The door to a model. `site` is a layer whose MLP may be edited."""

    def sites(self) -> list[int]:
        """The editable layers."""
        ...

    def weight(self, site: int) -> Float[Tensor, "d h"]:
        """A copy of the down-projection as (outputs, inputs), whatever the module's own layout."""
        ...

    def bias(self, site: int) -> Float[Tensor, " d"] | None:
        """A copy of its bias, which editors leave alone unless told; None if there is none."""
        ...

    def check(self, requests: Sequence[EditRequest]) -> None:
        """Raise `RequestError` for a request that this model cannot carry out."""
        ...

    def subject(self, request: EditRequest) -> Hashable:
        """Which fact a request is about: equal for two requests about the same."""
        ...

    def prompts(self, requests: Sequence[EditRequest]) -> Prompts:
        """The requests' prompts, each cut after its edited token."""
        ...

    def keys(self, prompts: Prompts, site: int) -> Float[Tensor, "n h"]:
        """What enters the down-projection at the last token of each prompt."""
        ...

    def outputs(self, prompts: Prompts, site: int) -> Float[Tensor, "n d"]:
        """What leaves the MLP there, bias included."""
        ...

    def predict(self, prompts: Prompts) -> Int[Tensor, " n"]:
        """The likeliest token after each prompt."""
        ...

    def objective(self, requests: Sequence[EditRequest], site: int) -> Losses:
        """The requests' losses as functions of a change of the MLP's output at their edited tokens."""
        ...

    def residuals(
        self, requests: Sequence[EditRequest], site: int, options: Sequence[ResidualOptions]
    ) -> list[ResidualRun]:
        """`optimise_residuals` of the objective, remembered: editors that ask for the same share the work."""
        ...

    def patch(
        self,
        site: int,
        delta: Float[Tensor, "d h"] | None,
        *,
        editor: str,
        requests: Sequence[EditRequest] = (),
        bias: Float[Tensor, " d"] | None = None,
    ) -> Patch:
        """W + delta (and b + bias) as a patch; empty if `delta` is None. Never holds NaN or infinity."""
        ...


@runtime_checkable
class LayeredAdapter(Adapter, Protocol):
    """What a model of several layers offers beyond `Adapter`: what the editors' original protocols need.

    `at` says where a vector is read or added: "mlp", what leaves the MLP, or "block", the hidden state after
    the layer.
    """

    chunk: int  # sequences in one forward pass

    @property
    def working(self) -> torch.dtype:
        """In which vectors are optimised: the model's, but at least float32."""
        ...

    def cut(self, contexts: Sequence[Context]) -> Prompts:
        """Each context up to its edited token."""
        ...

    def outputs(self, prompts: Prompts, site: int, at: str = "mlp") -> Float[Tensor, "n d"]:
        """What leaves the MLP or the block at the last token of each prompt."""
        ...

    def nll(
        self,
        contexts: Sequence[Context],
        targets: Sequence[tuple[int, ...]],
        site: int,
        at: str,
        delta: Float[Tensor, "n d"],
    ) -> Float[Tensor, " n"]:
        """-log p of each target after its whole context, in nats, mean over its tokens; differentiable in
        `delta`, which is added at the edited tokens.
        """
        ...

    def log_probs(
        self,
        contexts: Sequence[Context],
        site: int = 0,
        at: str = "mlp",
        delta: Float[Tensor, "n d"] | None = None,
    ) -> Float[Tensor, "n V"]:
        """log p of every token after each whole context; `delta` as in `nll`."""
        ...

    def trial(
        self, deltas: Mapping[int, Tensor], biases: Mapping[int, Tensor] | None = None
    ) -> AbstractContextManager[None]:
        """Within it the model computes as if W + delta (d, h), and b + bias (d,), were its weights, by site.

        Differentiable in both; afterwards, and after an exception, it computes as before.
        """
        ...

    def patch_sites(
        self,
        deltas: Mapping[int, Tensor],
        biases: Mapping[int, Tensor] | None = None,
        *,
        editor: str,
        requests: Sequence[EditRequest] = (),
    ) -> Patch:
        """`patch` for several sites at once."""
        ...


@runtime_checkable
class FactAdapter(Protocol):
    """What a model offers beyond `Adapter` if it knows its facts by name and can rebuild its fact MLP."""

    @property
    def facts(self) -> FactSet: ...

    @property
    def key_embeddings(self) -> Float[Tensor, "F d"]: ...

    @property
    def value_embeddings(self) -> Float[Tensor, "n_v d"]: ...

    def changes(self, requests: Sequence[EditRequest]) -> dict[str, str]:
        """key -> new value."""
        ...

    def rebuild(
        self,
        facts: FactSet,
        construction: str | None,
        options: dict[str, Any],
        generator: torch.Generator,
    ) -> FactMLP:
        """A fact MLP for this model that stores `facts`; by default of the kind and width in place."""
        ...

    def replace(self, mlp: FactMLP, *, editor: str, facts: FactSet) -> Patch:
        """The patch that puts `mlp`, which stores `facts`, in the place of the fact MLP."""
        ...
