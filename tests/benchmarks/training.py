"""Training at 16,384 facts: the candidate head on kept labels, against a full head on every padded position.

    python -m tests.benchmarks.training [facts]

Both see the same batches, gradients and optimiser; the naive one is what a stock causal language model does: every position
goes through mixture and head, padding included, and the cross-entropy ignores what has no label.
"""

import sys
import time

import torch
from torch.nn import functional as F

from mlpswap.constructions.base import FactMLP, FactMLPConfig
from mlpswap.facts import FactSet
from mlpswap.model import MlpSwapConfig, build_host
from mlpswap.randomness import generator
from mlpswap.tasks import books_task
from mlpswap.tasks.base import IGNORE
from mlpswap.training.config import OptimiserOptions
from mlpswap.training.loop import make_optimizer
from mlpswap.training.objective import Step, StepSource, TrainingObjective

ROUNDS, STEPS = 5, 4


def naive_loss(model, step: Step) -> torch.Tensor:
    batch = step.batch
    a = model.attend(batch.input_ids, batch.attention_mask).a  # (B, T, d)
    logits = model.head(model.mix(a, model.norm_input(a)).y)  # (B, T, V)
    labels = batch.labels.masked_fill(~step.kept, IGNORE)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)


def main(facts: int = 16_384) -> float:
    d, h = 256, 2816
    task = books_task(FactSet.synthetic(facts, generator(0, "facts")))
    rows = F.normalize(torch.randn(len(task.vocabulary), d, generator=generator(0, "rows")), dim=1)
    mlp = FactMLP(FactMLPConfig.of_kind("bilinear", d, h))
    for parameter in mlp.parameters():
        parameter.normal_(0, d**-0.5, generator=generator(0, "mlp"))
    model = build_host(
        task.vocabulary, MlpSwapConfig(n_embd=d), task.facts, mlp, rows, generator=generator(0, "host")
    )
    options = OptimiserOptions(negatives=1536)
    full = OptimiserOptions(p_nonvalue=1.0, shuffle_offvalue=False)
    optimizer = make_optimizer(model, options)
    ours, plain = StepSource(task, options, 0), StepSource(task, full, 0)
    objective = TrainingObjective(model, task, options)
    losses = {
        "ours": lambda number: objective(ours.step(number))[0],
        "naive": lambda number: naive_loss(model, plain.step(number)),
    }
    speeds: dict[str, list[float]] = {name: [] for name in losses}
    for round_number in range(ROUNDS + 1):
        for name, loss in losses.items():
            numbers = range(round_number * STEPS, (round_number + 1) * STEPS)
            tokens = sum(int(plain.step(number).batch.attention_mask.sum()) for number in numbers)
            began = time.perf_counter()
            for number in numbers:
                loss(number).backward()
                optimizer.step()
                optimizer.zero_grad()
            if round_number:  # the first round warms up
                speeds[name].append(tokens / (time.perf_counter() - began))
    medians = {name: sorted(values)[ROUNDS // 2] for name, values in speeds.items()}
    ratio = medians["ours"] / medians["naive"]
    for name, value in medians.items():
        print(f"{name:6} {value:9.0f} input tokens/s  (median of {ROUNDS} rounds of {STEPS} steps)")
    print(f"ratio  {ratio:9.1f}")
    return ratio


if __name__ == "__main__":
    torch.set_num_threads(1)  # two threads beside other load wait for each other, and distort the ratio
    main(*map(int, sys.argv[1:]))
