"""The host that is edited: trained for the benchmark where none is given, and what there is to know about it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.config import load_config
from mlpswap.editing import HostAdapter
from mlpswap.editing.evaluation import LanguageCache
from mlpswap.errors import ConfigError
from mlpswap.model.find import load_host
from mlpswap.randomness import generator
from mlpswap.tasks import Task, books_task

SENTENCES = "editors work on sentences: {} is a host of SSFR, which has none"
LANGUAGE_PROMPTS = 2048  # prompts on which the tokens that are no facts are measured


@dataclass
class Base:
    """The host that all editors edit, with what they have in common: its task, its adapter and a sample of its language.

    path: the run folder or saved host that it was read from. `fingerprint` tells when an editor changed the model itself.
    """

    path: Path
    model: Any
    seed: int
    task: Task = field(init=False)
    adapter: HostAdapter = field(init=False)
    language: LanguageCache = field(init=False)
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        self.task = the_task(self.model)
        self.adapter = HostAdapter(self.model)
        self.language = language_cache(self.model, self.task, self.seed)
        self.fingerprint = self._hash()

    def _hash(self) -> str:
        return f"{self.model.state_sha256()} {self.model.known_facts().fingerprint}"

    def was_changed(self) -> bool:
        return self._hash() != self.fingerprint

    def reopen(self) -> None:
        """The model as it was saved, and a new adapter."""
        self.model = load_host(self.path)
        self.adapter = HostAdapter(self.model)


def base_run(config: BenchmarkConfig, folder: Path) -> Path:
    """The folder of the host to edit; trains `base` with this run's seed into `base/` where no model is given."""
    if config.model is not None:
        return Path(config.model)
    from mlpswap.train import train

    base = folder / "base"
    options = base_options(config, f"output_dir={json.dumps(str(base))}")
    return train(options, config_name=config.base, resume=(base / "config.yaml").exists())


def base_options(config: BenchmarkConfig, *overrides: str) -> Any:
    """The configuration of the host that is trained where no model is given."""
    from mlpswap.training.config import TrainConfig

    threads = [] if config.threads is None else [f"threads={config.threads}"]
    return load_config(TrainConfig, config.base, [f"seed={config.seed}", *threads, *overrides])


def task_to_come(config: BenchmarkConfig) -> Task:
    """The task of the host that is to be trained: what can be refused now need not wait for the end of its training."""
    from mlpswap.training.setup import make_task, read_facts

    options = base_options(config)
    if options.task != "books":
        raise ConfigError(SENTENCES.format(f"base = {config.base}"))
    return make_task(options.task, read_facts(options.facts, options.task, options.seed), options.seed)


def the_task(model: Any) -> Task:
    """The books task of a saved host. Raises `ConfigError` for a host that was trained on anything else."""
    if model.vocabulary.bos_id is None:
        raise ConfigError(SENTENCES.format("the model"))
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
