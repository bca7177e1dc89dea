"""The training loop: one process or several, CPU or GPU, the same code."""

import logging
import math
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import nn

from mlpswap.errors import NonFiniteError
from mlpswap.metrics import PairScores, score_pairs
from mlpswap.model import MlpSwapForCausalLM
from mlpswap.progress_bar import ProgressBar
from mlpswap.randomness import generator
from mlpswap.tasks import Task, TemplateTable
from mlpswap.training.checkpoint import Progress, save_checkpoint
from mlpswap.training.config import OptimiserOptions, TrainConfig
from mlpswap.training.log import RunLog
from mlpswap.training.objective import StepSource, TrainingObjective
from mlpswap.training.setup import SwapTarget

logger = logging.getLogger(__name__)


def learning_rate(step: int, options: OptimiserOptions) -> float:
    """Linear warm-up, then a cosine to `final_lr` of the peak; `step` counts updates from 0."""
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    span = max(1, options.steps - options.warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (step - options.warmup) / span)))
    return options.lr * (options.final_lr + (1 - options.final_lr) * cosine)


def make_optimizer(model: nn.Module, options: OptimiserOptions) -> torch.optim.AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=options.lr, betas=(0.9, 0.99), weight_decay=options.weight_decay)


def same_on_all(accelerator: Accelerator, target: SwapTarget, device: torch.device) -> None:
    """Give every process the fact MLPs of the first one, on the training device."""
    for mlp in target.mlps.values():
        mlp.to(device)
        if accelerator.num_processes > 1:
            for parameter in mlp.parameters():
                parameter.data.copy_(broadcast(parameter.data))


def score_everywhere(
    accelerator: Accelerator,
    model: MlpSwapForCausalLM,
    task: Task,
    samples: torch.Tensor,
    mlps: dict,
    targets: dict,
    *,
    table: TemplateTable | None = None,
    language: bool,
) -> PairScores:
    """`score_pairs` with its chunks dealt to the processes; every process gets the scores of all rows.

    A chunk is the same whoever scores it, and rows meet by adding zeros, so the result is exact for any number of
    processes.
    """
    mine = list(
        score_pairs(
            model, task, samples, mlps, targets, table=table, language=language,
            rank=accelerator.process_index, world=accelerator.num_processes,
        )
    )  # fmt: skip
    if accelerator.num_processes == 1:
        return PairScores.cat([scores for _, scores in mine])
    n, device = len(samples), model.device
    widths = {"correct": (n, len(mlps)), "nll": (n, len(mlps)), "word_nll": (n, len(mlps))}
    fields = {}
    for name in PairScores.__dataclass_fields__:
        whole = torch.zeros(widths.get(name, (n,)), dtype=torch.float64, device=device)
        for start, scores in mine:
            part = getattr(scores, name)
            whole[start : start + len(part)] = part.double()
        fields[name] = accelerator.reduce(whole, reduction="sum")
    fields["correct"] = fields["correct"] > 0.5
    fields |= {name: fields[name].long() for name in ("tokens", "words")}
    return PairScores(**fields)


class Trainer:
    """Runs the updates from `start` to the end or to the early stop, logging and saving on the way."""

    def __init__(
        self,
        config: TrainConfig,
        accelerator: Accelerator,
        model: MlpSwapForCausalLM,
        task: Task,
        monitor: SwapTarget,
        log: RunLog | None,
        folder: Path,
        wandb_id: str | None,
    ):
        self.config, self.options = config, config.training
        self.accelerator, self.model, self.task = accelerator, model, task
        self.monitor, self.log, self.folder, self.wandb_id = monitor, log, folder, wandb_id
        self.optimizer = make_optimizer(model, self.options)
        world = accelerator.num_processes
        self.source = StepSource(task, self.options, config.seed, rank=accelerator.process_index, world=world)
        objective = TrainingObjective(model, task, self.options, world=world)
        self.objective, self.prepared = accelerator.prepare(objective, self.optimizer)

    def run(self, start: int) -> int:
        """Train and return the number of updates done in all."""
        options = self.options
        bar = ProgressBar(
            total=options.steps, initial=start, disable=not self.accelerator.is_main_process, unit="step",
            desc="training",
        )  # fmt: skip
        began, adaptive = time.perf_counter(), None
        step, stop = start, False
        with bar:
            for step in range(start, options.steps):
                for group in self.optimizer.param_groups:
                    group["lr"] = learning_rate(step, options)
                batch = self.source.step(step).to(self.accelerator.device)
                loss, stats = self.objective(batch)
                self.accelerator.backward(loss)
                if options.clip is not None:
                    self.accelerator.clip_grad_norm_(self.objective.parameters(), options.clip)
                self.prepared.step()
                self.prepared.zero_grad(set_to_none=True)
                done = step + 1
                bar.update()
                if done % options.log_every == 0 or done == options.steps:
                    self._log_step(done, loss, stats, began, adaptive, bar)
                if options.eval_every and done % options.eval_every == 0:
                    adaptive = self._monitor_accuracy()
                    self._event("eval", done, adaptive_accuracy=adaptive)
                stop = (
                    options.early_stop is not None and adaptive is not None and adaptive >= options.early_stop
                )
                if options.checkpoint_every and (
                    done % options.checkpoint_every == 0 or stop or done == options.steps
                ):
                    self._save(done)
                if stop:
                    self._event("early_stop", done, adaptive_accuracy=adaptive)
                    break
        if stop and self.log is not None:
            logger.warning(
                "stopped at step %d of %d: the accuracy after a swap is %.4f, and training.early_stop = %s",
                done, options.steps, adaptive, options.early_stop,
            )  # fmt: skip
        return step + 1 if start < options.steps else start

    def _log_step(self, done: int, loss, stats, began: float, adaptive: float | None, bar) -> None:
        values = torch.stack(
            [loss.detach().float()]
            + [value.float() for value in (stats.attention_mass, stats.gate_value, stats.gate_other)]
        )
        if self.accelerator.num_processes > 1:
            values = self.accelerator.reduce(values, reduction="mean")
        loss_value, mass, gate, other = values.tolist()
        if not math.isfinite(loss_value):
            raise NonFiniteError(
                f"the loss is {loss_value} at step {done}; lower training.lr or use training.mixed_precision=no"
            )
        shown = {"loss": f"{loss_value:.3f}", "attention": f"{mass:.2f}", "gate": f"{gate:.2f}"}
        bar.set_postfix(shown | ({} if adaptive is None else {"adaptive": f"{adaptive:.3f}"}), refresh=False)
        self._event(
            "train", done, loss=loss_value, attention_mass=mass, gate_value=gate, gate_other=other,
            lr=self.optimizer.param_groups[0]["lr"], seconds=time.perf_counter() - began,
        )  # fmt: skip

    def _event(self, kind: str, step: int, **numbers) -> None:
        if self.log is not None:
            self.log.event(kind, step, **numbers)

    def _monitor_accuracy(self) -> float:
        """Accuracy after the swap, on a fixed sample of prompts."""
        draw = generator(self.config.seed, "monitor")
        population = self.task.population
        samples = torch.randperm(population, generator=draw)[: self.options.eval_pairs]
        name, mlp = next(iter(self.monitor.mlps.items()))
        targets = {name: self.task.target_ids(self.monitor.facts)}
        scores = score_everywhere(
            self.accelerator, self.model, self.task, samples, {name: mlp}, targets, language=False
        )
        return float(scores.correct.double().mean())

    def _save(self, done: int) -> None:
        if self.accelerator.is_main_process:
            progress = Progress(done, self.accelerator.num_processes, self.wandb_id)
            save_checkpoint(
                self.folder / "checkpoints", self.model, self.optimizer, progress,
                keep=self.options.keep_checkpoints,
            )  # fmt: skip
        self.accelerator.wait_for_everyone()
