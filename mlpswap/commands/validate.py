"""`mlpswap validate`: check a configuration file against the verb that it is for."""

from dataclasses import fields
from typing import Any

from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.commands.config import ValidateConfig
from mlpswap.config import build_options, find_config, load_config, load_yaml
from mlpswap.registry import CONSTRUCTIONS, EDITORS, get
from mlpswap.training.config import TrainConfig, construction_and_options


def validate(config: ValidateConfig, **_: Any) -> None:
    path = find_config(str(config.file))
    kind, loaded = check(path)
    print(f"{path}: a valid {kind} configuration")


def check(path: Any) -> tuple[str, TrainConfig | BenchmarkConfig]:
    """(verb, configuration) of a file; the options of every construction and editor are checked too."""
    keys = set(load_yaml(path))
    shared = {
        schema: len(keys & {f.name for f in fields(schema)}) for schema in (TrainConfig, BenchmarkConfig)
    }
    if shared[BenchmarkConfig] > shared[TrainConfig]:
        benchmark = load_config(BenchmarkConfig, path)
        for editor in benchmark.editors:
            options = {k: v for k, v in editor.items() if k not in ("name", "grid")}
            build_options(
                get(EDITORS, str(editor["name"])).Config, options, f"{path}: editor {editor['name']}"
            )
        return "benchmark", benchmark
    train = load_config(TrainConfig, path)
    for mlp in [train.mlp, *train.swap.constructions]:
        name, options = construction_and_options(mlp)
        build_options(get(CONSTRUCTIONS, name).Config, options, f"{path}: construction {name}")
    return "train", train
