"""The host that is edited: trained for the benchmark where none is given, and what there is to know about it."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mlpswap.benchmark.config import ContestConfig
from mlpswap.config import load_config, to_plain, to_yaml
from mlpswap.editing import HostAdapter
from mlpswap.editing.evaluation import LanguageCache, language_losses
from mlpswap.errors import ConfigError, FactsError, naming
from mlpswap.model.find import load_host
from mlpswap.randomness import generator
from mlpswap.run_folder import default_folder, run_folder
from mlpswap.runs import finished, read_json, read_lines, require_same_config, write_text
from mlpswap.tasks import Task, books_task

logger = logging.getLogger(__name__)

SENTENCES = "editors work on sentences: {} is a host of SSFR, which has none"
LANGUAGE_PROMPTS = 2048  # prompts on which the tokens that are no facts are measured


@dataclass
class Base:
    """The host that all editors edit, with what they have in common: its task, its adapter, a sample of its
    language and the losses there.

    path: the run folder or saved host that it was read from. `fingerprint` tells when an editor changed the model itself.
    """

    path: Path
    model: Any
    seed: int
    task: Task = field(init=False)
    adapter: HostAdapter = field(init=False)
    language: LanguageCache = field(init=False)
    losses: torch.Tensor = field(init=False)
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        self.task = the_task(self.model)
        self.adapter = HostAdapter(self.model)
        self.language = language_cache(self.model, self.task, self.seed)
        self.losses = language_losses(self.model, self.model.fact_mlp, self.language)
        self.fingerprint = self._hash()

    def _hash(self) -> str:
        return f"{self.model.state_sha256()} {self.model.known_facts().fingerprint}"

    def require_unchanged(self) -> None:
        """Raise `ConfigError` if an editor has written to the model, or left a hook on it."""
        hooks = any(module._forward_hooks or module._forward_pre_hooks for module in self.model.modules())
        if hooks or self._hash() != self.fingerprint:
            raise ConfigError("it changed the model itself, where an editor returns a patch")

    def reopen(self) -> None:
        """The model as it was saved, and a new adapter."""
        self.model = load_host(self.path)
        self.adapter = HostAdapter(self.model)


def open_run(
    config: ContestConfig,
    kind: str,
    check: Callable[[Task], Any],
    *,
    config_name: str | None,
    resume: bool,
    overwrite: bool,
) -> tuple[Path, Path, Any] | tuple[Path, None, None]:
    """(run folder, folder of the host, the host), trained now if none is given; no host if the run is finished.

    check: raises for a task that the run cannot have. What can be refused is refused before the folder is touched.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    model = None if config.model is None else load_host(config.model)
    if model is not None or not resume:  # a resumed run has passed, and may have lost its file of facts
        check(task_to_come(config) if model is None else the_task(model))
    if config.model is not None:
        read_base(Path(config.model))  # the report will need it
    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, kind)
    with run_folder(folder, resume=resume, overwrite=overwrite, inputs=(config.model,)):
        if resume:
            require_same_config(folder, to_plain(config), free=("output_dir", "threads", "report"))
        if resume and finished(folder, kind):
            logger.warning("%s is finished; nothing to resume", folder)
            return folder, None, None
        write_text(folder / "config.yaml", to_yaml(config))
        path = base_run(config, folder)
    return folder, path, load_host(path) if model is None else model


def base_run(config: ContestConfig, folder: Path) -> Path:
    """The folder of the host to edit; trains `base` with this run's seed into `base/` where no model is given."""
    if config.model is not None:
        return Path(config.model)
    from mlpswap.train import train

    base = folder / "base"
    options = base_options(config, f"output_dir={json.dumps(str(base))}")
    return train(options, config_name=config.base, resume=(base / "config.yaml").exists())


def base_options(config: ContestConfig, *overrides: str) -> Any:
    """The configuration of the host that is trained where no model is given. Raises `ConfigError` if there is none such."""
    from mlpswap.training.config import TrainConfig

    threads = [] if config.threads is None else [f"threads={config.threads}"]
    with naming(f"base = {config.base}"):
        options = load_config(TrainConfig, config.base, [f"seed={config.seed}", *threads, *overrides])
    if options.task != "books":
        raise ConfigError(SENTENCES.format(f"base = {config.base}"))
    return options


def task_to_come(config: ContestConfig) -> Task:
    """The task of the host that is to be trained: what can be refused now need not wait for the end of its training."""
    from mlpswap.training.setup import make_task, read_facts

    options = base_options(config)
    try:
        facts = read_facts(options.facts, options.task, options.seed)
    except FactsError as error:
        raise ConfigError(
            f"base = {config.base}: {error}; train it on a file of yours, with mlpswap train --config {config.base} "
            "facts.path=FILE.csv, and pass its run folder as model="
        ) from error
    return make_task(options.task, facts, options.seed)


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
    """Results and curves of the run that trained the base, for the report; empty for a host that came without it."""
    path, events = base / "results.json", base / "metrics.jsonl"
    results = read_json(path, kind=str) if path.is_file() else None
    if results is None or results["kind"] != "train":  # such as one that was edited
        return {"base": None, "base_metrics": []}
    return {"base": results, "base_metrics": read_lines(events) if events.is_file() else []}
