"""The figures at the end of a run, and the proof from disk: reload what was saved, ask it, swap, ask again."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mlpswap.errors import CheckpointError
from mlpswap.metrics import PairScores, summarise
from mlpswap.model import MlpSwapForCausalLM, Patch
from mlpswap.randomness import generator
from mlpswap.runs import results
from mlpswap.tasks import Task, TemplateTable
from mlpswap.tasks.books import TRAINED
from mlpswap.training.config import TrainConfig
from mlpswap.training.loop import score_everywhere
from mlpswap.training.setup import SwapTarget

logger = logging.getLogger(__name__)

SHOWN = 10  # facts in the before/after table


@dataclass
class Outcome:
    """What a training run has to say: `metrics` by name, a row for each construction swapped in, and the rest."""

    metrics: dict[str, Any]
    rows: list[dict[str, Any]]
    extra: dict[str, Any] = field(default_factory=dict)

    def to_results(self, config: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        return results("train", config, self.metrics, self.rows, seconds, **self.extra)


def sample(task: Task, table: TemplateTable, pairs: int, seed: int, stream: str) -> torch.Tensor:
    """Sample numbers to measure on: `pairs` of them without repetition, or all."""
    population = len(task.facts) * len(table)
    if pairs == 0 or pairs >= population:
        return torch.arange(population)
    return torch.randperm(population, generator=generator(seed, "evaluation", stream))[:pairs].sort().values


def evaluate(
    config: TrainConfig,
    accelerator: Accelerator,
    model: MlpSwapForCausalLM,
    task: Task,
    target: SwapTarget,
) -> Outcome:
    """Measure the host with its own fact MLP and with each swapped-in one, on the same prompts."""
    model.eval()
    mlps = {"trained": model.fact_mlp, **target.mlps}
    targets = {"trained": task.target_ids(task.facts)} | dict.fromkeys(
        target.mlps, task.target_ids(target.facts)
    )
    scores, chosen = {}, {}
    for stream, table in (("trained", task.table), ("held out", task.held_out)):
        if table is not None:
            chosen[stream] = sample(task, table, config.evaluation.pairs, config.seed, stream)
            scores[stream] = score_everywhere(
                accelerator, model, task, chosen[stream], mlps, targets, table=table,
                language=task.language and stream == "trained",
            )  # fmt: skip
    own, held_out = model.fact_mlp.report, scores.get("held out")
    assert own is not None
    rows = []
    for column, (name, mlp) in enumerate(target.mlps.items(), start=1):
        row: dict[str, Any] = dict(summarise(scores["trained"], 0, column))
        assert mlp.report is not None
        row |= {"capacity_trained": own.accuracy, "capacity_swap": mlp.report.accuracy}
        row["usability"] = (
            row["fact_adaptive_accuracy"] / mlp.report.accuracy if mlp.report.accuracy else None
        )
        if held_out is not None:
            accuracy = held_out.correct.double().mean(dim=0)
            row |= {
                "heldout_accuracy": float(accuracy[0]),
                "heldout_accuracy_after_swap": float(accuracy[column]),
            }
        rows.append({"construction": name, "h": mlp.config.h, "parameters": mlp.parameters_count} | row)
    metrics = {key: value for key, value in rows[0].items() if key not in ("construction", "h", "parameters")}
    extra = {
        "fact_mlp": own.to_dict() | {"h": model.fact_mlp.config.h, "kind": model.fact_mlp.config.kind},
        "facts": {
            "count": len(task.facts),
            "values": len(task.facts.values),
            "majority_share": task.facts.majority_share,
            "fingerprint": task.facts.fingerprint,
            "swapped_fingerprint": target.facts.fingerprint,
            "altered": len(task.facts.changed(target.facts)),
        },
        "pairs": {stream: len(samples) for stream, samples in chosen.items()},
        "templates": _by_template(task, chosen["trained"], scores["trained"]),
    }
    return Outcome(metrics, rows, extra)


def _by_template(task: Task, samples: torch.Tensor, scores: PairScores) -> list[dict[str, Any]]:
    """Accuracy of each template before and after the swap: a mean can hide one that fails entirely."""
    _, template = task.pairs(samples)
    rows = []
    for number in range(len(task.table)):
        correct = scores.correct.cpu()[template == number].double()
        if len(correct):
            before, after = correct[:, 0].mean(), correct[:, 1].mean()
            rows.append(
                {
                    "template": number + 1,
                    "text": TRAINED[number] if task.language else None,
                    "prompts": len(correct),
                    "before": float(before),
                    "after": float(after),
                }
            )
    return rows


def save_and_show(
    config: TrainConfig,
    folder: Path,
    model: MlpSwapForCausalLM,
    task: Task,
    target: SwapTarget,
    outcome: Outcome,
) -> None:
    """Save model and patch, load both again, and take the answers of the report from those.

    Raises `CheckpointError` if the model on disk answers otherwise than the one in memory.
    """
    model.to("cpu")
    model.save_pretrained(folder / "model", allow_nonfinite=config.allow_nonfinite)
    mlp = next(iter(target.mlps.values())).to("cpu")
    Patch.between_mlps(model, mlp, editor="swap", facts=target.facts).save(folder / "swap.safetensors")
    saved = MlpSwapForCausalLM.from_pretrained(folder / "model", allow_nonfinite=config.allow_nonfinite)
    patch = Patch.load(folder / "swap.safetensors")

    fact = torch.arange(min(SHOWN, len(task.facts)))
    template = fact % len(task.table)
    targets = task.target_ids(task.facts)
    batch = task.batch(fact, template, targets=targets)

    def answers(host: MlpSwapForCausalLM) -> list[str]:
        best = host.last_scores(batch.input_ids, batch.attention_mask).argmax(dim=1)
        return [task.vocabulary.entries[i][1] for i in best.tolist()]

    before = answers(saved)
    if not _same_weights(saved, model) or before != answers(model):
        raise CheckpointError(f"{folder / 'model'}: the saved model is not the one in memory")
    patch.apply(saved)
    after = answers(saved)
    patch.undo(saved)
    if not _same_weights(saved, model):
        raise CheckpointError(f"{folder / 'swap.safetensors'}: undoing the swap did not restore the model")

    def surfaces(row: int) -> list[str]:
        ids = batch.input_ids[row][batch.attention_mask[row]]
        return [task.vocabulary.entries[i][1] for i in ids.tolist()]

    outcome.extra["answers"] = [
        {
            "prompt": " ".join(word for word in surfaces(i) if word != "<s>"),
            "key": task.facts.keys[i],
            "true": task.facts.value_of(task.facts.keys[i]),
            "before": before[i],
            "wanted_after": target.facts.value_of(task.facts.keys[i]),
            "after": after[i],
        }
        for i in range(len(fact))
    ]
    with torch.no_grad():
        attended = saved.attend(batch.input_ids[:1], batch.attention_mask[:1], return_attention=True)
    real = batch.attention_mask[0]
    outcome.extra["attention"] = {
        "tokens": surfaces(0),
        "weights": attended.probabilities[0].mean(dim=0)[real][:, real].tolist(),
        "key": task.facts.keys[0],
        "answer": before[0],
    }


def _same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Bit for bit. Logits would not do: the same weights at other addresses may differ in the last digit."""
    mine, its = one.state_dict(), other.state_dict()
    return mine.keys() == its.keys() and all(torch.equal(mine[name], its[name]) for name in mine)
