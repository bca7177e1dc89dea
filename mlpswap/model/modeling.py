"""The host: a GPT-2 variant that looks facts up in a frozen MLP (arXiv 2512.00207, sections 4 and A.3).

One layer does this, E being the frozen table of embeddings:

    u = rms(E[t])                                             (B, T, d)
    a = softmax(mask(rope(Q(u)) rope(K(u))^T / sqrt(d))) u    (B, T, d)
    z = rms(a) c                                              (B, T, d)   unit(a) for c = 1 / sqrt(d)
    y = w g(z) + (1 - w) L(a),  w = sigmoid(R(a))             (B, T, d)   or y = g(z) without the mixture
    logits = s unit(y) E^T                                    (B, T, V)

Training, evaluation and editing go through the same pieces: `attend`, `norm_input`, `fact_mlp`, `mix`,
`head`.
"""

import math
from typing import Any, ClassVar, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.utils.generic import can_return_tuple

from mlpswap.constructions.base import FactMLP
from mlpswap.errors import ConfigError
from mlpswap.model.configuration import MlpSwapConfig
from mlpswap.model.lookup import FactLookup
from mlpswap.model.saving import StrictCheckpoints

Ids = Int[Tensor, "B T"]
Mask = Bool[Tensor, "B T"] | Int[Tensor, "B T"]
Vectors = Float[Tensor, "*n d"]
EPS = 1e-20  # rms(E[t]) must not depend on the length of the rows of E


class Attended(NamedTuple):
    """a: (B, T, d), or (B, 1, d) of the last positions. probabilities: (B, n_head, Tq, T) or None."""

    a: Tensor
    probabilities: Tensor | None


class Passed(NamedTuple):
    """What went through the trunk, block by block. inputs: (B, T, d) each, the first of them rms(E[t])."""

    inputs: tuple[Tensor, ...]
    attended: tuple[Attended, ...]


class Mixed(NamedTuple):
    """y: (..., d), what the head reads. gate: (...), the weight w of the fact MLP."""

    y: Tensor
    gate: Tensor


def rms(x: Vectors) -> Vectors:
    """x / sqrt(mean(x^2))"""
    return F.rms_norm(x, x.shape[-1:], eps=EPS)


def rope(x: Float[Tensor, "B H T w"], positions: Ids, theta: float) -> Float[Tensor, "B H T w"]:
    """Rotate the pairs (x_i, x_{i + w/2}) by position * theta^(-2i/w) (arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)  # half precision cannot tell far positions apart
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    angles = positions[:, None, :, None] * frequencies  # (B, 1, T, w/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def last_real(attention_mask: Mask) -> Int[Tensor, " B"]:
    """Index of each row's last real token: T - 1 where the padding is on the left."""
    return attention_mask.shape[1] - 1 - attention_mask.int().flip(1).argmax(dim=1)


def pick(x: Float[Tensor, "B T d"], last: Int[Tensor, " B"]) -> Float[Tensor, "B 1 d"]:
    """One position of each row."""
    return x[torch.arange(len(x), device=x.device), last][:, None]


def projection(config: MlpSwapConfig) -> nn.Module:
    """Q or K."""
    d, mlp = config.n_embd, config.qk == "mlp"
    first = nn.Linear(d, d, bias=mlp)
    return nn.Sequential(first, nn.GELU(), nn.Linear(d, d)) if mlp else first


class Attention(nn.Module):
    """Causal attention. With identity value and output, head j reads and writes slice j of the width."""

    def __init__(self, config: MlpSwapConfig):
        super().__init__()
        d, self.n_head, self.theta = config.n_embd, config.n_head, float(config.rope_theta)
        self.q, self.k = projection(config), projection(config)
        learned = config.value_output == "learned"
        self.v = nn.Linear(d, d, bias=False) if learned else nn.Identity()
        self.c_proj = nn.Linear(d, d, bias=False) if learned else nn.Identity()

    def forward(self, u: Tensor, positions: Ids, allowed: Tensor, last: Tensor | None) -> Attended:
        """u: (B, T, d). allowed: (B, 1, Tq, T), what queries may see. last: (B,), the only queries, or None."""
        asking = u if last is None else pick(u, last)  # (B, Tq, d)
        asked_at = positions if last is None else positions.gather(1, last[:, None])  # (B, Tq)
        q = rope(self._heads(self.q(asking)), asked_at, self.theta)  # (B, H, Tq, w)
        k = rope(self._heads(self.k(u)), positions, self.theta)  # (B, H, T, w)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (B, H, Tq, T)
        # The least number rather than -inf: a padded query, which may see nothing, must not become NaN.
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        probabilities = scores.softmax(dim=-1)
        read = rearrange(probabilities @ self._heads(self.v(u)), "b h t w -> b t (h w)")  # (B, Tq, d)
        return Attended(self.c_proj(read), probabilities)

    def _heads(self, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B H T w"]:
        return rearrange(x, "b t (h w) -> b h t w", h=self.n_head)


class Norm(nn.Module):
    """rms(x) c with a scalar that never trains, which no swap recalibrates; or, if learned, with d weights."""

    def __init__(self, config: MlpSwapConfig):
        super().__init__()
        self.c = config.c
        learned = config.norm == "learned"
        self.weight = nn.Parameter(torch.full((config.n_embd,), config.c)) if learned else None

    def forward(self, x: Vectors) -> Vectors:
        return rms(x) * (self.c if self.weight is None else self.weight)


class Mixture(nn.Module):
    """Router and language expert: what stands beside the fact MLP. Both read a, before the norm."""

    def __init__(self, config: MlpSwapConfig):
        super().__init__()
        d, r, hidden = config.n_embd, config.language_rank, config.router_hidden
        self.router = nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, 1))
        self.u, self.v = nn.Linear(d, r, bias=False), nn.Linear(r, d, bias=False)

    def gate(self, a: Vectors) -> Float[Tensor, "*n"]:
        """w = sigmoid(R(a)), the weight of the fact MLP."""
        return self.router(a).squeeze(-1).sigmoid()

    def language(self, a: Vectors) -> Vectors:
        """L(a) = (a U) V / sqrt(d)."""
        return self.v(self.u(a)) / math.sqrt(a.shape[-1])


class Block(nn.Module):
    """One layer. Earlier ones are attention alone; the last has norm, fact MLP and mixture too."""

    def __init__(self, config: MlpSwapConfig, last: bool):
        super().__init__()
        self.attn, self.residual = Attention(config), config.residual
        if last:
            self.ln_2 = Norm(config)
            self.mlp = FactMLP(config.fact_mlp_config)
            self.mixture = Mixture(config) if config.mixture else None

    def forward(self, x: Tensor, positions: Ids, allowed: Tensor, last: Tensor | None) -> Attended:
        """The attention sublayer; norm and mixture belong to `MlpSwapForCausalLM`, piece by piece."""
        a, probabilities = self.attn(rms(x), positions, allowed, last)
        if self.residual:
            a = a + (x if last is None else pick(x, last))
        return Attended(a, probabilities)


class MlpSwapModel(nn.Module):
    """The trunk: embeddings and attention, up to what the norm and the mixture of the last layer read."""

    def __init__(self, config: MlpSwapConfig):
        super().__init__()
        self.n_positions = config.n_positions
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config, i == config.n_layer - 1) for i in range(config.n_layer))

    def forward(
        self, input_ids: Ids, attention_mask: Mask | None, position_ids: Ids | None, last_only: bool
    ) -> Passed:
        """See `MlpSwapForCausalLM.attend`; `last_only` is about the last block."""
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        counted = real.long().cumsum(dim=1).sub(1).clamp(min=0)
        self._check_length(counted)
        positions = counted if position_ids is None else position_ids.expand_as(input_ids)
        seen = real.bool()[:, None, None, :]  # (B, 1, 1, T): all that a row's last real token sees
        causal = torch.ones(seen.shape[-1:] * 2, dtype=torch.bool, device=seen.device).tril()  # (T, T)
        inputs, attended = [rms(self.wte(input_ids))], []  # (B, T, d)
        for block in self.h[:-1]:
            attended.append(block(inputs[-1], positions, seen & causal, None))
            inputs.append(attended[-1].a)
        allowed, last = (seen, last_real(real)) if last_only else (seen & causal, None)
        attended.append(self.h[-1](inputs[-1], positions, allowed, last))
        return Passed(tuple(inputs), tuple(attended))

    def _check_length(self, counted: Ids) -> None:
        """Padding does not count; the numbers are looked at only where the width leaves a doubt."""
        if counted.shape[1] > self.n_positions and (longest := int(counted.max()) + 1) > self.n_positions:
            raise ConfigError(
                f"a sequence has {longest} tokens: the model takes at most {self.n_positions} (n_positions)"
            )


class MlpSwapForCausalLM(StrictCheckpoints, FactLookup, PreTrainedModel, GenerationMixin):
    """The host. What it knows by name (`facts`, `ask`, ...) is in `FactLookup`.

    Frozen: embeddings, head, fact MLP. There is no key-value cache: an answer is one token long, so that a
    cache would never be read; `use_cache` changes nothing. Longer output is possible but untrained.
    """

    config_class = MlpSwapConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "transformer.wte.weight"}
    _supports_sdpa = True  # attention is our own under any name

    def __init__(self, config: MlpSwapConfig):
        if config._attn_implementation is None:
            config._attn_implementation = "eager"  # the name under which transformers gives attentions out
        super().__init__(config)
        self.transformer = MlpSwapModel(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.log_s = nn.Parameter(torch.tensor(math.log(config.logit_scale)))
        ids = {name: getattr(config, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        self.generation_config = GenerationConfig(max_new_tokens=1, do_sample=False, **ids)
        self.post_init()
        self.freeze()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: constructed weights must stay, and `build_host` draws the others from a generator."""

    def freeze(self) -> None:
        """Let exactly those parameters train that the specification lets train."""
        self.requires_grad_(True)
        self.log_s.requires_grad_(self.config.train_logit_scale)
        for frozen in (self.transformer.wte, self.lm_head, self.fact_mlp):
            frozen.requires_grad_(False)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.transformer.wte

    @property
    def fact_mlp_name(self) -> str:
        """Where the fact MLP is, as in `get_submodule`."""
        return f"transformer.h.{self.config.n_layer - 1}.mlp"

    @property
    def fact_mlp(self) -> FactMLP:
        return self.transformer.h[-1].mlp

    def attend(
        self,
        input_ids: Ids,
        attention_mask: Mask | None = None,
        position_ids: Ids | None = None,
        *,
        last_only: bool = False,
        return_attention: bool = False,
    ) -> Attended:
        """a of the last layer, with the residual if on, and its attention probabilities if asked for.

        attention_mask is 1 for real tokens and may pad on either side; positions count real tokens from 0.
        last_only: a of each row's last real token only, (B, 1, d), at the cost of one query per row. Raises
        `ConfigError` for more than `n_positions` real tokens.
        """
        a, probabilities = self.transformer(input_ids, attention_mask, position_ids, last_only).attended[-1]
        return Attended(a, probabilities if return_attention else None)

    def norm_input(self, a: Vectors) -> Vectors:
        """z, what the fact MLP reads."""
        return self.transformer.h[-1].ln_2(a)

    def mix_terms(self, a: Vectors) -> tuple[Float[Tensor, "*n"], Vectors]:
        """(gate, rest), the parts that no fact MLP changes: y = gate * g(z) + rest."""
        mixture = self.transformer.h[-1].mixture
        gate, rest = torch.ones_like(a[..., 0]), torch.zeros_like(a)
        if mixture is not None:
            gate = mixture.gate(a)
            rest = (1 - gate)[..., None] * mixture.language(a)
        return gate, rest + a if self.config.residual else rest

    def mix(self, a: Tensor, z: Tensor, fact_out: Tensor | None = None) -> Mixed:
        """y = w g(z) + (1 - w) L(a), plus a with residual; `fact_out` takes the place of g(z)."""
        gate, rest = self.mix_terms(a)
        return Mixed(gate[..., None] * (self.fact_mlp(z) if fact_out is None else fact_out) + rest, gate)

    def head_direction(self, y: Vectors) -> Vectors:
        """s unit(y), whose products with rows of E are the logits."""
        return self.log_s.exp() * F.normalize(y, dim=-1)

    def head(self, y: Vectors) -> Float[Tensor, "*n V"]:
        return self.lm_head(self.head_direction(y))

    @can_return_tuple
    def forward(
        self,
        input_ids: Ids,
        attention_mask: Mask | None = None,
        position_ids: Ids | None = None,
        labels: Ids | None = None,
        logits_to_keep: int = 0,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> CausalLMOutput:
        """Logits of all positions, or of the last `logits_to_keep`; 1 means each row's last real token.

        labels: token ids, -100 where there is none; position i is scored against label i + 1. On demand, here
        or in the configuration, also of all positions: `attentions`, (B, n_head, T, T) for each block, and
        `hidden_states`, (B, T, d): what enters each block, and y. Raises `ConfigError` as `attend`.
        """
        attentions = self.config.output_attentions if output_attentions is None else output_attentions
        states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        whole, last_only = bool(attentions or states), logits_to_keep == 1
        passed = self.transformer(input_ids, attention_mask, position_ids, last_only and not whole)
        a = passed.attended[-1].a
        y = self.mix(a, self.norm_input(a)).y
        if whole and last_only:
            kept = pick(
                y, last_real(torch.ones_like(input_ids) if attention_mask is None else attention_mask)
            )
        else:
            kept = y[:, -logits_to_keep:]  # 0: all
        logits = self.head(kept)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(rearrange(logits[:, :-1], "b t v -> (b t) v"), labels[:, 1:].flatten())
        return CausalLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=(*passed.inputs, y) if states else None,
            attentions=tuple(each.probabilities for each in passed.attended) if attentions else None,
        )

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **rest: Any
    ) -> dict[str, Any]:
        """The whole prefix at each step, since there is no cache; positions follow from the mask."""
        outputs = {name: rest.get(name) for name in ("output_attentions", "output_hidden_states")}
        return {"input_ids": input_ids, "attention_mask": attention_mask, "logits_to_keep": 1} | outputs

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False
