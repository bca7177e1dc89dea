"""Where the MLPs of a Hugging Face causal LM are: by the type and shape of its modules, not by the model's name."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mlpswap.errors import ConfigError

ATTENTION = "att"  # in the path of every projection that belongs to attention


@dataclass(frozen=True, eq=False)
class Site:
    """One layer: the block, and its MLP's down-projection with its name as in `get_submodule`.

    `nn.Linear` keeps its weight as (outputs, inputs), GPT-2's `Conv1D` as (inputs, outputs); with d = h both
    fit, so the type decides.
    """

    block: nn.Module
    down: nn.Module
    name: str

    @property
    def weight(self) -> nn.Parameter:
        """In the module's own layout."""
        return self.down.get_parameter("weight")

    @property
    def bias(self) -> nn.Parameter | None:
        return getattr(self.down, "bias", None)

    def oriented(self, tensor: Float[Tensor, "a b"]) -> Float[Tensor, "b a"] | Float[Tensor, "a b"]:
        """From the module's layout to (d, h), and back."""
        return tensor.T if isinstance(self.down, Conv1D) else tensor


def require_a_head(model: nn.Module) -> None:
    """Raise `ConfigError` for a model that predicts no next token from `input_ids` alone."""
    name = type(model).__name__
    if not hasattr(model, "config") or not hasattr(model, "get_output_embeddings"):  # a wrapper has them, too
        raise ConfigError(f"expected a causal language model of transformers, found {name}")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ConfigError(f"{name} has an encoder and a decoder: expected a causal language model")
    if model.get_output_embeddings() is None:  # type: ignore[operator]
        raise ConfigError(f"{name} has no head that predicts tokens: load it with AutoModelForCausalLM")


def width_of(model: nn.Module) -> int:
    """d, from the configuration: `hidden_size` or `n_embd`."""
    config = model.config.get_text_config()  # type: ignore[union-attr,operator]
    for name in ("hidden_size", "n_embd"):
        if isinstance(found := getattr(config, name, None), int):
            return found
    raise ConfigError(f"{type(config).__name__} has neither hidden_size nor n_embd")


def find_sites(model: nn.Module, *, blocks: str | None = None, down: str | None = None) -> list[Site]:
    """The layers, in order.

    `blocks` names the list of blocks (such as "transformer.h") and `down` the down-projection within a block
    ("mlp.c_proj"), for a model in which they cannot be told by type and shape. Raises `ConfigError` with the
    candidates.
    """
    d, count = width_of(model), model.config.get_text_config().num_hidden_layers  # type: ignore
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count > 0
    }
    if blocks is None:
        stacks, lists = lists, {name: each for name, each in lists.items() if _projections(each[0], d)}
        if stacks and not lists:
            raise ConfigError(
                f"no MLP of {type(model).__name__} ends in an nn.Linear or Conv1D with {d} outputs and floating-point weights: "
                "mixtures of experts and quantised weights are not supported"
            )
        if len(lists) != 1:
            raise ConfigError(
                f"which modules are the {count} blocks of {type(model).__name__}? "
                f"Name them in blocks=; candidates: {', '.join(lists) or 'none'}"
            )
        blocks = next(iter(lists))
    if blocks not in lists:
        raise ConfigError(f"blocks='{blocks}' is no list of {count} blocks of {type(model).__name__}")
    sites = []
    for index, block in enumerate(lists[blocks]):
        path = _down_projection(block, d) if down is None else down
        module = dict(block.named_modules()).get(path)
        if not _projects_to(module, d):
            raise ConfigError(
                f"{blocks}.{index}.{path} is no down-projection, an nn.Linear or Conv1D with {d} outputs and "
                f"floating-point weights; candidates: {', '.join(_projections(block, d)) or 'none'}"
            )
        assert module is not None
        sites.append(Site(block, module, f"{blocks}.{index}.{path}"))
    return sites


def _projects_to(module: nn.Module | None, d: int) -> bool:
    if not isinstance(module, nn.Linear | Conv1D) or not torch.is_floating_point(module.weight):
        return False
    return module.weight.shape[1 if isinstance(module, Conv1D) else 0] == d


def _projections(block: nn.Module, d: int) -> list[str]:
    """Paths of the block's projections to the residual stream that are not attention's."""
    return [
        path
        for path, module in block.named_modules()
        if _projects_to(module, d) and ATTENTION not in path.lower()
    ]


def _down_projection(block: nn.Module, d: int) -> str:
    """The last of the MLP's projections to the residual stream (with d = h, those upward have its shape too)."""
    found = _projections(block, d)
    parents = {path.rpartition(".")[0] for path in found}
    if len(parents) != 1:
        raise ConfigError(
            f"which projection leaves the MLP of {type(block).__name__}? Name it in down=; "
            f"candidates: {', '.join(found) or 'none'}"
        )
    return found[-1]
