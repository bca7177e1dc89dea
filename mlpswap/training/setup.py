"""From a configuration to everything a run needs: facts, task, fact MLPs, host."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mlpswap import embeddings
from mlpswap.constructions import build_fact_mlp
from mlpswap.constructions.base import BuildReport, FactMLP
from mlpswap.errors import CheckpointError, InfeasibleConstructionError
from mlpswap.facts import FactSet
from mlpswap.model import MlpSwapConfig, MlpSwapForCausalLM, build_for_host, build_host
from mlpswap.model.swap import with_defaults
from mlpswap.randomness import generator
from mlpswap.registry import labels_of
from mlpswap.runs import read_json, write_json
from mlpswap.tasks import Task, books_task, ssfr_task
from mlpswap.training.config import FactsOptions, TrainConfig, construction_and_options

logger = logging.getLogger(__name__)

MIN_CAPACITY = 0.995  # specification, section 8 item 14: the host cannot do better than its fact MLP


@dataclass(frozen=True)
class SwapTarget:
    """A fact set to swap to, and one fact MLP for each of the constructions asked for."""

    facts: FactSet
    mlps: dict[str, FactMLP]


def read_facts(options: FactsOptions, task: str, seed: int) -> FactSet:
    """The facts of a run: from a CSV file for books, drawn for SSFR."""
    if task == "ssfr":
        assert options.count is not None  # checked by the configuration
        return FactSet.synthetic(options.count, generator(seed, "facts"))
    return FactSet.from_csv(**options.reading())


def make_task(name: str, facts: FactSet, seed: int) -> Task:
    return ssfr_task(facts, seed) if name == "ssfr" else books_task(facts)


def open_host(
    config: TrainConfig, folder: Path, *, resume: bool, write: bool
) -> tuple[MlpSwapForCausalLM, Task]:
    """The untrained host of a run, with its task; the one that the run began with if it is resumed.

    The host as it was before the first step is kept in `checkpoints/start`, so that a resumed run neither reads the fact
    file again nor builds another fact MLP.
    """
    start = folder / "checkpoints" / "start"
    report = folder / "checkpoints" / "fact_mlp.json"
    if resume and start.is_dir() and report.exists():
        model = MlpSwapForCausalLM.from_pretrained(start)
        model.fact_mlp.report = _read_report(report)
        return model, make_task(config.task, model.known_facts(), config.seed)
    facts = read_facts(config.facts, config.task, config.seed)
    task = make_task(config.task, facts, config.seed)
    model = make_host(config, task)
    if write:
        assert model.fact_mlp.report is not None
        model.save_pretrained(start)
        write_json(report, model.fact_mlp.report.to_dict())
    return model, task


def _read_report(path: Path) -> BuildReport:
    content = read_json(path, construction=str, facts=int, accuracy=float | int, parameters=int, wrong=list)
    try:
        return BuildReport.from_dict(content)
    except TypeError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def make_host(config: TrainConfig, task: Task) -> MlpSwapForCausalLM:
    """Embeddings, the fact MLP on the task's facts, and the host around it, before training.

    Raises `InfeasibleConstructionError` if the MLP stores too little and `allow_partial` is off.
    """
    options, vocabulary = config.host, task.vocabulary
    kind = options.embeddings or ("spherical" if task.language else "gaussian")
    draw = {"spherical": embeddings.spherical, "gaussian": embeddings.gaussian}[kind]
    table = draw(len(vocabulary), options.n_embd, generator=generator(config.seed, "embeddings")).float()
    fact_mlp = _first_mlp(config, task, table)
    check_capacity(fact_mlp, config.allow_partial)
    mean_norm = float(table[torch.as_tensor(vocabulary.value_ids)].norm(dim=1).mean())
    scale = options.logit_scale or (16.0 if task.language else math.sqrt(options.n_embd) / mean_norm)
    train_scale = options.train_logit_scale
    host_config = MlpSwapConfig(
        vocab_size=len(vocabulary),
        n_embd=options.n_embd,
        n_layer=options.n_layer,
        n_head=options.n_head,
        n_positions=int(task.table.input_ids.shape[1]) + 32,
        rope_theta=options.rope_theta,
        qk=options.qk,
        value_output=options.value_output,
        residual=options.residual,
        norm=options.norm,
        mixture=task.language if options.mixture is None else options.mixture,
        language_rank=options.language_rank,
        router_hidden=options.router_hidden,
        logit_scale=scale,
        train_logit_scale=task.language if train_scale is None else train_scale,
        fact_mlp=fact_mlp.config.to_dict(),
    )
    return build_host(
        vocabulary, host_config, task.facts, fact_mlp, table, generator=generator(config.seed, "host")
    )


def _first_mlp(config: TrainConfig, task: Task, table: Tensor) -> FactMLP:
    """The fact MLP on unit rows of the embedding table, against the rest of the vocabulary."""
    rows = torch.nn.functional.normalize(table.double(), dim=1)
    value_ids = torch.as_tensor(task.vocabulary.value_ids)
    others = torch.ones(len(rows), dtype=torch.bool)
    others[value_ids] = False
    name, options = construction_and_options(config.mlp)
    chosen = with_defaults(name, options, {"match_output_norm": True})
    logger.info("building the fact MLP by %s for %d facts", name, len(task.facts))
    return build_fact_mlp(
        rows[task.key_ids],
        rows[value_ids],
        task.facts.targets(),
        name,
        competitors=rows[others],
        generator=generator(config.seed, "fact mlp"),
        **chosen,
    )


def make_swap_target(config: TrainConfig, model: MlpSwapForCausalLM, stream: str) -> SwapTarget:
    """Fact MLPs for the same facts with their values permuted, drawn from the named stream."""
    facts = model.known_facts().permute(generator(config.seed, stream))
    mlps: dict[str, FactMLP] = {}
    wanted = [construction_and_options(mlp) for mlp in config.swap.constructions or [config.mlp]]
    labels = labels_of([name for name, _ in wanted])
    for number, (label, (name, options)) in enumerate(zip(labels, wanted, strict=True)):
        logger.info("building the fact MLP to swap in, by %s", name)
        mlps[label] = build_for_host(
            model, facts, name, options, generator=generator(config.seed, stream, "mlp", number)
        )
    return SwapTarget(facts, mlps)


def make_monitor(config: TrainConfig, model: MlpSwapForCausalLM) -> SwapTarget:
    """The third fact set, on which training may stop since it is never reported."""
    facts = model.known_facts().permute(generator(config.seed, "third facts"))
    name, options = construction_and_options(config.mlp)
    mlp = build_for_host(model, facts, name, options, generator=generator(config.seed, "third mlp"))
    return SwapTarget(facts, {name: mlp})


def check_capacity(fact_mlp: FactMLP, allow_partial: bool) -> None:
    report = fact_mlp.report
    assert report is not None
    logger.info(
        "fact MLP by %s: %d parameters store %.2f %% of %d facts over the values, smallest margin %.3g, %.1f s",
        report.construction, report.parameters, 100 * report.accuracy, report.facts, report.margin, report.seconds,
    )  # fmt: skip
    if report.capacity < MIN_CAPACITY and not allow_partial:
        raise InfeasibleConstructionError(
            f"the fact MLP by '{report.construction}' with h = {fact_mlp.config.h} stores {report.capacity:.4f} of "
            f"{report.facts} facts against the whole vocabulary; a host needs {MIN_CAPACITY}: raise h, or pass "
            "allow_partial=true"
        )
