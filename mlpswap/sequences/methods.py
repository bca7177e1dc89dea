"""The methods by name. Each is imported when it is used."""

import difflib
from importlib import import_module

from mlpswap.errors import RegistryError
from mlpswap.sequences.base import Method

METHODS = {
    "hand_coded": "mlpswap.sequences.hand_coded:HandCoded",
    "hybrid": "mlpswap.sequences.hybrid:Hybrid",
    "pushed": "mlpswap.sequences.pushed:Pushed",
    "random_embedding": "mlpswap.sequences.random_embedding:RandomEmbedding",
    "trained": "mlpswap.sequences.trained:Trained",
    "exact": "mlpswap.sequences.exact:Exact",
    "gated": "mlpswap.sequences.gated:Gated",
    "selector_groups": "mlpswap.sequences.selector_groups:SelectorGroups",
    "token_gates": "mlpswap.sequences.token_gates:TokenGates",
    "permuted_knots": "mlpswap.sequences.permuted_knots:PermutedKnots",
}


def get_method(name: str) -> Method:
    """An instance of the method called `name`. Raises `RegistryError` with near names."""
    if name not in METHODS:
        near = difflib.get_close_matches(str(name), METHODS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise RegistryError(f"no method '{name}': there are {', '.join(METHODS)}{hint}")
    module, _, cls = METHODS[name].partition(":")
    return getattr(import_module(module), cls)()
