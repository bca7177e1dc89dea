"""Put a host together: vocabulary, embeddings and a fact MLP given, everything that trains drawn anew."""

import copy
import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mlpswap.constructions.base import FactMLP
from mlpswap.errors import ConfigError, FactsError
from mlpswap.facts import FactSet
from mlpswap.model.configuration import MlpSwapConfig
from mlpswap.model.modeling import MlpSwapForCausalLM
from mlpswap.model.saving import require_finite
from mlpswap.model.tokenization import KEY, VALUE, MlpSwapTokenizer, Vocabulary


def build_host(
    vocabulary: Vocabulary,
    config: MlpSwapConfig,
    facts: FactSet,
    fact_mlp: FactMLP,
    embeddings: Float[Tensor, "V d"],
    *,
    generator: torch.Generator,
) -> MlpSwapForCausalLM:
    """A host before training, in the dtype of `embeddings`. Changes none of its arguments but the generator.

    The configuration's vocabulary size, special ids and fact MLP are set to those of the other arguments.
    Raises `ConfigError` for arguments of another type and for embeddings that do not fit, `NonFiniteError` for
    NaN or infinity in them, `FactsError` if the vocabulary is not that of the facts.
    """
    for name, found, kind in (
        ("vocabulary", vocabulary, Vocabulary), ("config", config, MlpSwapConfig), ("facts", facts, FactSet),
        ("fact_mlp", fact_mlp, FactMLP), ("embeddings", embeddings, Tensor), ("generator", generator, torch.Generator),
    ):  # fmt: skip
        if not isinstance(found, kind):
            raise ConfigError(f"{name} must be a {kind.__name__}: found {type(found).__name__}")
    if embeddings.shape != (len(vocabulary), config.n_embd):
        raise ConfigError(
            f"embeddings must be (V, d) = ({len(vocabulary)}, {config.n_embd}): "
            f"found {tuple(embeddings.shape)}"
        )
    if not embeddings.is_floating_point():
        raise ConfigError(f"embeddings must be floating-point numbers: found {embeddings.dtype}")
    require_finite({"embeddings": embeddings}, "the host cannot be built")
    if (vocabulary.surfaces(KEY), vocabulary.surfaces(VALUE)) != (facts.keys, facts.values):
        raise FactsError("keys and values of the vocabulary are not those of the fact set, in its order")
    config = copy.deepcopy(config)
    config.vocab_size, config.fact_mlp = len(vocabulary), fact_mlp.config.to_dict()
    config.pad_token_id, config.bos_token_id = vocabulary.pad_id, vocabulary.bos_id
    config.eos_token_id = vocabulary.pad_id  # keeps `generate` from taking SSFR's first junk word for padding
    config.check()
    model = MlpSwapForCausalLM(config).to(embeddings.dtype)
    initialise(model, generator)
    with torch.no_grad():
        model.transformer.wte.weight.copy_(embeddings)
        model.lm_head.weight.copy_(embeddings)
    model.fact_mlp.load_state_dict(fact_mlp.state_dict())
    model.fact_mlp.report = fact_mlp.report
    model.facts, model.tokenizer = facts, MlpSwapTokenizer(vocabulary=vocabulary)
    construction = fact_mlp.report.construction if fact_mlp.report else "unknown"
    model.history = ({"event": "built", "by": construction, "facts": facts.fingerprint},)
    return model.eval()


@torch.no_grad()
def initialise(model: MlpSwapForCausalLM, generator: torch.Generator) -> None:
    """Draw attention, router and language expert anew; everything else stays.

    Linear maps are uniform within 1 / sqrt(inputs), as PyTorch has them; U ~ N(0, 1/d) and V ~ N(0, 1/r).
    """
    mixture = model.transformer.h[-1].mixture
    parts: list[nn.Module] = [block.attn for block in model.transformer.h]
    if mixture is not None:
        parts.append(mixture.router)
    for linear in (module for part in parts for module in part.modules() if isinstance(module, nn.Linear)):
        bound = 1 / math.sqrt(linear.in_features)
        for parameter in linear.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    if mixture is not None:
        for factor in (mixture.u, mixture.v):
            factor.weight.normal_(0.0, factor.in_features**-0.5, generator=generator)
