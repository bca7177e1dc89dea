"""Small hosts with facts, and the bench on which editors are examined. Nothing here is trained."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

from mlpswap import registry
from mlpswap.config import build_options
from mlpswap.constructions import FactMLP, FactMLPConfig, build_fact_mlp
from mlpswap.editing import EditRequest, EditResult, HostAdapter, Prompts, statistics_of
from mlpswap.facts import FactSet
from mlpswap.model import MlpSwapConfig, MlpSwapForCausalLM, Vocabulary, build_host
from mlpswap.randomness import generator
from mlpswap.tasks import Task, books_task


def random_mlp(
    kind: str = "swiglu",
    d: int = 16,
    h: int = 24,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    *,
    output_bias: bool = False,
) -> FactMLP:
    """Normal weights, with outputs of length about one on keys of length one."""
    config = replace(FactMLPConfig.of_kind(kind, d, h), output_bias=output_bias)
    mlp, source = FactMLP(config, dtype=dtype), generator(seed, "mlp")
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter.normal_(0, 1, generator=source)
        mlp.down.weight.mul_((d * h) ** -0.5)
    return mlp


def random_host(
    vocabulary: Vocabulary,
    facts: FactSet,
    *,
    d: int,
    h: int,
    dtype: torch.dtype = torch.float64,
    output_bias: bool = False,
    **config: Any,
) -> MlpSwapForCausalLM:
    """An untrained host with a random fact MLP: enough for everything but good answers."""
    rows = torch.randn(len(vocabulary), d, generator=generator(0, "rows"), dtype=torch.float64)
    rows = F.normalize(rows, dim=1).to(dtype)
    shape = MlpSwapConfig(n_embd=d, n_positions=32, **config)
    mlp = random_mlp("swiglu", d, h, dtype=dtype, output_bias=output_bias)
    return build_host(vocabulary, shape, facts, mlp, rows, generator=generator(0, "host"))


def books_host(
    count: int = 12, *, d: int = 32, h: int = 48, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Task, MlpSwapForCausalLM]:
    """The book task over made-up facts and a random host for it."""
    task = books_task(FactSet.synthetic(count, generator(0, "facts")))
    return task, random_host(task.vocabulary, task.facts, d=d, h=h, dtype=dtype, **options)


def facts_host(
    count: int = 24, *, d: int = 16, h: int = 20, dtype: torch.dtype = torch.float64
) -> MlpSwapForCausalLM:
    """A host that needs no training to answer: a prompt is the key alone, so that attention reads nothing else.

    Its fact MLP stores all facts and is tight: h < count.
    """
    facts = FactSet.synthetic(count, generator(0, "facts"))
    vocabulary = Vocabulary.ssfr(facts)
    rows = F.normalize(
        torch.randn(len(vocabulary), d, generator=generator(0, "rows"), dtype=torch.float64), dim=1
    )
    keys, values = rows[list(vocabulary.key_ids)], rows[list(vocabulary.value_ids)]
    others = rows[: vocabulary.value_ids.start], rows[vocabulary.value_ids.stop :]
    mlp = build_fact_mlp(
        keys, values, facts.targets(), "gd", h=h, competitors=torch.cat(others), generator=generator(0, "mlp")
    )
    return build_host(
        vocabulary,
        MlpSwapConfig(n_embd=d, mixture=False),
        facts,
        mlp.to(dtype),
        rows.to(dtype),
        generator=generator(0, "host"),
    )


ALTERED = 3


@cache
def _answering_host(**host: Any) -> MlpSwapForCausalLM:
    return facts_host(**host)


class Bench:
    """A host that answers all of its facts, requests that rotate the values of the first three, and the keys'
    second moment of the others.

    host: arguments of `facts_host`.
    """

    def __init__(self, **host: Any):
        self.model = copy.deepcopy(_answering_host(**host))
        self.adapter = HostAdapter(self.model)
        self.facts = self.model.known_facts()
        chosen = self.facts.keys[:ALTERED]
        self.wanted = dict(zip(chosen, map(self.facts.value_of, chosen[1:] + chosen[:1]), strict=True))
        self.requests = [self.ask(key, value) for key, value in self.wanted.items()]
        self.preserved = self.facts.keys[ALTERED:]
        self.statistics = statistics_of(self.adapter, self.prompts(self.preserved))

    def ask(self, key: str, value: str, **options: Any) -> EditRequest:
        return self.adapter.request("{key}", key, value, **options)

    def prompts(self, keys: Iterable[str]) -> Prompts:
        requests = [self.ask(key, self.facts.value_of(key)) for key in keys]
        return self.adapter.prompts(requests)

    def answers(self, keys: Iterable[str]) -> list[str]:
        """What the model says now, asked for each key."""
        tokens = HostAdapter(self.model).predict(self.prompts(keys))
        return [self.model.vocabulary.entries[token][1] for token in tokens.tolist()]

    def edit(self, name: str, requests: Sequence[EditRequest] | None = None, **options: Any) -> EditResult:
        """The editor's result for these requests (None: all of the bench), with its example options and `options`."""
        editor = registry.get(registry.EDITORS, name)
        return editor.edit(
            self.adapter,
            self.requests if requests is None else requests,
            build_options(editor.Config, example_options(editor) | options, name),
            statistics=self.statistics,
            generator=generator(0, name),
        )


def example_options(editor: Any) -> dict[str, Any]:
    """Options with which the editor carries out each of a few edits: those of its `example`, or none."""
    return editor.example(generator(0, "example")) if hasattr(editor, "example") else {}
