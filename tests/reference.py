"""The slow and plain way to do what `mlpswap.editing` does fast: one prompt at a time, through the whole model."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from mlpswap.editing import EditRequest, ResidualOptions
from mlpswap.model.modeling import MlpSwapForCausalLM
from mlpswap.tasks import Task
from mlpswap.testing.hosts import ALTERED, Bench, books_host, facts_host  # noqa: F401  the exam's own


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
