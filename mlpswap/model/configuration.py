"""The host's configuration: a transformers config with checked fields, which refuses misspelt ones."""

import difflib
import math
from dataclasses import fields
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from mlpswap.constructions.base import FactMLPConfig
from mlpswap.errors import ConfigError

# What transformers passes to a config, or writes into config.json, beyond the declared fields of its base
# class.
_OF_TRANSFORMERS = {
    "model_type",
    "name_or_path",
    "_name_or_path",
    "_commit_hash",
    "attn_implementation",
    "experts_implementation",
    "output_attentions",
    "num_labels",
    "torch_dtype",
}

_CHOICES = {
    "qk": ("mlp", "linear"),
    "value_output": ("identity", "learned"),
    "norm": ("frozen", "learned"),
}


@strict
class MlpSwapConfig(PreTrainedConfig):
    """Shape and switches of the host transformer. Raises `ConfigError` for what cannot be built.

    vocab_size: V. n_embd: d. n_layer, n_head: only the last layer has the fact MLP. n_positions: the longest
    sequence that the model is meant for; RoPE itself has no bound. rope_theta: base of RoPE's frequencies.
    qk: queries and keys by "mlp" (Linear, GELU, Linear) or "linear" (no bias). value_output: "identity"
    (frozen, not materialised) or "learned". residual: add each layer's input to its output. norm: the norm
    before the fact MLP, "frozen" (multiplied by the scalar `norm_scale`; None means 1 / sqrt(d), so that it
    yields unit vectors) or "learned" (that scalar is where its d weights start). mixture: mix the fact MLP
    with the language expert of rank `language_rank` by a router of width `router_hidden`; without it the fact
    MLP stands alone. logit_scale: s, where it starts if `train_logit_scale`. fact_mlp:
    `FactMLPConfig.to_dict()`; None means a SwiGLU MLP with h = 4 d. tie_word_embeddings: the head multiplies
    with E itself, not with a table of its own.
    """

    model_type = "mlpswap"
    attribute_map = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }

    vocab_size: int = 256
    n_embd: int = 64
    n_layer: int = 1
    n_head: int = 1
    n_positions: int = 64
    rope_theta: float | int = 10000.0
    qk: str = "mlp"
    value_output: str = "identity"
    residual: bool = False
    norm: str = "frozen"
    norm_scale: float | int | None = None
    mixture: bool = True
    language_rank: int = 16
    router_hidden: int = 64
    logit_scale: float | int = 16.0
    train_logit_scale: bool = True
    fact_mlp: dict | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        known = {field.name for field in fields(self)} | set(self.attribute_map)
        for name in kwargs:
            if name not in known | _OF_TRANSFORMERS:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise ConfigError(f"MlpSwapConfig has no field '{name}'{hint}")
        super().__post_init__(**kwargs)
        if self.fact_mlp is None:
            self.fact_mlp = FactMLPConfig.of_kind(
                "swiglu", max(self.n_embd, 1), 4 * max(self.n_embd, 1)
            ).to_dict()
        self.check()

    def check(self) -> None:
        """Raise `ConfigError` for a combination of fields that no model can have."""
        sizes = ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "language_rank", "router_hidden")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1: found {getattr(self, name)}")
        if self.n_embd % (2 * self.n_head):
            raise ConfigError(
                f"n_embd must be a multiple of 2 n_head, since RoPE rotates pairs within each head: "
                f"found n_embd = {self.n_embd}, n_head = {self.n_head}"
            )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name} must be one of {', '.join(choices)}: found '{getattr(self, name)}'"
                )
        for name in ("rope_theta", "logit_scale", "norm_scale"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be positive and finite: found {value}")
        if self.fact_mlp_config.d != self.n_embd:
            raise ConfigError(
                f"the fact MLP's width d must be n_embd = {self.n_embd}: found {self.fact_mlp_config.d}"
            )

    @property
    def fact_mlp_config(self) -> FactMLPConfig:
        """`fact_mlp` as an object."""
        try:
            return FactMLPConfig(**(self.fact_mlp or {}))
        except TypeError as error:
            raise ConfigError(f"fact_mlp is not the configuration of a fact MLP: {error}") from error

    @property
    def c(self) -> float:
        """The scalar of the frozen norm: `norm_scale`, or 1 / sqrt(d)."""
        return self.n_embd**-0.5 if self.norm_scale is None else float(self.norm_scale)

    def own_fields(self) -> dict[str, Any]:
        """What decides over the outputs beside the tensors: the fields declared by this class."""
        return {name: getattr(self, name) for name in sorted(MlpSwapConfig.__annotations__)}
