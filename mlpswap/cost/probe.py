"""One build of a cost search: draw a fact set, build, and measure what is deployed."""

import copy
import json
import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mlpswap import embeddings
from mlpswap.constructions import build_fact_mlp
from mlpswap.constructions.base import FactMLP, margins
from mlpswap.constructions.folding import fold
from mlpswap.cost.search import Outcome
from mlpswap.errors import InfeasibleConstructionError
from mlpswap.randomness import generator
from mlpswap.whitening import whitening

FORMATS = {"int8": 8, "bf16": 16, "float32": 32}  # bits of one parameter


@dataclass(frozen=True)
class Cell:
    """One point of a table: a construction at one number of facts and one kind of embeddings."""

    name: str
    construction: str
    options: dict[str, Any]
    varies: str | None
    facts: int
    d: int
    embeddings: str
    kappa: float
    alpha: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def identity(self) -> str:
        """What a build depends on besides size and seed: everything but the name."""
        return json.dumps({k: v for k, v in asdict(self).items() if k != "name"}, sort_keys=True)


def build_and_measure(cell: Cell, size: int, seed: int) -> Outcome:
    """Build at `size` for the fact set of `seed`, and measure the folded, float32 MLP on the facts themselves.

    Keys are the rows of the table brought to unit length, values the rows themselves (arXiv 2512.00207, A.1.1); the
    facts are a random bijection between them. With alpha > 0 the MLP is built for whitened values and folded back. An
    infeasible size counts as accuracy 0.
    """
    table = values_of(cell, seed)
    keys = torch.nn.functional.normalize(table, dim=1)
    mapping = torch.randperm(cell.facts, generator=generator(seed, "cost facts"))
    matrix = whitening(table, cell.alpha) if cell.alpha else None
    targets = table if matrix is None else table @ matrix
    options = cell.options | ({cell.varies: size} if cell.varies else {})
    began = time.perf_counter()
    try:
        mlp = build_fact_mlp(
            keys.float(),
            targets.float(),
            mapping,
            cell.construction,
            generator=generator(seed, "cost mlp"),
            **options,
        )
    except InfeasibleConstructionError as error:
        return Outcome(size, seed, 0.0, {"infeasible": str(error)})
    assert mlp.report is not None
    details = mlp.report.details
    if matrix is not None:
        mlp = fold(mlp, values=matrix)
    seconds = time.perf_counter() - began
    keys, table = keys.float(), table.float()
    accuracies = {name: accuracy(rounded(mlp, name), keys, table, mapping) for name in FORMATS}
    return Outcome(
        size,
        seed,
        accuracies["float32"],
        {
            "h": mlp.config.h,
            "parameters": mlp.parameters_count,
            "factored_parameters": details.get("factored"),
            "margin": float(margins(mlp, keys, table, mapping).min()),
            "seconds": seconds,
            **{f"accuracy_{name}": accuracies[name] for name in ("bf16", "int8")},
        },
    )


def values_of(cell: Cell, seed: int) -> Tensor:
    """The table of embeddings, float64."""
    draw = generator(seed, "cost embeddings")
    table = embeddings.draw(cell.embeddings, cell.facts, cell.d, draw, torch.float64)
    return embeddings.ill_condition(table, cell.kappa) if cell.kappa else table


@torch.no_grad()
def accuracy(mlp: FactMLP, keys: Tensor, values: Tensor, mapping: Tensor) -> float:
    """Share of the facts that are stored."""
    return float((margins(mlp, keys, values, mapping) > 0).double().mean())


@torch.no_grad()
def rounded(mlp: FactMLP, name: str) -> FactMLP:
    """A copy with every parameter rounded to the format, and computed with in float32.

    int8 has one scale for each row of a matrix, its largest absolute value / 127, and one for a vector.
    """
    copied = copy.deepcopy(mlp).float()
    for parameter in copied.parameters():
        if name == "bf16":
            parameter.copy_(parameter.bfloat16().float())
        elif name == "int8":
            scale = (
                parameter.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 127
            )
            parameter.copy_((parameter / scale).round() * scale)
    return copied


def fact_bits(facts: int) -> float:
    """log2(F!), the information in a bijection between F keys and F values."""
    return math.lgamma(facts + 1) / math.log(2)
