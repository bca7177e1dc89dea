"""The methods by name. Each is imported when it is used."""

import difflib
from importlib import import_module

from mlpswap.errors import RegistryError
from mlpswap.sequences.base import Method

METHODS = {
    "hand_coded": "mlpswap.sequences.methods.hand_coded:HandCoded",
    "hybrid": "mlpswap.sequences.methods.hybrid:Hybrid",
    "pushed": "mlpswap.sequences.methods.pushed:Pushed",
    "random_embedding": "mlpswap.sequences.methods.random_embedding:RandomEmbedding",
    "trained": "mlpswap.sequences.methods.trained:Trained",
    "exact": "mlpswap.sequences.methods.exact:Exact",
    "gated": "mlpswap.sequences.methods.gated:Gated",
    "selector_groups": "mlpswap.sequences.methods.selector_groups:SelectorGroups",
    "token_gates": "mlpswap.sequences.methods.token_gates:TokenGates",
    "permuted_knots": "mlpswap.sequences.methods.permuted_knots:PermutedKnots",
}


def get_method(name: str) -> Method:
    """An instance of the method called `name`. Raises `RegistryError` with near names."""
    if name not in METHODS:
        near = difflib.get_close_matches(str(name), METHODS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise RegistryError(f"no method '{name}': there are {', '.join(METHODS)}{hint}")
    module, _, cls = METHODS[name].partition(":")
    return getattr(import_module(module), cls)()
