"""`mlpswap validate`: check a configuration file against the verb that it is for."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from mlpswap.benchmark.config import BenchmarkConfig, ContestConfig, SequentialConfig
from mlpswap.benchmark.entries import contenders, settings_of
from mlpswap.commands.config import BuildConfig, EditConfig, StoresConfig, SwapConfig, ValidateConfig
from mlpswap.config import build_options, find_config, load_config, load_yaml
from mlpswap.cost.config import CostConfig
from mlpswap.errors import naming
from mlpswap.registry import CONSTRUCTIONS, get
from mlpswap.sequences.board.config import SequencesConfig
from mlpswap.training.config import TrainConfig, construction_and_options

# A file belongs to the verb with which it shares most keys, the first of them on a tie.
SCHEMAS: dict[str, type] = {
    "train": TrainConfig,
    "sequential": SequentialConfig,
    "benchmark": BenchmarkConfig,
    "stores": StoresConfig,
    "cost": CostConfig,
    "sequences": SequencesConfig,
    "swap": SwapConfig,
    "edit": EditConfig,
    "build": BuildConfig,
}


def validate(config: ValidateConfig, **_: Any) -> None:
    path = find_config(str(config.file))
    kind, loaded = check(path)
    print(f"{path}: a valid {kind} configuration")


def check(path: Path) -> tuple[str, Any]:
    """(verb, configuration) of a file; the options of every construction, editor, store and method are checked too.

    Raises `ConfigError` with the file.
    """
    keys = set(load_yaml(path))
    verb = max(SCHEMAS, key=lambda name: len(keys & {field.name for field in fields(SCHEMAS[name])}))
    with naming(str(path)):
        config: Any = load_config(SCHEMAS[verb], path)
        check_options(config)
    return verb, config


def check_options(config: Any) -> None:
    """What a schema leaves open, since it depends on names."""
    match config:
        case TrainConfig():
            for mlp in [config.mlp, *config.swap.constructions]:
                check_construction(*construction_and_options(mlp))
        case ContestConfig():
            from mlpswap.benchmark.base import base_options

            contenders(config.editors)
            if config.model is None:
                base = base_options(config)
                with naming(f"base = {config.base}"):
                    check_options(base)
        case EditConfig():
            settings_of(config.editor)
        case SwapConfig():
            if config.construction is not None:
                check_construction(config.construction, config.options)
        case BuildConfig():
            check_construction(*construction_and_options(config.mlp))
        case CostConfig():
            from mlpswap.cost.run import check_options as check_cost

            check_cost(config)
        case SequencesConfig():
            from mlpswap.sequences.board.run import check_methods

            check_methods(config)  # none in an ablation
        case StoresConfig():
            from mlpswap.stores import make_stores

            make_stores(config.stores)


def check_construction(name: str, options: dict[str, Any]) -> None:
    build_options(get(CONSTRUCTIONS, name).Config, options, f"construction {name}")
