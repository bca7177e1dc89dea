"""Facts that live in an MLP: build one, train a transformer around it, swap it, and measure the edit.

    from mlpswap import FactSet, MlpSwapForCausalLM, swap_fact_mlp

Symbols, everywhere: F facts, d model width, h hidden width, m code width, V vocabulary, B batch, T length.
One word for one thing: a *fact set* is keys, values and the map between them; a *fact MLP* stores it; a *construction* makes
a fact MLP; the *host* is the transformer around it; a *swap* puts another fact MLP into a host; an *editor* changes facts in
a model and returns a *patch*.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import mlpswap.model  # noqa: F401  light; lets the Auto classes of transformers find the host

if TYPE_CHECKING:
    from mlpswap.constructions import FactMLP, build_fact_mlp
    from mlpswap.errors import MlpSwapError
    from mlpswap.facts import FactSet
    from mlpswap.model import (
        MlpSwapConfig,
        MlpSwapForCausalLM,
        MlpSwapTokenizer,
        Patch,
        swap_fact_mlp,
    )

# Imported on first use, so that `import mlpswap` and every `--help` are quick.
_HOME = {
    "FactSet": "mlpswap.facts",
    "FactMLP": "mlpswap.constructions",
    "build_fact_mlp": "mlpswap.constructions",
    "MlpSwapConfig": "mlpswap.model",
    "MlpSwapForCausalLM": "mlpswap.model",
    "MlpSwapTokenizer": "mlpswap.model",
    "Patch": "mlpswap.model",
    "swap_fact_mlp": "mlpswap.model",
    "MlpSwapError": "mlpswap.errors",
}
__all__ = [
    "FactMLP",
    "FactSet",
    "MlpSwapConfig",
    "MlpSwapError",
    "MlpSwapForCausalLM",
    "MlpSwapTokenizer",
    "Patch",
    "build_fact_mlp",
    "swap_fact_mlp",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("mlpswap")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'mlpswap' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
