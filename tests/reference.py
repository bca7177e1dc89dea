"""The slow and plain way to do what `mlpswap.editing` does fast: one prompt at a time, through the whole model.

Also the small hosts that the editing tests share.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from mlpswap import registry
from mlpswap.config import build_options
from mlpswap.constructions import build_fact_mlp
from mlpswap.editing import EditRequest, HostAdapter, ResidualOptions, statistics_of
from mlpswap.facts import FactSet
from mlpswap.model.build import build_host
from mlpswap.model.configuration import MlpSwapConfig
from mlpswap.model.modeling import MlpSwapForCausalLM
from mlpswap.model.tokenization import Vocabulary
from mlpswap.randomness import generator
from mlpswap.tasks import Task, books_task
from tests.hosts import random_mlp


def random_host(
    vocabulary: Vocabulary,
    facts: FactSet,
    *,
    d: int,
    h: int,
    dtype: torch.dtype = torch.float64,
    output_bias: bool = False,
    **config,
) -> MlpSwapForCausalLM:
    """An untrained host with a random fact MLP: enough for everything but good answers."""
    rows = torch.randn(len(vocabulary), d, generator=generator(0, "rows"), dtype=torch.float64)
    rows = F.normalize(rows, dim=1).to(dtype)
    shape = MlpSwapConfig(n_embd=d, n_positions=32, **config)
    mlp = random_mlp("swiglu", d, h, dtype=dtype, output_bias=output_bias)
    return build_host(vocabulary, shape, facts, mlp, rows, generator=generator(0, "host"))


def books_host(
    count: int = 12, *, d: int = 32, h: int = 48, dtype: torch.dtype = torch.float64, **options
) -> tuple[Task, MlpSwapForCausalLM]:
    """The book task over made-up facts and a random host for it."""
    task = books_task(FactSet.synthetic(count, generator(0, "facts")))
    return task, random_host(task.vocabulary, task.facts, d=d, h=h, dtype=dtype, **options)


def residuals_one_by_one(
    model: MlpSwapForCausalLM, requests: Sequence[EditRequest], options: ResidualOptions
) -> Tensor:
    """(n, d): each residual by its own torch.optim.Adam, the whole model run at every step."""
    out = []
    for request in requests:
        ids, target = torch.tensor([request.prompt_ids]), torch.tensor(request.target_ids)
        r = torch.zeros(model.config.n_embd, dtype=model.dtype, requires_grad=True)

        def add(module, inputs, output, r=r):
            last = torch.zeros(output.shape[:-1] + (1,), dtype=output.dtype)
            last[:, -1] = 1
            return output + last * r

        adam = torch.optim.Adam([r], lr=options.lr, weight_decay=options.weight_decay)
        hook = model.fact_mlp.register_forward_hook(add)
        for _ in range(options.steps):
            adam.zero_grad()
            loss = F.cross_entropy(model(ids).logits[:, -1], target)
            loss.backward(inputs=[r])
            adam.step()
            if options.early_stop is not None and loss < options.early_stop:
                break
        hook.remove()
        out.append(r.detach())
    return torch.stack(out)


@torch.no_grad()
def answers_one_by_one(
    model: MlpSwapForCausalLM, task: Task, facts: Tensor, templates: Tensor, targets: Tensor, table=None
) -> list[bool]:
    """Whether each prompt is answered with its target, one whole forward pass per prompt."""
    batch = task.batch(facts, templates, targets=targets, table=table)
    right = []
    for ids, mask, labels in zip(batch.input_ids, batch.attention_mask, batch.labels, strict=True):
        logits = model(ids[mask][None]).logits[0, -1]
        rivals = logits.clone()
        rivals[labels[-1]] = -torch.inf
        right.append(bool(logits[labels[-1]] > rivals.max()))
    return right


def rome_one_by_one(R: Tensor, K1: Tensor, C0: Tensor) -> Tensor:
    """ROME's edits in turn, each with its own general solve."""
    delta = torch.zeros(len(R), len(K1), dtype=R.dtype)
    for r, k in zip(R.T, K1.T, strict=True):
        u = torch.linalg.solve(C0, k)
        delta += torch.outer(r, u) / (k @ u)
    return delta


def memit_by_inverse(R: Tensor, K1: Tensor, C0: Tensor, lam: float) -> Tensor:
    """MEMIT with a pseudo-inverse, the outer products summed one at a time."""
    system = lam * C0
    for k in K1.T:
        system = system + torch.outer(k, k)
    return R @ K1.T @ torch.linalg.pinv(system, hermitian=True)


def alphaedit_by_projector(R: Tensor, K1: Tensor, P: Tensor, l2: float, cache: Tensor) -> Tensor:
    """AlphaEdit as published: (P (K1 K1^T + cache) + l2 I) Delta^T = P K1 R^T by a general h x h solve."""
    system = P @ (K1 @ K1.T + cache) + l2 * torch.eye(len(P), dtype=P.dtype)
    return torch.linalg.solve(system, P @ K1 @ R.T).T


def alphaedit_over_edits(R: Tensor, K1: Tensor, P: Tensor, l2: float) -> Tensor:
    """The same for an empty cache by an N x N solve: R (K1^T P K1 + l2 I)^-1 K1^T P."""
    system = K1.T @ P @ K1 + l2 * torch.eye(K1.shape[1], dtype=P.dtype)
    return R @ torch.linalg.solve(system, K1.T @ P)


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


class Bench:
    """An exam: a host, requests that rotate the values of its first facts, and statistics of the others."""

    def __init__(self, **host):
        self.model = facts_host(**host)
        self.adapter = HostAdapter(self.model)
        self.facts = self.model.facts
        chosen = self.facts.keys[:ALTERED]
        self.wanted = dict(zip(chosen, map(self.facts.value_of, chosen[1:] + chosen[:1]), strict=True))
        self.requests = [self.ask(key, value) for key, value in self.wanted.items()]
        self.preserved = self.facts.keys[ALTERED:]
        self.statistics = statistics_of(self.adapter, self.prompts(self.preserved))

    def ask(self, key, value, **options):
        return self.adapter.request("{key}", key, value, **options)

    def prompts(self, keys):
        requests = [self.ask(key, self.facts.value_of(key)) for key in keys]
        return self.adapter.prompts(requests)

    def answers(self, keys):
        tokens = HostAdapter(self.model).predict(self.prompts(keys))
        return [self.model.vocabulary.entries[token][1] for token in tokens.tolist()]

    def edit(self, name, requests=None, **options):
        editor = registry.get(registry.EDITORS, name)
        options = editor.example(generator(0, "example")) | options
        return editor.edit(
            self.adapter,
            self.requests if requests is None else requests,
            build_options(editor.Config, options, name),
            statistics=self.statistics,
            generator=generator(0, name),
        )
