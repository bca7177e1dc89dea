"""`mlpswap validate`: check a configuration file against the verb that it is for."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from mlpswap.benchmark.config import BenchmarkConfig, ContestConfig, SequentialConfig
from mlpswap.benchmark.entries import contenders, settings_of
from mlpswap.commands.config import BuildConfig, EditConfig, StoresConfig, SwapConfig, ValidateConfig
from mlpswap.config import build_options, find_config, load_config, load_yaml
from mlpswap.cost.config import CostConfig
from mlpswap.errors import ConfigError
from mlpswap.registry import CONSTRUCTIONS, get
from mlpswap.sequences.board.config import SequencesConfig
from mlpswap.training.config import TrainConfig, construction_and_options

# A file belongs to the verb with which it shares most keys, the first of them on a tie.
SCHEMAS: dict[str, type] = {
    "train": TrainConfig,
    "benchmark": BenchmarkConfig,
    "sequential": SequentialConfig,
    "stores": StoresConfig,
    "cost": CostConfig,
    "sequences": SequencesConfig,
    "edit": EditConfig,
    "swap": SwapConfig,
    "build": BuildConfig,
}


def validate(config: ValidateConfig, **_: Any) -> None:
    path = find_config(str(config.file))
    kind, loaded = check(path)
    print(f"{path}: a valid {kind} configuration")


def check(path: Path) -> tuple[str, Any]:
    """(verb, configuration) of a file; the options of every construction, editor, store and method are checked too."""
    keys = set(load_yaml(path))
    verb = max(SCHEMAS, key=lambda name: len(keys & {field.name for field in fields(SCHEMAS[name])}))
    config: Any = load_config(SCHEMAS[verb], path)
    match config:
        case TrainConfig():
            for mlp in [config.mlp, *config.swap.constructions]:
                _check_construction(path, mlp)
        case ContestConfig():
            from mlpswap.benchmark.base import base_options

            contenders(config.editors, f"{path}: ")
            if config.model is None:
                try:
                    base_options(config)
                except ConfigError as error:
                    raise ConfigError(f"{path}: {error}") from error
        case EditConfig():
            settings_of(config.editor, f"{path}: ")
        case BuildConfig():
            _check_construction(path, config.mlp)
        case SwapConfig():
            if config.construction is not None:
                _check_construction(path, config.options | {"construction": config.construction})
        case CostConfig():
            from mlpswap.cost.run import check_options

            check_options(config)
        case SequencesConfig():
            from mlpswap.sequences.board.run import check_methods

            check_methods(config)  # none in an ablation
        case StoresConfig():
            from mlpswap.stores import make_stores

            make_stores(config.stores, f"{path}: ")
    return verb, config


def _check_construction(path: Path, mlp: dict[str, Any]) -> None:
    name, options = construction_and_options(mlp)
    build_options(get(CONSTRUCTIONS, name).Config, options, f"{path}: construction {name}")
