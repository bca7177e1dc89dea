"""The adapter of our own host: one editable layer, one edited token, the last of the prompt.

Everything before the output of the fact MLP is independent of an edit, so one forward pass over the prompts
gives all that editors need: the MLP's input z, the gate and the rest of the mixture
(`mlpswap.metrics.Rows`).
"""

import logging
import re
from collections.abc import Hashable, Sequence
from itertools import compress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mlpswap.constructions.base import FactMLP
from mlpswap.editing.reading import changed, evaluating
from mlpswap.editing.requests import EditRequest, Prompts, require_texts
from mlpswap.editing.residuals import Objective, ResidualOptions, ResidualRun, optimise_residuals
from mlpswap.errors import FactsError, RequestError
from mlpswap.facts import FactSet, printable
from mlpswap.metrics import Rows, rows_of
from mlpswap.model.modeling import MlpSwapForCausalLM
from mlpswap.model.patch import ModuleChange, Patch
from mlpswap.model.swap import build_for_host
from mlpswap.model.tokenization import KEY, VALUE, WORD

logger = logging.getLogger(__name__)

_HOLE = re.compile(r"\{\w*\}")


class HostAdapter:
    """`Adapter` and `FactAdapter` for a host with a fact set. The model is read, never written.

    chunk: prompts in one forward pass.
    """

    def __init__(self, model: MlpSwapForCausalLM, *, chunk: int = 1024):
        model.known_facts()
        self.model, self.chunk = model, chunk
        self.vocabulary = model.vocabulary
        self._runs: dict[Hashable, dict[ResidualOptions, ResidualRun]] = {}

    @property
    def facts(self) -> FactSet:
        """The fact set stored now."""
        return self.model.known_facts()

    @property
    def key_embeddings(self) -> Float[Tensor, "F d"]:
        return self.model.key_rows()

    @property
    def value_embeddings(self) -> Float[Tensor, "n_v d"]:
        return self.model.value_rows()

    def request(self, prompt: str, key: str, value: str, *, id: str | None = None) -> EditRequest:
        """The request that `prompt`, such as "The writer of {book} is", continue with `value` for `key`.

        Words are separated by single blanks, and one of them is a name in braces, which stands for the key.
        Raises `RequestError` for a prompt without one and for words, keys and values that the model does
        not know.
        """
        id = key if id is None else id
        require_texts(id=id, prompt=prompt, key=key, value=value)
        words = prompt.split(" ")
        if sum(bool(_HOLE.fullmatch(word)) for word in words) != 1:
            raise RequestError(
                f"request '{printable(id)}': expected one word in braces for the key, such as {{book}}, "
                f"in the prompt '{printable(prompt)}'"
            )
        try:
            old = self.facts.value_of(key)
            ids = [
                self.vocabulary.id_of(KEY, key)
                if _HOLE.fullmatch(word)
                else self.vocabulary.id_of(WORD, word)
                for word in words
            ]
            self.facts.value_index(value)
        except FactsError as error:
            raise RequestError(f"request '{printable(id)}': {error}") from error
        if self.vocabulary.bos_id is not None:
            ids = [self.vocabulary.bos_id, *ids]
        target, before = (self.vocabulary.id_of(VALUE, name) for name in (value, old))
        return EditRequest(id, tuple(ids), len(ids) - 1, (target,), (before,))

    def changes(self, requests: Sequence[EditRequest]) -> dict[str, str]:
        """key -> new value, as the requests ask."""
        entries = self.vocabulary.entries
        return {entries[self.subject(each)][1]: entries[each.target_ids[0]][1] for each in requests}

    def check(self, requests: Sequence[EditRequest]) -> None:
        """Raise `RequestError` unless each prompt is known, fits, holds one key and is edited at its end,
        and each target is one value.
        """
        size, longest = len(self.vocabulary), self.model.config.n_positions
        for request in requests:
            where, ids = f"request '{printable(request.id)}'", (*request.prompt_ids, *request.target_ids)
            strange = [token for token in ids if not 0 <= token < size or token == self.vocabulary.unk_id]
            if strange:
                raise RequestError(f"{where}: unknown token {strange[0]}")
            if len(request.prompt_ids) > longest:
                raise RequestError(f"{where}: {len(request.prompt_ids)} tokens, the model takes {longest}")
            if request.key_position != len(request.prompt_ids) - 1:
                raise RequestError(
                    f"{where}: no influence: the fact MLP acts on the last token of the prompt "
                    f"({len(request.prompt_ids) - 1}), not on token {request.key_position}"
                )
            if len(request.target_ids) != 1 or request.target_ids[0] not in self.vocabulary.value_ids:
                raise RequestError(f"{where}: the target must be one value of the facts")
            keys = [token for token in request.prompt_ids if token in self.vocabulary.key_ids]
            if len(keys) != 1:
                raise RequestError(f"{where}: the prompt must hold one key of the facts: found {len(keys)}")

    def subject(self, request: EditRequest) -> int:
        """Token id of the key in the prompt."""
        return next(token for token in request.prompt_ids if token in self.vocabulary.key_ids)

    def prompts(self, requests: Sequence[EditRequest]) -> Prompts:
        sequences = [request.prompt_ids[: request.key_position + 1] for request in requests]
        return Prompts.of(sequences, self.vocabulary.pad_id)

    def sites(self) -> list[int]:
        """The last layer, which has the fact MLP."""
        return [self.model.config.n_layer - 1]

    def weight(self, site: int) -> Float[Tensor, "d h"]:
        return self._down(site).weight.detach().clone()

    def bias(self, site: int) -> Float[Tensor, " d"] | None:
        bias = self._down(site).bias
        return None if bias is None else bias.detach().clone()

    def rows(self, prompts: Prompts) -> Rows:
        """What the last tokens hand to the fact MLP and the mixture."""
        return last_rows(self.model, prompts, chunk=self.chunk)

    def keys(self, prompts: Prompts, site: int) -> Float[Tensor, "n h"]:
        self._down(site)
        with evaluating(self.model):
            return self.model.fact_mlp.hidden(self.rows(prompts).z)

    def outputs(self, prompts: Prompts, site: int) -> Float[Tensor, "n d"]:
        self._down(site)
        with evaluating(self.model):
            return self.model.fact_mlp(self.rows(prompts).z)

    def predict(self, prompts: Prompts) -> Int[Tensor, " n"]:
        with evaluating(self.model):
            y = self.rows(prompts).mixed(self.model.fact_mlp)
            return torch.cat([self.model.head(part).argmax(dim=1) for part in y.split(self.chunk)])

    def objective(self, requests: Sequence[EditRequest], site: int) -> Objective:
        """In the model's dtype, but at least float32. Raises `RequestError` where the mixture is shut to the fact MLP."""
        rows, output = self.rows(self.prompts(requests)), self.outputs(self.prompts(requests), site)
        for request in compress(requests, (rows.gate == 0).tolist()):
            raise RequestError(
                f"request '{printable(request.id)}': the edited token has no influence on the prediction: "
                "the mixture is shut to the fact MLP there"
            )
        own = output.dtype
        working = torch.promote_types(own, torch.float32)
        targets = torch.tensor([request.target_ids[0] for request in requests], device=output.device)
        return Objective(
            rows.gate.to(working),
            rows.rest.to(working),
            output.to(working),
            targets,
            lambda y: self.model.head_direction(y.to(own)).to(working),
            self.model.get_output_embeddings().weight.detach().to(working),
        )

    def residuals(
        self, requests: Sequence[EditRequest], site: int, options: Sequence[ResidualOptions]
    ) -> list[ResidualRun]:
        """Remembered for the latest requests as long as no weight of the model changes."""
        about = (tuple(requests), self.model.state_sha256())
        if about not in self._runs:
            self._runs = {about: {}}
        runs = self._runs[about]
        missing = [each for each in dict.fromkeys(options) if each not in runs]
        if missing:
            found = optimise_residuals(self.objective(requests, site), missing)
            runs.update(zip(missing, found, strict=True))
        return [runs[each] for each in options]

    def patch(
        self,
        site: int,
        delta: Float[Tensor, "d h"] | None,
        *,
        editor: str,
        requests: Sequence[EditRequest] = (),
        bias: Float[Tensor, " d"] | None = None,
    ) -> Patch:
        """W + delta (and b + bias), summed in float64 and cast back. Raises `NonFiniteError` rather than
        write NaN.
        """
        down = self._down(site)
        parts = (("down.weight", down.weight, delta), ("down.bias", down.bias, bias))
        changes = {
            name: changed(name, parameter, change) for name, parameter, change in parts if change is not None
        }
        if not changes:
            return self._patch((), editor, ())
        old = {name: self.model.fact_mlp.get_parameter(name).detach().clone() for name in changes}
        return self._patch((ModuleChange(self.model.fact_mlp_name, old, changes),), editor, requests)

    def rebuild(
        self,
        facts: FactSet,
        construction: str | None,
        options: dict[str, Any],
        generator: torch.Generator,
    ) -> FactMLP:
        return build_for_host(self.model, facts, construction, options, generator=generator)

    def replace(self, mlp: FactMLP, *, editor: str, facts: FactSet) -> Patch:
        return Patch.between_mlps(self.model, mlp, editor=editor, facts=facts)

    def _patch(
        self, changes: tuple[ModuleChange, ...], editor: str, requests: Sequence[EditRequest]
    ) -> Patch:
        before, asked = self.facts, self.changes(requests)
        after = before.alter(asked)
        keys = [before.keys[index] for index in before.changed(after)]
        altered = tuple((key, before.value_of(key), after.value_of(key)) for key in keys)
        return Patch(changes, editor, altered, before.fingerprint, after.fingerprint)

    def _down(self, site: int) -> nn.Linear:
        if site not in self.sites():
            raise RequestError(f"layer {site} has no fact MLP: expected {self.sites()[0]}")
        return self.model.fact_mlp.down


def last_rows(model: MlpSwapForCausalLM, prompts: Prompts, *, chunk: int = 1024) -> Rows:
    """`Rows` at the last token of each prompt: attention for one query per prompt, in chunks."""
    with evaluating(model):
        parts = [
            rows_of(model, model.attend(ids, mask, last_only=True).a[:, 0])
            for ids, mask in zip(
                prompts.input_ids.to(model.device).split(chunk),
                prompts.attention_mask.to(model.device).split(chunk),
                strict=True,
            )
        ]
    return Rows.cat(parts)
