"""Edit requests and prompts, as token ids. Turning text into ids is the business of the model's adapter."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mlpswap.errors import ConfigError, RequestError
from mlpswap.facts import printable
from mlpswap.registry import labels_of
from mlpswap.tasks.base import Batch


class Context(NamedTuple):
    """A prompt and the token in it, counted from 0, whose MLP output is edited."""

    ids: tuple[int, ...]
    edited: int


def require_texts(**texts: object) -> None:
    """Raise `RequestError` naming the first that is no text, and the request by its `id`."""
    for name, found in texts.items():
        if not isinstance(found, str):
            raise RequestError(
                f"request {printable(repr(texts['id']))}: {name} must be text: found {type(found).__name__}"
            )


@dataclass(frozen=True)
class EditRequest:
    """After `prompt_ids` the model shall say `target_ids`.

    `key_position` is the token, counted from 0 within `prompt_ids`, whose MLP output is edited: the last
    one for the host. `old_target_ids` is what the model says now, if known; `group` ties several prompts of
    one fact together. Two fields are for the editors' original protocols: `prefixed`, the same prompt after
    other text, and `essence`, a neutral prompt that ends with the edited token, at which the model shall go
    on as before. Raises `RequestError`, with the id, for an empty prompt or target and for a position
    outside of the prompt.
    """

    id: str
    prompt_ids: tuple[int, ...]
    key_position: int
    target_ids: tuple[int, ...]
    old_target_ids: tuple[int, ...] | None = None
    group: str | None = None
    prefixed: tuple[Context, ...] = ()
    essence: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        where = f"request '{printable(self.id)}'"
        if not self.prompt_ids:
            raise RequestError(f"{where}: the prompt is empty")
        if not self.target_ids:
            raise RequestError(f"{where}: the target is empty")
        for ids, edited in self.contexts:
            if not 0 <= edited < len(ids):
                raise RequestError(
                    f"{where}: key_position {edited} lies outside of the prompt's {len(ids)} tokens"
                )

    @property
    def contexts(self) -> tuple[Context, ...]:
        """The bare prompt, and then the prefixed ones."""
        return (Context(self.prompt_ids, self.key_position), *self.prefixed)

    @property
    def unchanged(self) -> bool:
        """Whether the request is known to ask for what the model says already."""
        return self.old_target_ids == self.target_ids


def requests_of(
    batch: Batch, ids: Sequence[str], old_targets: Int[Tensor, " B"] | None = None
) -> list[EditRequest]:
    """One request for each prompt of a task: that its last token be followed by its last label."""
    before = [None] * len(batch) if old_targets is None else [(token,) for token in old_targets.tolist()]
    rows = zip(ids, batch.input_ids, batch.attention_mask, batch.labels[:, -1].tolist(), before, strict=True)
    return [
        EditRequest(each, tuple(tokens[real].tolist()), int(real.sum()) - 1, (target,), old)
        for each, tokens, real, target, old in rows
    ]


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts padded on the left. Each is asked at its last token, which is always the last column.

    A causal model's activations at a token in the middle are those of the prompt cut there, so this is no
    restriction.
    """

    input_ids: Int[Tensor, "n T"]
    attention_mask: Bool[Tensor, "n T"]

    def __len__(self) -> int:
        return len(self.input_ids)

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], pad_id: int) -> "Prompts":
        """Pad sequences of any lengths, none of them empty."""
        width = max(map(len, sequences), default=0)
        ids = torch.full((len(sequences), width), pad_id)
        mask = torch.zeros(len(sequences), width, dtype=torch.bool)
        for row, sequence in enumerate(sequences):
            ids[row, width - len(sequence) :] = torch.tensor(sequence)
            mask[row, width - len(sequence) :] = True
        return cls(ids, mask)


def merge_requests(
    requests: Sequence[EditRequest], subjects: Sequence[Hashable], on_conflict: str = "error"
) -> tuple[list[EditRequest], dict[str, str]]:
    """The requests that remain, in order, and why each of the others does not.

    `subjects` says which fact each request is about. Equal prompts with equal targets are merged. One
    subject with two targets raises `RequestError` with the ids, or, with `on_conflict="last"`, the last
    request's target holds and requests for another one are left out. Requests of one subject that share
    their id, as those without an id of their own do, are told apart by a number: Emma, Emma-2. An id that
    two subjects share raises `RequestError`.
    """
    if on_conflict not in ("error", "last"):
        raise ConfigError(f"on_conflict must be 'error' or 'last': found '{on_conflict}'")
    owners: dict[str, Hashable] = {}
    for subject, request in zip(subjects, requests, strict=True):
        if owners.setdefault(request.id, subject) != subject:
            raise RequestError(f"two facts have requests of the same id, '{printable(request.id)}'")
    labels = labels_of([request.id for request in requests])
    requests = [replace(request, id=label) for request, label in zip(requests, labels, strict=True)]
    last = dict(zip(subjects, requests, strict=True))
    kept: dict[tuple[int, ...], EditRequest] = {}
    left_out: dict[str, str] = {}
    clashes: list[str] = []
    for subject, request in zip(subjects, requests, strict=True):
        winner = last[subject]
        prompt = (*request.prompt_ids, request.key_position)
        if request.target_ids != winner.target_ids:
            clashes += [each for each in (request.id, winner.id) if each not in clashes]
            left_out[request.id] = f"request '{winner.id}' asks for another target of the same fact"
        elif prompt in kept:
            left_out[request.id] = f"merged with request '{kept[prompt].id}', which is the same"
        else:
            kept[prompt] = request
    if clashes and on_conflict == "error":
        raise RequestError(
            f"requests {', '.join(map(printable, clashes))} ask for different targets of the same fact; "
            "keep one, or set on_conflict=last"
        )
    return list(kept.values()), left_out
