"""Train a host around a fact MLP, swap the MLP, and measure both.

accelerate launch -m mlpswap.train --config configs/books_tiny.yaml output_dir=runs/books
mlpswap train --config books_tiny                                     # the same in one process
"""

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlpswap.config import to_plain, to_yaml
from mlpswap.errors import CheckpointError
from mlpswap.training.config import TrainConfig

logger = logging.getLogger(__name__)

# Keys that may differ when a run is resumed: none of them changes what is learnt.
FREE_ON_RESUME = (
    "output_dir", "threads", "wandb.", "report", "evaluation.",
    "training.checkpoint_every", "training.keep_checkpoints", "training.log_every",
)  # fmt: skip


def train(
    config: TrainConfig, *, config_name: str | None = None, resume: bool = False, overwrite: bool = False
) -> Path:
    """Run the whole of it and return the run folder. Every process of a launch calls this."""
    import torch
    from accelerate import Accelerator

    from mlpswap.runs import open_run_folder, write_json, write_text
    from mlpswap.training import setup
    from mlpswap.training.checkpoint import latest, load_checkpoint
    from mlpswap.training.evaluate import evaluate, save_and_show
    from mlpswap.training.log import RunLog
    from mlpswap.training.loop import Trainer, same_on_all

    began = time.perf_counter()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    accelerator = Accelerator(mixed_precision=config.training.mixed_precision)
    main = accelerator.is_main_process
    folder = Path(config.output_dir) if config.output_dir else setup.default_output_dir(config_name)
    if main:
        open_run_folder(folder, resume=resume, overwrite=overwrite)
        if resume and (folder / "results.json").exists():
            logger.warning("%s is finished; nothing to resume", folder)
            return folder
        if resume and (folder / "config.yaml").exists():
            check_same_config(folder / "config.yaml", config)
        write_text(folder / "config.yaml", to_yaml(config))
    accelerator.wait_for_everyone()

    start = folder / "checkpoints" / "start"
    found = latest(folder / "checkpoints") if resume else None
    if resume and start.is_dir():
        from mlpswap.model import MlpSwapForCausalLM

        model = MlpSwapForCausalLM.from_pretrained(start)
        task = setup.make_task(config.task, model.facts, config.seed)
    else:
        facts = setup.read_facts(config.facts, config.task, config.seed)
        task = setup.make_task(config.task, facts, config.seed)
        model = setup.make_host(config, task)
        if main:
            model.save_pretrained(start)
    target = setup.make_swap_target(config, model, "swap target")
    monitor = target if config.training.early_stop is None else setup.make_monitor(config, model)
    model.to(accelerator.device)
    for each in {id(target): target, id(monitor): monitor}.values():
        same_on_all(accelerator, each, accelerator.device)

    at, wandb_id = (found[1].step, found[1].wandb_id) if found else (0, None)
    if resume and main:
        logger.warning("resuming %s at step %d of %d", folder, at, config.training.steps)
        if found and found[1].processes != accelerator.num_processes:
            logger.warning(
                "the run was started with %d processes and goes on with %d: samples and word noise stay the same, "
                "the off-value shuffle and the order of float sums do not",
                found[1].processes, accelerator.num_processes,
            )  # fmt: skip
    log = RunLog(folder, from_step=at) if main else None
    if log is not None:
        wandb_id = log.start_wandb(config.wandb, folder, to_plain(config), wandb_id)
    trainer = Trainer(config, accelerator, model, task, monitor, log, folder, wandb_id)
    if found:
        load_checkpoint(found[0], model, trainer.optimizer)
    timer = time.perf_counter()
    steps = trainer.run(at)
    seconds = time.perf_counter() - timer
    outcome = evaluate(config, accelerator, model, task, target)
    if main:
        outcome.metrics |= {"steps": steps, "train_seconds": seconds}
        outcome.extra["resumed_at"] = at
        save_and_show(config, folder, model, task, target, outcome)
        write_json(
            folder / "results.json",
            outcome.to_results(to_plain(config), seconds=time.perf_counter() - began),
        )
        figures: dict[str, Path] = {}
        if config.report:
            from mlpswap.report import write_report

            figures = write_report(folder)
        assert log is not None
        log.finish({k: v for k, v in outcome.metrics.items() if v is not None}, figures)
        print_summary(folder, outcome.metrics)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return folder


def check_same_config(path: Path, config: TrainConfig) -> None:
    """Refuse to resume a run under other settings. Raises `CheckpointError` naming the keys."""
    import yaml

    old = dict(_flat(yaml.safe_load(path.read_text(encoding="utf-8"))))
    new = dict(_flat(to_plain(config)))
    changed = [
        f"{key} (was {old.get(key)}, now {new.get(key)})"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not key.startswith(FREE_ON_RESUME)
    ]
    if changed:
        raise CheckpointError(
            f"{path}: the run cannot be resumed under other settings: {', '.join(changed)}; use another output_dir"
        )


def _flat(tree: Any, prefix: str = ""):
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _flat(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1], tree


def print_summary(folder: Path, metrics: dict[str, Any]) -> None:
    """The headline figures, for whoever stands at the terminal."""
    for name in (
        "value_accuracy", "fact_adaptive_accuracy", "capacity_swap", "heldout_accuracy",
        "nonfact_ce_ratio", "attention_mass", "steps", "train_seconds",
    ):  # fmt: skip
        if metrics.get(name) is not None:
            print(f"{name:28} {metrics[name]:.4g}")
    print(f"run folder: {folder}")


def main(argv: Sequence[str] | None = None) -> int:
    from mlpswap.cli import main as cli

    return cli(["train", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
