"""The host that is edited: trained for the benchmark where none is given, and what there is to know about it."""

import json
from pathlib import Path
from typing import Any

import torch

from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.config import load_config
from mlpswap.editing.evaluation import LanguageCache
from mlpswap.errors import ConfigError
from mlpswap.randomness import generator
from mlpswap.tasks import Task, books_task

LANGUAGE_PROMPTS = 2048  # prompts on which the tokens that are no facts are measured


def base_run(config: BenchmarkConfig, folder: Path) -> Path:
    """The folder of the host to edit; trains `base` with this run's seed into `base/` where no model is given."""
    if config.model is not None:
        return Path(config.model)
    from mlpswap.train import train
    from mlpswap.training.config import TrainConfig

    base = folder / "base"
    overrides = [f"seed={config.seed}", f"output_dir={json.dumps(str(base))}"]
    if config.threads is not None:
        overrides.append(f"threads={config.threads}")
    options = load_config(TrainConfig, config.base, overrides)
    return train(options, config_name=config.base, resume=(base / "config.yaml").exists())


def the_task(model: Any) -> Task:
    """The books task of a saved host. Raises `ConfigError` for a host that was trained on anything else."""
    if model.vocabulary.bos_id is None:
        raise ConfigError("the benchmark edits sentences: the model is a host of SSFR, which has none")
    task = books_task(model.facts)
    if task.vocabulary.entries != model.vocabulary.entries:
        raise ConfigError("the model's vocabulary is not that of the packaged templates")
    return task


def language_cache(model: Any, task: Task, seed: int) -> LanguageCache:
    """A sample of prompts on which the cross-entropy of the other tokens is compared."""
    draw = generator(seed, "language prompts")
    samples = torch.randperm(task.population, generator=draw)[:LANGUAGE_PROMPTS]
    fact, template = task.pairs(samples)
    batch = task.batch(fact, template, targets=task.target_ids(task.facts))
    return LanguageCache.of(model, batch, task.key_ids)


def regime(model: Any) -> dict[str, Any]:
    """How tight the base is: with h at or above the number of facts, one linear solve edits any of them."""
    shape, facts = model.fact_mlp.config, len(model.facts)
    return {"facts": facts, "d": shape.d, "h": shape.h, "kind": shape.kind, "loose": shape.h >= facts}


def read_base(base: Path) -> dict[str, Any]:
    """Results and curves of the base's own run, for the report; empty for a host that came without its run."""
    results, events = base / "results.json", base / "metrics.jsonl"
    return {
        "base": json.loads(results.read_text(encoding="utf-8")) if results.is_file() else None,
        "base_metrics": [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
        if events.is_file()
        else [],
    }
