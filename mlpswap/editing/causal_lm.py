"""The adapter of a Hugging Face causal LM, such as GPT-2 or Llama: every layer may be edited.

Activations are read, moved and tried out by hooks: no weight is ever written, so there is none to restore.
Sequences are padded on the right, where a causal model's tokens cannot see it, so that positions are those
of the tokens alone, whatever the tokenizer's padding side.
"""

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mlpswap.editing.architecture import Site, find_sites, require_a_head
from mlpswap.editing.phrasing import Phrasing
from mlpswap.editing.reading import changed, frozen
from mlpswap.editing.requests import Context, EditRequest, Prompts
from mlpswap.editing.residuals import Losses, ResidualOptions, ResidualRun, optimise_residuals
from mlpswap.errors import ConfigError, RequestError
from mlpswap.facts import printable
from mlpswap.model.patch import ModuleChange, Patch

PLACES = ("mlp", "block")  # what leaves the down-projection; the hidden state after the block


class CausalLMAdapter:
    """`LayeredAdapter` for a causal LM. The model is read, never written.

    tokenizer: a transformers tokenizer, for requests as text. prefixes: sentences that requests made here are
    prefixed with, such as `sample_prefixes` gives. sites: editable layers, by default all. chunk: sequences in
    one forward pass. blocks, down: see `find_sites`.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        prefixes: Sequence[str] = (),
        sites: Sequence[int] | None = None,
        chunk: int = 64,
        blocks: str | None = None,
        down: str | None = None,
    ):
        if chunk < 1:
            raise ConfigError(f"chunk = {chunk}: expected at least 1")
        require_a_head(model)
        self.model, self.chunk, self.prefixes = model, chunk, tuple(prefixes)
        self.phrasing = None if tokenizer is None else Phrasing(tokenizer)
        self._sites = find_sites(model, blocks=blocks, down=down)
        every = list(range(len(self._sites)))
        self._offered = every if sites is None else sorted(sites)
        if len(set(self._offered)) != len(self._offered) or not set(self._offered) <= set(every):
            raise ConfigError(f"sites must be different layers in 0..{every[-1]}: found {sites}")
        config = model.config.get_text_config()  # type: ignore[union-attr,operator]
        self.size: int = config.vocab_size
        limits = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
        self.longest = next((limit for limit in limits if isinstance(limit, int)), sys.maxsize)
        self._require_causal()

    def request(self, prompt: str, subject: str, target: str, **options: Any) -> EditRequest:
        """See `Phrasing.request`; prefixed with the adapter's prefixes."""
        if self.phrasing is None:
            raise ConfigError("requests as text need a tokenizer: CausalLMAdapter(model, tokenizer)")
        return self.phrasing.request(prompt, subject, target, **{"prefixes": self.prefixes} | options)

    def check(self, requests: Sequence[EditRequest]) -> None:
        """Raise `RequestError` for unknown tokens, special ones in a target, and prompts that do not fit."""
        special = set(getattr(self.phrasing and self.phrasing.tokenizer, "all_special_ids", ()))
        for request in requests:
            where = f"request '{printable(request.id)}'"
            everything = (*request.target_ids, *(request.essence or ()))
            for ids, _ in request.contexts:
                everything = (*everything, *ids)
                longest = len(ids) + len(request.target_ids) - 1
                if longest > self.longest:
                    raise RequestError(f"{where}: {longest} tokens, the model takes {self.longest}")
            strange = [token for token in everything if not 0 <= token < self.size]
            if strange:
                raise RequestError(f"{where}: unknown token {strange[0]}")
            if found := special.intersection(request.target_ids):
                raise RequestError(f"{where}: the target holds the special token {min(found)}")

    def subject(self, request: EditRequest) -> Hashable:
        """The whole prompt: a subject has many facts."""
        return request.prompt_ids

    def prompts(self, requests: Sequence[EditRequest]) -> Prompts:
        return self.cut([Context(request.prompt_ids, request.key_position) for request in requests])

    def cut(self, contexts: Sequence[Context]) -> Prompts:
        """Each up to its edited token."""
        return Prompts.of([ids[: edited + 1] for ids, edited in contexts], 0)

    def sites(self) -> list[int]:
        return list(self._offered)

    def weight(self, site: int) -> Float[Tensor, "d h"]:
        place = self._site(site)
        return place.oriented(place.weight.detach()).clone()

    def bias(self, site: int) -> Float[Tensor, " d"] | None:
        bias = self._site(site).bias
        return None if bias is None else bias.detach().clone()

    def keys(self, prompts: Prompts, site: int) -> Float[Tensor, "n h"]:
        down = self._site(site).down
        return self._read(prompts, lambda see: down.register_forward_pre_hook(lambda _, args: see(args[0])))

    def outputs(self, prompts: Prompts, site: int, at: str = "mlp") -> Float[Tensor, "n d"]:
        module = self._module(site, at)
        return self._read(
            prompts, lambda see: module.register_forward_hook(lambda _, args, output: see(_hidden(output)))
        )

    def _read(self, prompts: Prompts, hook: Callable[[Callable[[Tensor], None]], Any]) -> Tensor:
        """What `hook` sees at the last token of each prompt."""
        seen: list[Tensor] = []
        for sequences in self._chunks(_sequences(prompts)):
            last = [len(ids) - 1 for ids in sequences]

            def see(hidden: Tensor, last: list[int] = last) -> None:
                seen.append(hidden[range(len(last)), last])

            handle = hook(see)
            try:
                with torch.no_grad():
                    self._logits(sequences, [])
            finally:
                handle.remove()
        return torch.cat(seen)

    def token_keys(
        self, sequences: Sequence[tuple[int, ...]], sites: Sequence[int]
    ) -> dict[int, Float[Tensor, "tokens h"]]:
        """The keys of every token of every sequence at each site, by one forward pass per chunk."""
        found: dict[int, list[Tensor]] = {site: [] for site in sites}
        for part in self._chunks(sequences):
            longest = max(map(len, part))
            real = torch.tensor(
                [[at < len(ids) for at in range(longest)] for ids in part], device=self.device
            )
            with ExitStack() as stack, torch.no_grad():
                for site in sites:

                    def see(_: nn.Module, args: Any, site: int = site, real: Tensor = real) -> None:
                        found[site].append(args[0][real])

                    stack.callback(self._site(site).down.register_forward_pre_hook(see).remove)
                self._logits(part, [])
        return {site: torch.cat(rows) for site, rows in found.items()}

    def _chunks(self, sequences: Sequence[tuple[int, ...]]) -> Iterator[Sequence[tuple[int, ...]]]:
        for start in range(0, len(sequences), self.chunk):
            yield sequences[start : start + self.chunk]

    def predict(self, prompts: Prompts) -> Int[Tensor, " n"]:
        with torch.no_grad():
            parts = [
                self.log_probs([Context(ids, 0) for ids in sequences]).argmax(dim=1)
                for sequences in self._chunks(_sequences(prompts))
            ]
        return torch.cat(parts)

    def greedy(self, requests: Sequence[EditRequest]) -> list[tuple[int, ...]]:
        """What the model says after each whole prompt, as many tokens as the target has."""
        said: list[tuple[int, ...]] = [()] * len(requests)
        for length in range(max((len(request.target_ids) for request in requests), default=0)):
            going = [i for i, request in enumerate(requests) if len(request.target_ids) > length]
            prompts = Prompts.of([(*requests[i].prompt_ids, *said[i]) for i in going], 0)
            for i, token in zip(going, self.predict(prompts).tolist(), strict=True):
                said[i] = (*said[i], token)
        return said

    def nll(
        self,
        contexts: Sequence[Context],
        targets: Sequence[tuple[int, ...]],
        site: int = 0,
        at: str = "mlp",
        delta: Float[Tensor, "n d"] | None = None,
    ) -> Float[Tensor, " n"]:
        """-log p of each target after its whole context, in nats, mean over the target's tokens.

        `delta` is added at the edited tokens, to what leaves the MLP or the block; differentiable in it.
        """
        sequences = [(*ids, *target[:-1]) for (ids, _), target in zip(contexts, targets, strict=True)]
        said = [
            (row, at_token)
            for row, (ids, target) in enumerate(zip(sequences, targets, strict=True))
            for at_token in range(len(ids) - len(target), len(ids))
        ]
        logits = self._shifted(sequences, [edited for _, edited in contexts], said, site, at, delta)
        wanted = torch.tensor([token for target in targets for token in target], device=logits.device)
        losses = F.cross_entropy(logits, wanted, reduction="none")
        return torch.stack([part.mean() for part in losses.split(list(map(len, targets)))])

    def log_probs(
        self,
        contexts: Sequence[Context],
        site: int = 0,
        at: str = "mlp",
        delta: Float[Tensor, "n d"] | None = None,
    ) -> Float[Tensor, "n V"]:
        """log p of every token after each whole context; `delta` as in `nll`."""
        sequences = [ids for ids, _ in contexts]
        said = [(row, len(ids) - 1) for row, ids in enumerate(sequences)]
        logits = self._shifted(sequences, [edited for _, edited in contexts], said, site, at, delta)
        return logits.log_softmax(dim=1)

    def _shifted(
        self,
        sequences: Sequence[tuple[int, ...]],
        edited: Sequence[int],
        said: Sequence[tuple[int, int]],
        site: int,
        at: str,
        delta: Tensor | None,
    ) -> Float[Tensor, "said V"]:
        """`_logits`, with `delta` added at the edited tokens."""
        if delta is None:
            return self._logits(sequences, said)
        where = torch.arange(len(edited), device=delta.device), torch.tensor(edited, device=delta.device)

        def add(_: nn.Module, args: Any, output: Any) -> Any:
            hidden = _hidden(output)
            hidden = hidden.index_put(where, delta.to(hidden.dtype), accumulate=True)
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        handle = self._module(site, at).register_forward_hook(add)
        try:
            return self._logits(sequences, said)
        finally:
            handle.remove()

    def _logits(
        self, sequences: Sequence[tuple[int, ...]], said: Sequence[tuple[int, int]]
    ) -> Float[Tensor, "said V"]:
        """After the tokens `said`, as (sequence, position): the head, whose output is large, sees no other.

        At least float32. The padding on the right stays unseen, so that no mask is needed.
        """
        rows = [torch.tensor(ids) for ids in sequences]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device)
        where = torch.tensor(said, dtype=torch.long, device=self.device).reshape(-1, 2)
        head = self.model.get_output_embeddings()  # type: ignore[operator]
        handle = head.register_forward_pre_hook(lambda _, args: (args[0][where[:, 0], where[:, 1]],))
        try:
            with frozen(self.model):
                return self.model(input_ids=ids, use_cache=False).logits.to(self.working)
        finally:
            handle.remove()

    def _require_causal(self) -> None:
        """Prompts are cut at the edited token, and padded behind it: what stands there must not matter."""
        sequences = [(0, 0), (0, self.size - 1)]
        with torch.no_grad():
            one, other = self._logits(sequences, [(0, 0), (1, 0)])
        scale = float(one.nan_to_num(0.0, 0.0, 0.0).abs().max())
        if not torch.allclose(one, other, rtol=1e-2, atol=1e-3 * scale, equal_nan=True):
            raise ConfigError(
                f"{type(self.model).__name__} is no causal language model: a later token changes an earlier prediction"
            )

    @property
    def device(self) -> torch.device:
        return self._sites[0].weight.device

    @property
    def working(self) -> torch.dtype:
        """In which vectors are optimised: the model's, but at least float32."""
        return torch.promote_types(self._sites[0].weight.dtype, torch.float32)

    @contextmanager
    def trial(
        self, deltas: Mapping[int, Tensor], biases: Mapping[int, Tensor] | None = None
    ) -> Iterator[None]:
        """Within it the model computes as if W + delta (d, h), and b + bias (d,), were its weights.

        Differentiable in both. The weights stay as they are: their change is added to the outputs.
        """
        biases = biases or {}
        with ExitStack() as stack:
            for site, delta in deltas.items():
                bias = biases.get(site)
                place = self.device, self.working
                change = delta.to(*place), None if bias is None else bias.to(*place)

                def add(_: nn.Module, args: Any, output: Tensor, change: Any = change) -> Tensor:
                    return output + F.linear(args[0].to(self.working), *change).to(output.dtype)

                stack.callback(self._site(site).down.register_forward_hook(add).remove)
            yield

    def objective(self, requests: Sequence[EditRequest], site: int) -> Losses:
        """Of the single-layer protocol: the bare prompts alone, edited at one layer's MLP."""
        output = self.outputs(self.prompts(requests), site).to(self.working)
        return ForwardLosses(self, tuple(requests), site, output)

    def residuals(
        self, requests: Sequence[EditRequest], site: int, options: Sequence[ResidualOptions]
    ) -> list[ResidualRun]:
        return optimise_residuals(self.objective(requests, site), options, rows=self.chunk)

    def patch(
        self,
        site: int,
        delta: Float[Tensor, "d h"] | None,
        *,
        editor: str,
        requests: Sequence[EditRequest] = (),
        bias: Float[Tensor, " d"] | None = None,
    ) -> Patch:
        deltas = {} if delta is None else {site: delta}
        biases = {} if bias is None else {site: bias}
        return self.patch_sites(deltas, biases, editor=editor, requests=requests)

    def patch_sites(
        self,
        deltas: Mapping[int, Tensor],
        biases: Mapping[int, Tensor] | None = None,
        *,
        editor: str,
        requests: Sequence[EditRequest] = (),
    ) -> Patch:
        """One patch for several layers: W + delta (and b + bias) of each. See `patch`."""
        changes = []
        for site in sorted(deltas.keys() | (biases or {}).keys()):
            place, old, new = self._site(site), {}, {}
            parts = (("weight", place.weight, deltas), ("bias", place.bias, biases or {}))
            for name, parameter, by_site in parts:
                if parameter is not None and site in by_site:
                    change = place.oriented(by_site[site]) if name == "weight" else by_site[site]
                    old[name] = parameter.detach().clone()
                    new[name] = changed(f"{place.name}.{name}", parameter, change).contiguous()
            changes.append(ModuleChange(place.name, old, new))
        return Patch(tuple(changes), editor, tuple(map(self._altered, requests if changes else ())))

    def _altered(self, request: EditRequest) -> tuple[str, str, str]:
        if self.phrasing is None:
            return request.id, "", " ".join(map(str, request.target_ids))
        old, new = map(self.phrasing.decode, (request.old_target_ids or (), request.target_ids))
        return request.id, old.strip(), new.strip()

    def _site(self, site: int) -> Site:
        if site not in self._offered:
            raise ConfigError(f"layer {site} may not be edited: expected one of {self._offered}")
        return self._sites[site]

    def _module(self, site: int, at: str) -> nn.Module:
        if at not in PLACES:
            raise ValueError(f"at must be one of {', '.join(PLACES)}: found '{at}'")
        place = self._site(site)
        return place.down if at == "mlp" else place.block


@dataclass(frozen=True, eq=False)
class ForwardLosses(Losses):
    """By a forward pass through the whole model. The requests' edited tokens take the residuals."""

    adapter: CausalLMAdapter
    requests: tuple[EditRequest, ...]
    site: int
    output: Float[Tensor, "n d"]

    def __len__(self) -> int:
        return len(self.requests)

    def __getitem__(self, rows: slice | Tensor) -> "ForwardLosses":
        chosen = range(len(self))[rows] if isinstance(rows, slice) else torch.arange(len(self))[rows.cpu()]
        requests = tuple(self.requests[int(row)] for row in chosen)
        return ForwardLosses(self.adapter, requests, self.site, self.output[rows])

    def nll(self, r: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        contexts = [request.contexts[0] for request in self.requests]
        targets = [request.target_ids for request in self.requests]
        return self.adapter.nll(contexts, targets, self.site, "mlp", r)


def _hidden(output: Any) -> Tensor:
    """Blocks return a tensor or a tuple, by the version of transformers."""
    return output[0] if isinstance(output, tuple) else output


def _sequences(prompts: Prompts) -> list[tuple[int, ...]]:
    rows = zip(prompts.input_ids, prompts.attention_mask, strict=True)
    return [tuple(ids[real].tolist()) for ids, real in rows]
