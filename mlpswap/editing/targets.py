"""Target vectors of the original protocols: what must stand at the subject's last token (arXiv 2202.05262, 3.1,
and arXiv 2210.07229, 4.3).

For each request a change delta of the vector v_0, the MLP's output (ROME) or the hidden state after the block
(MEMIT, AlphaEdit), at its edited token in every prompt, follows Adam down

    mean over prompts of -log p(target) + kl * KL(p || p_0) + weight_decay * ||delta|| / ||v_0||^2

where p and p_0 are the edited and the unedited distribution at the subject's last token in a neutral prompt
(`EditRequest.essence`). After each update delta is projected onto the ball of radius clamp * ||v_0||.

All requests are one problem, as in `mlpswap.editing.residuals`: its rows evolve as if each were alone.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from numbers import Integral

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mlpswap.config import option, require_plain
from mlpswap.editing.adapters import Adapter, LayeredAdapter
from mlpswap.editing.moments import exact
from mlpswap.editing.requests import Context, EditRequest
from mlpswap.editing.residuals import Adam
from mlpswap.errors import ConfigError, RequestError, UnsupportedEditorError
from mlpswap.facts import printable


@dataclass(frozen=True)
class LayersConfig:
    """Which layers an original protocol edits."""

    layers: list[int] = option(
        factory=list,
        help="layers to edit; published for GPT-2 XL: ROME 17, MEMIT and AlphaEdit 13 to 17, FT 0",
    )

    def __post_init__(self) -> None:
        require_plain(self)
        layers = self.layers
        numbers = list(layers) if isinstance(layers, Collection) else [None]
        right = all(isinstance(each, Integral) and type(each) is not bool and each >= 0 for each in numbers)
        if not right or not numbers or len(set(numbers)) < len(numbers):
            raise ConfigError(
                f"original.layers = {layers!r}: expected different layers from 0, at least one, as in [17]"
            )


@dataclass(frozen=True)
class TargetConfig(LayersConfig):
    """How targets are optimised."""

    steps: int = option(20, "evaluations of the objective, >= 1; there is one update less")
    lr: float = option(0.5, "Adam's learning rate, > 0")
    weight_decay: float = option(0.5, "weight of ||delta|| / ||v_0||^2, >= 0")
    kl: float = option(0.0625, "weight of the divergence at the neutral prompt, >= 0")
    clamp: float = option(4.0, "longest delta as a multiple of ||v_0||, > 0; published: 4 (ROME), 0.75")
    enough: float = option(0.05, "a request stops before the update once its objective is below, >= 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1 or min(self.lr, self.clamp) <= 0:
            raise ConfigError(
                f"original: steps must be at least 1, lr and clamp positive: "
                f"found {self.steps}, {self.lr} and {self.clamp}"
            )
        if min(self.weight_decay, self.kl, self.enough) < 0:
            raise ConfigError(
                f"original: weight_decay, kl and enough must not be negative: "
                f"found {self.weight_decay}, {self.kl} and {self.enough}"
            )


@dataclass(frozen=True, eq=False)
class Targets:
    """v_0 and delta of n requests, float64; the objective and its share of -log p(target) where it was last
    evaluated; the updates made.
    """

    start: Float[Tensor, "n d"]
    delta: Float[Tensor, "n d"]
    objective: Float[Tensor, " n"]
    losses: Float[Tensor, " n"]
    updates: tuple[int, ...]

    @property
    def finite(self) -> Bool[Tensor, " n"]:
        numbers = torch.cat([self.start, self.delta, self.objective[:, None]], dim=1)
        return numbers.isfinite().all(dim=1)


def layered(adapter: Adapter, layers: Sequence[int], editor: str) -> tuple[LayeredAdapter, list[int]]:
    """The adapter and the sites that an original protocol edits, in order.

    Raises `UnsupportedEditorError` for a model of one layer, `ConfigError` for layers that are not there.
    """
    if not isinstance(adapter, LayeredAdapter):
        raise UnsupportedEditorError(
            f"the original protocol of {editor} needs a model with several layers, such as CausalLMAdapter reads: "
            f"{type(adapter).__name__} offers the single-layer protocol only"
        )
    sites = adapter.sites()
    if not set(layers) <= set(sites):
        raise ConfigError(f"original.layers: {editor} cannot edit {layers}: the model offers {sites}")
    return adapter, sorted(layers)


@torch.no_grad()
def optimise_targets(
    adapter: LayeredAdapter, requests: Sequence[EditRequest], site: int, at: str, config: TargetConfig
) -> Targets:
    """Raises `RequestError` for a request without its neutral prompt although kl > 0, and for one whose edited
    token does not reach the prediction.
    """
    for request in requests:
        if config.kl and request.essence is None:
            raise RequestError(
                f"request '{printable(request.id)}': kl > 0 needs the neutral prompt `essence`; "
                "make requests with adapter.request, or set original.kl=0"
            )
    bare = adapter.cut([request.contexts[0] for request in requests])
    start = adapter.outputs(bare, site, at).to(adapter.working)
    lengths = start.norm(dim=1)
    problem = _Problem(adapter, requests, site, at, config, lengths)
    delta = torch.zeros_like(start)
    objective, losses = torch.zeros_like(lengths), torch.zeros_like(lengths)
    updates = torch.zeros(len(requests), dtype=torch.long)
    adam = Adam(config.lr)
    going = torch.arange(len(requests), device=start.device)
    for step in range(config.steps):
        objective[going], losses[going], gradient = problem.evaluate(delta, going)
        if step == 0:
            _require_influence(requests, problem.pull, losses)
        going = going[~(objective[going] < config.enough)]
        if step == config.steps - 1 or not len(going):
            break
        moved = delta.clone()
        adam.step(moved, gradient)
        norms = moved.norm(dim=1)
        moved *= (config.clamp * lengths / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1)[
            :, None
        ]
        delta[going] = moved[going]
        updates[going.cpu()] += 1
    return Targets(exact(start), exact(delta), exact(objective), exact(losses), tuple(updates.tolist()))


class _Problem:
    """The objective of all requests. `pull` is the last gradient of the targets' share, (n, d)."""

    def __init__(
        self,
        adapter: LayeredAdapter,
        requests: Sequence[EditRequest],
        site: int,
        at: str,
        config: TargetConfig,
        lengths: Float[Tensor, " n"],
    ):
        self.adapter, self.requests, self.site, self.at = adapter, requests, site, at
        self.config, self.lengths = config, lengths
        self.pull = torch.zeros(0)
        self.before: dict[int, Tensor] = {}

    @torch.enable_grad()
    def evaluate(
        self, delta: Float[Tensor, "n d"], rows: Tensor
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"], Float[Tensor, "n d"]]:
        """The objective at the m `rows`, the targets' share of it, and the gradient by all of delta."""
        leaf = delta.detach().requires_grad_()
        losses, rest = torch.zeros_like(self.lengths), torch.zeros_like(self.lengths)
        self.pull = torch.zeros_like(delta)
        numbers = rows.tolist()
        for part in _chunks([(n, c) for n in numbers for c in self.requests[n].contexts], self.adapter.chunk):
            owners = torch.tensor([n for n, _ in part], device=delta.device)
            share = torch.tensor([1 / len(self.requests[n].contexts) for n, _ in part]).to(self.lengths)
            targets = [self.requests[n].target_ids for n, _ in part]
            nll = share * self.adapter.nll([c for _, c in part], targets, self.site, self.at, leaf[owners])
            self.pull += torch.autograd.grad(nll.sum(), leaf)[0]
            losses.index_add_(0, owners, nll.detach())
        gradient = self.pull.clone()
        if self.config.kl:
            for chunk in _chunks(numbers, self.adapter.chunk):
                divergence = self.config.kl * self._divergence(leaf, chunk)
                gradient += torch.autograd.grad(divergence.sum(), leaf)[0]
                rest[chunk] += divergence.detach()
        decay = self.config.weight_decay * leaf[rows].norm(dim=1) / self.lengths[rows] ** 2
        gradient += torch.autograd.grad(decay.sum(), leaf)[0]
        return losses[rows] + rest[rows] + decay.detach(), losses[rows], gradient

    def _divergence(self, leaf: Tensor, numbers: list[int]) -> Float[Tensor, " c"]:
        """KL(p || p_0) of these requests; the first call keeps p_0."""
        ends = [self.requests[n].essence or () for n in numbers]
        contexts = [Context(ids, len(ids) - 1) for ids in ends]
        now = self.adapter.log_probs(contexts, self.site, self.at, leaf[numbers])
        for n, row in zip(numbers, now.detach(), strict=True):
            self.before.setdefault(n, row)
        before = torch.stack([self.before[n] for n in numbers])
        return (now.exp() * (now - before)).sum(dim=1)


def _chunks(items: list, size: int) -> Iterator[list]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _require_influence(requests: Sequence[EditRequest], pull: Tensor, losses: Tensor) -> None:
    helpless = ((pull == 0).all(dim=1) & (losses > 0)).tolist()
    for request in compress(requests, helpless):
        raise RequestError(
            f"request '{printable(request.id)}': the edited token has no influence on the prediction; "
            "edit a lower layer"
        )


def mean_over_contexts(
    adapter: LayeredAdapter, requests: Sequence[EditRequest], site: int, *, of: str = "keys", balanced: bool
) -> Float[Tensor, "n c"]:
    """Mean over each request's prompts of its keys or (MLP) outputs, float64.

    balanced: the bare prompt weighs as much as all prefixed ones together (MEMIT); else all alike (ROME).
    """
    contexts = [context for request in requests for context in request.contexts]
    rows = exact(getattr(adapter, of)(adapter.cut(contexts), site))
    means = []
    for part in rows.split([len(request.contexts) for request in requests]):
        groups = [part[:1], part[1:]] if balanced and len(part) > 1 else [part]
        means.append(torch.stack([group.mean(dim=0) for group in groups]).mean(dim=0))
    return torch.stack(means)
