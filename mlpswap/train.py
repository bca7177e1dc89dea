"""Train a host around a fact MLP, swap the MLP, and measure both.

accelerate launch -m mlpswap.train --config configs/books_tiny.yaml output_dir=runs/books
mlpswap train --config books_tiny                                     # the same in one process
"""

import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mlpswap.config import to_plain, to_yaml
from mlpswap.errors import ConfigError
from mlpswap.run_folder import alone, default_folder, run_folder
from mlpswap.runs import finished, require_same_config, write_json, write_text
from mlpswap.training.config import TrainConfig

logger = logging.getLogger(__name__)

# Keys that may differ when a run is resumed: none of them changes what is learnt.
FREE_ON_RESUME = (
    "output_dir", "threads", "wandb.", "report", "evaluation.",
    "training.checkpoint_every", "training.keep_checkpoints", "training.log_every",
)  # fmt: skip


@alone
def train(
    config: TrainConfig, *, config_name: str | None = None, resume: bool = False, overwrite: bool = False
) -> Path:
    """Run the whole of it and return the run folder. Every process of a launch calls this."""
    from mlpswap.training.limits import check_memory, one_sentence

    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, "train")
    check_memory(config)
    with one_sentence():
        _train(config, folder, resume, overwrite)
    return folder


def _train(config: TrainConfig, folder: Path, resume: bool, overwrite: bool) -> None:
    import torch
    from accelerate import Accelerator

    from mlpswap.training import setup
    from mlpswap.training.log import RunLog, wandb_ready

    began = time.perf_counter()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    accelerator = Accelerator(mixed_precision=config.training.mixed_precision)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != accelerator.num_processes:
        raise ConfigError(
            f"{launched} processes were started, but accelerate sees {accelerator.num_processes}, so each would train a run of "
            "its own in the same folder; without GPUs set ACCELERATE_USE_CPU=true"
        )
    main = accelerator.is_main_process
    use_wandb = main and wandb_ready(config.wandb, folder)
    opened = run_folder(folder, resume=resume, overwrite=overwrite, inputs=(config.facts.path,))
    with opened if main else nullcontext():
        accelerator.wait_for_everyone()
        if resume:
            require_same_config(folder, to_plain(config), free=FREE_ON_RESUME)
        if resume and finished(folder, "train"):
            logger.warning("%s is finished; nothing to resume", folder)
            return
        model, task = setup.open_host(config, folder, resume=resume, write=main)
        if main:
            write_text(folder / "config.yaml", to_yaml(config))
    start = found(folder, accelerator, config) if resume else None
    at, wandb_id = (start[1].step, start[1].wandb_id) if start else (0, None)
    log = RunLog(folder, from_step=at) if main else None
    try:
        if log is not None and use_wandb:
            wandb_id = log.start_wandb(config.wandb, folder, to_plain(config), wandb_id)
        outcome = run(config, accelerator, folder, model, task, start, log, wandb_id, began)
    except KeyboardInterrupt:
        if main:
            say_how_to_go_on(folder)
        raise
    finally:
        if log is not None:
            log.close()
    if outcome is not None:
        print_summary(folder, outcome)
    accelerator.wait_for_everyone()
    accelerator.end_training()


def found(folder: Path, accelerator: Any, config: TrainConfig) -> Any:
    """The checkpoint to go on from, None if the run had not come to its first; says so."""
    from mlpswap.training.checkpoint import latest

    checkpoint = latest(folder / "checkpoints")
    if accelerator.is_main_process:
        at = checkpoint[1].step if checkpoint else 0
        logger.warning("resuming %s at step %d of %d", folder, at, config.training.steps)
        if checkpoint and checkpoint[1].processes != accelerator.num_processes:
            logger.warning(
                "the run was started with %d processes and goes on with %d: samples and word noise stay the same, "
                "the off-value shuffle and the order of float sums do not",
                checkpoint[1].processes, accelerator.num_processes,
            )  # fmt: skip
    return checkpoint


def run(
    config: TrainConfig,
    accelerator: Any,
    folder: Path,
    model: Any,
    task: Any,
    start: Any,
    log: Any,
    wandb_id: str | None,
    began: float,
) -> Any:
    """Train, evaluate, save and report. Returns the outcome on the first process and None on the others."""
    from mlpswap.training import setup
    from mlpswap.training.checkpoint import load_checkpoint
    from mlpswap.training.evaluate import evaluate, save_and_show
    from mlpswap.training.loop import Trainer, same_on_all

    at = start[1].step if start else 0
    target = setup.make_swap_target(config, model, "swap target")
    monitor = target if config.training.early_stop is None else setup.make_monitor(config, model)
    model.to(accelerator.device)
    for each in {id(target): target, id(monitor): monitor}.values():
        same_on_all(accelerator, each, accelerator.device)
    trainer = Trainer(config, accelerator, model, task, monitor, log, folder, wandb_id)
    if start:
        load_checkpoint(start[0], model, trainer.optimizer)
    timer = time.perf_counter()
    steps = trainer.run(at)
    seconds = time.perf_counter() - timer
    outcome = evaluate(config, accelerator, model, task, target)
    if log is None:
        return None
    outcome.metrics |= {"steps": steps, "train_seconds": seconds}
    outcome.extra["resumed_at"] = at
    save_and_show(config, folder, model, task, target, outcome)
    content = outcome.to_results(to_plain(config), seconds=time.perf_counter() - began)
    write_json(folder / "results.json", content)
    figures: dict[str, Path] = {}
    if config.report:
        from mlpswap.report import write_report

        figures = write_report(folder)
    log.summarise({name: value for name, value in outcome.metrics.items() if value is not None}, figures)
    return outcome


def say_how_to_go_on(folder: Path) -> None:
    from mlpswap.training.checkpoint import latest

    checkpoint = latest(folder / "checkpoints")
    step = checkpoint[1].step if checkpoint else 0
    path = shlex.quote(str(folder))
    logger.warning("the run goes on from step %d with: mlpswap train --resume output_dir=%s", step, path)


def print_summary(folder: Path, outcome: Any) -> None:
    """The headline figures, for whoever stands at the terminal, with what guessing would score."""
    metrics, majority = outcome.metrics, outcome.extra["facts"]["majority_share"]
    for name in (
        "value_accuracy", "fact_adaptive_accuracy", "capacity_swap", "heldout_accuracy",
        "nonfact_ce_ratio", "attention_mass", "steps", "train_seconds",
    ):  # fmt: skip
        if metrics.get(name) is not None:
            beside = f"  (the commonest value alone: {majority:.4g})" if name == "value_accuracy" else ""
            print(f"{name:28} {metrics[name]:.4g}{beside}")
    print(f"run folder: {folder}")
    if (folder / "report.html").exists():
        print(f"report: {folder / 'report.html'}")


def main(argv: Sequence[str] | None = None) -> int:
    from mlpswap.cli import main as cli

    return cli(["train", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
