"""The host as transformers knows it. Importing this package registers its classes, now or when needed.

`AutoConfig`, `AutoModelForCausalLM` and `AutoTokenizer` find the model after `import mlpswap`; yet torch and
transformers are imported on first use only, here or by the user. Registering twice does no harm.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlpswap.model.build import build_host
    from mlpswap.model.configuration import MlpSwapConfig
    from mlpswap.model.modeling import MlpSwapForCausalLM
    from mlpswap.model.patch import ModuleChange, Patch
    from mlpswap.model.swap import build_for_host, swap_fact_mlp
    from mlpswap.model.tokenization import MlpSwapTokenizer, Vocabulary

_HOME = {
    "MlpSwapConfig": "configuration",
    "MlpSwapForCausalLM": "modeling",
    "MlpSwapTokenizer": "tokenization",
    "ModuleChange": "patch",
    "Patch": "patch",
    "Vocabulary": "tokenization",
    "build_for_host": "swap",
    "build_host": "build",
    "swap_fact_mlp": "swap",
}
__all__ = [
    "MlpSwapConfig",
    "MlpSwapForCausalLM",
    "MlpSwapTokenizer",
    "ModuleChange",
    "Patch",
    "Vocabulary",
    "build_for_host",
    "build_host",
    "swap_fact_mlp",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"mlpswap.model.{_HOME[name]}"), name)
    raise AttributeError(f"module 'mlpswap.model' has no attribute '{name}'")


def _register_config(auto: Any) -> None:
    from mlpswap.model.configuration import MlpSwapConfig

    auto.AutoConfig.register(MlpSwapConfig.model_type, MlpSwapConfig, exist_ok=True)


def _register_model(auto: Any) -> None:
    from mlpswap.model.configuration import MlpSwapConfig
    from mlpswap.model.modeling import MlpSwapForCausalLM

    auto.AutoModelForCausalLM.register(MlpSwapConfig, MlpSwapForCausalLM, exist_ok=True)


def _register_tokenizer(auto: Any) -> None:
    from mlpswap.model.configuration import MlpSwapConfig
    from mlpswap.model.tokenization import MlpSwapTokenizer

    auto.AutoTokenizer.register(MlpSwapConfig, MlpSwapTokenizer, exist_ok=True)


_WAITING: dict[str, Callable[[Any], None]] = {
    "transformers.models.auto.configuration_auto": _register_config,
    "transformers.models.auto.modeling_auto": _register_model,
    "transformers.models.auto.tokenization_auto": _register_tokenizer,
}


class _RegisterOnImport(MetaPathFinder):
    """Runs our registration right after one of transformers' auto modules is imported."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        register = _WAITING.pop(fullname, None)
        if register is None:
            return None
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: Any) -> None:
            execute(module)
            register(module)

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


for _name in list(_WAITING):
    if _name in sys.modules:
        _WAITING.pop(_name)(sys.modules[_name])
if _WAITING:
    sys.meta_path.insert(0, _RegisterOnImport())
