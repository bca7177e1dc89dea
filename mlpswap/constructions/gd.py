"""Fact MLPs trained by gradient descent (arXiv 2512.00207, A.1.3), with a recipe of tens to hundreds of steps.

Adam with a cosine schedule, on keys of norm sqrt(d) (folded into G and A afterwards). Two objectives:

    ce:   cross-entropy of sqrt(d) <g(k_i), v_j> over candidate rows j. Up to 2,048 facts the batch holds them all
          and the candidates are all values. Beyond, a minibatch competes among its own values, so that no F x F
          logits arise. Each step adds as many random competitors as it has facts.
    mse:  squared error to the values v_f(i), with B started from ridge least squares.

The two square roots of d and the large rate are what makes it cheap. Noise on the keys in training buys tolerance
to the inexact keys that a transformer's attention hands over.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mlpswap.config import option
from mlpswap.constructions.base import KINDS, FactMLP, FactMLPConfig, finish, stores_all
from mlpswap.constructions.checks import check_inputs
from mlpswap.constructions.noise import disturb, noise_unit
from mlpswap.constructions.readout import ridge_readout
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError

OBJECTIVES = ("ce", "mse")
CHECK_EVERY = 25


@dataclass(frozen=True)
class GradientDescentConfig:
    """Options of the construction `gd`. null means the recipe's own number (gd.recipe)."""

    h: int | None = option(None, "hidden width; null: one that stores everything (gd.default_width)")
    kind: str = option("swiglu", "shape of the MLP: " + " | ".join(KINDS))
    objective: str = option(
        "ce", "ce: cross-entropy against values and competitors | mse: the values themselves"
    )
    noise: float = option(0.0, "noise on the keys in training, in units of sqrt(d / (F ln F))")
    steps: int | None = option(None, "steps at most; ce without noise stops once every fact is stored")
    extra_steps: int = option(0, "ce without noise: steps after that point, for wider margins")
    learning_rate: float | None = option(None, "highest rate of Adam")
    batch_size: int | None = option(None, "facts per step; full batch if there are no more")
    match_output_norm: bool = option(False, "scale B: mean output norm on the keys = mean norm of the values")

    def __post_init__(self) -> None:
        for name, choices in (("kind", tuple(KINDS)), ("objective", OBJECTIVES)):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"gd: unknown {name} '{getattr(self, name)}': expected one of {', '.join(choices)}"
                )
        for name in ("h", "steps", "learning_rate", "batch_size"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"gd: {name} must be positive or null, found {getattr(self, name)}")
        for name in ("noise", "extra_steps"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"gd: {name} must not be negative, found {getattr(self, name)}")


@dataclass(frozen=True)
class Recipe:
    """The numbers of one training run, all decided."""

    steps: int
    learning_rate: float
    batch_size: int
    warmup: int = 0

    def rate(self, step: int) -> float:
        """Linear warm-up times a cosine that ends at zero."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return self.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * step / self.steps))


def recipe(config: GradientDescentConfig, facts: int) -> Recipe:
    """The defaults for this number of facts, overridden by what `config` sets."""
    if config.objective == "mse":
        chosen = Recipe(steps=300, learning_rate=3e-3, batch_size=1024)
    elif facts <= (config.batch_size or 2048):
        chosen = Recipe(steps=600 if config.noise else 400, learning_rate=2e-2, batch_size=2048)
    else:
        # 1e-2 makes 4,096 facts more tolerant of noise in the same steps, but leaves 0.5 % of 16,384 behind.
        rate = 1e-2 if facts <= 8192 else 3e-3
        chosen = Recipe(steps=500, learning_rate=rate, batch_size=2048, warmup=50)
    return Recipe(
        config.steps or chosen.steps,
        config.learning_rate or chosen.learning_rate,
        config.batch_size or chosen.batch_size,
        chosen.warmup,
    )


def default_width(config: GradientDescentConfig, facts: int, rows: int, d: int) -> int:
    """A width with which isotropic embeddings are stored completely against `rows` rows, with some reserve.

    F log2(rows) bits at half a bit per parameter, where 2 can be reached (1.4 with relu), and 32 at least.
    Squared error asks for all d coordinates of every value: 0.75 F d parameters at least. Bilinear features
    have rank d (d + 1) / 2, a bound that no width lifts.
    """
    matrices = 3 if KINDS[config.kind][1] else 2
    width = math.ceil(facts * math.log2(max(rows, 2)) / (0.5 * matrices * d))
    if config.objective == "mse":
        width = max(width, math.ceil(0.75 * facts / matrices))
    return max(width, 32)


class GradientDescent:
    """Trained by gradient descent, every kind of MLP (arXiv 2512.00207, A.1.3; recipe ours). Parameters 3 d h gated,
    2 d h + h else; h about F log2(F) / (6 d) at 2 bits a parameter, three times that by default. Keys and values: any.
    Use it for the fewest parameters, and with noise inside a host.

    Trains in float32 on the device of the keys. Only bilinear MLPs ignore the length of a key; the others are
    built for the lengths given. The mean lengths of keys and values are divided out first, so that units do not
    matter.
    """

    name = "gd"
    Config = GradientDescentConfig

    def build(
        self,
        keys: Float[Tensor, "F d"],
        values: Float[Tensor, "n_v d"],
        mapping: Int[Tensor, " F"],
        config: GradientDescentConfig,
        *,
        competitors: Float[Tensor, "n_c d"] | None = None,
        generator: torch.Generator,
    ) -> FactMLP:
        """See `Construction.build`. In training, values that no key maps to are competitors too."""
        started = time.perf_counter()
        check_inputs(keys, values, mapping, competitors, homogeneous=config.kind == "bilinear")
        facts, d = keys.shape
        rest = values[:0] if competitors is None else competitors
        h = config.h or default_width(config, facts, len(values) + len(rest), d)
        key_scale = math.sqrt(d) / keys.double().norm(dim=1).mean()
        value_scale = 1 / values.double().norm(dim=1).mean()
        x = (keys * key_scale).float()  # norms about sqrt(d)
        table, rest = ((rows * value_scale).float() for rows in (values, rest))  # norms about 1
        mlp = initial(FactMLPConfig.of_kind(config.kind, d, h), generator).to(keys.device)
        with torch.enable_grad():
            details = train(mlp, x, table, mapping.long(), rest, config, generator)
        with torch.no_grad():
            for layer in (mlp.gate, mlp.up):
                if layer is not None:
                    layer.weight *= key_scale
            if config.objective == "mse":
                mlp.down.weight /= value_scale
        return finish(
            self.name, mlp, keys, values, mapping, started=started, norm_matched=config.match_output_norm,
            competitors=competitors, details=details,
        )  # fmt: skip

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        keys = spherical(128, 32, generator)
        mapping = torch.randperm(len(keys), generator=generator)
        return {"keys": keys, "values": keys, "mapping": mapping, "config": GradientDescentConfig()}


def initial(shape: FactMLPConfig, generator: torch.Generator) -> FactMLP:
    """Random weights for keys of norm sqrt(d): N(0, 1/d) for G and A, N(0, 1/h) for B, zero biases."""
    mlp = FactMLP(shape, dtype=torch.float32)
    for layer in (mlp.gate, mlp.up, mlp.down):
        if layer is not None:
            n, m = layer.weight.shape
            layer.weight.copy_(gaussian(n, m, generator) / math.sqrt(m))
    return mlp


def train(
    mlp: FactMLP,
    x: Float[Tensor, "F d"],
    values: Float[Tensor, "n_v d"],
    mapping: Int[Tensor, " F"],
    competitors: Float[Tensor, "n_c d"],
    config: GradientDescentConfig,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Train `mlp` in place, on keys of norm about sqrt(d) and rows of norm about 1; returns steps and loss."""
    facts, d = x.shape
    plan = recipe(config, facts)
    unused = torch.ones(len(values), dtype=torch.bool, device=x.device).index_fill_(0, mapping, False)
    others = torch.cat([values[unused], competitors])  # rows that no fact wants
    noise = config.noise * noise_unit(facts, d)
    may_stop = config.objective == "ce" and not config.noise
    if config.objective == "mse":
        with torch.no_grad():
            mlp.down.weight.copy_(ridge_readout(mlp.hidden(x).double(), values[mapping].double()))
    mlp.requires_grad_(True)
    adam = torch.optim.Adam(mlp.parameters(), fused=True)
    batches = draw_batches(facts, plan.batch_size, generator)
    step, end = 0, plan.steps
    loss = x.new_zeros(())
    while step < end:
        rows = next(batches).to(x.device)
        y = mlp(disturb(x[rows], noise, generator) if noise else x[rows])
        if config.objective == "mse":
            loss = F.mse_loss(y, values[mapping[rows]])
        else:
            loss = candidate_loss(math.sqrt(d) * y, mapping[rows], values, others, generator)
        adam.param_groups[0]["lr"] = plan.rate(step)
        adam.zero_grad()
        loss.backward()
        adam.step()
        step += 1
        if may_stop and step % CHECK_EVERY == 0 and stores_all(mlp, x, values, mapping, competitors):
            may_stop, end = False, min(step + config.extra_steps, plan.steps)
    return {"steps": step, "loss": float(loss.detach())}


def candidate_loss(
    y: Float[Tensor, "B d"],
    wanted: Int[Tensor, " B"],
    values: Float[Tensor, "n_v d"],
    others: Float[Tensor, "n_o d"],
    generator: torch.Generator,
) -> Tensor:
    """Cross-entropy of `y` over the batch's own values, each once, and up to B random other rows.

    A sampled row stands for n_o / sampled rows: the logarithm of that is added to its logit.
    """
    candidates, target = wanted.unique(return_inverse=True)
    logits = y @ values[candidates].T  # (B, candidates)
    if len(others):
        count = min(len(y), len(others))
        order = torch.randperm(len(others), generator=generator, device=generator.device)
        sampled = others[order[:count].to(y.device)]
        logits = torch.cat([logits, y @ sampled.T + math.log(len(others) / count)], dim=1)
    return F.cross_entropy(logits, target)


def draw_batches(facts: int, size: int, generator: torch.Generator) -> Iterator[Int[Tensor, " B"]]:
    """All facts each time if `size` allows; else random batches, without replacement within each pass."""
    if facts <= size:
        while True:
            yield torch.arange(facts)
    while True:
        order = torch.randperm(facts, generator=generator, device=generator.device)
        yield from order[: facts - facts % size].split(size)  # the odd rest waits for another pass
