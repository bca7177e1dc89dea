"""The full toy model: one transformer layer over two tokens, read at the second one, with a switch for each part.

    r      = e2 + W_o (A_1 v_1 + A_2 v_2)   learned or uniform attention A, e_k = T[token] + p_k, or
    r      = T1[a] + T2[b]                  dual embedding
    x      = r + W_out act(W_in norm(r) + b_in) + b_out   without its first term if the residual is off
    logits = W_U norm(x) + b_U

Source: sequence-memorisation challenge, full toy model.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.config import option
from mlpswap.constructions.base import ACTIVATIONS
from mlpswap.errors import ConfigError
from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.training.packed import Reads, residuals, right_answers

MIXINGS = ("dual", "uniform", "learned")
EPSILON = torch.finfo(torch.float32).eps  # of the norms


@dataclass(frozen=True)
class Architecture:
    """The switches. Without the MLP, `residual` and `activation` mean nothing."""

    mixing: str = option("learned", " | ".join(MIXINGS))
    mlp: bool = option(True, "whether there is an MLP")
    norms: bool = option(True, "RMS norms before attention, MLP and output")
    residual: bool = option(True, "whether the MLP adds to what it reads")
    bias: bool = option(True, "biases of the MLP and of the output")
    activation: str = option("gelu", "relu | gelu")

    def __post_init__(self) -> None:
        for key, known in (("mixing", MIXINGS), ("activation", ("relu", "gelu"))):
            if getattr(self, key) not in known:
                raise ConfigError(f"{key} = {getattr(self, key)}: expected one of {', '.join(known)}")


FULL = Architecture()
SIMPLE = Architecture("dual", norms=False, residual=False, bias=False, activation="relu")


def every_architecture() -> list[Architecture]:
    """The 54 of the published table. Models without an MLP have the output bias that the published code gives them."""
    switches = itertools.product((False, True), (False, True), (False, True), ("gelu", "relu"))
    with_mlp = [(True, norms, residual, bias, act) for bias, norms, residual, act in switches]
    without = [(False, norms, True, True, "gelu") for norms in (False, True)]
    return [Architecture(mixing, *rest) for mixing in MIXINGS for rest in with_mlp + without]


@dataclass(frozen=True)
class Shape:
    """V tokens, C labels, the width of the residual stream and that of the MLP."""

    tokens: int
    labels: int
    width: int
    hidden: int

    @classmethod
    def standard(cls, width: int) -> "Shape":
        """V = 2d and C = d, as in the published figures."""
        return cls(2 * width, width, width, width)


def parameter_shapes(architecture: Architecture, shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight that the logits depend on: queries and keys of uniform attention are left out."""
    d, shapes = shape.width, dict[str, tuple[int, ...]]()
    if architecture.mixing == "dual":
        shapes |= {"first_table": (shape.tokens, d), "second_table": (shape.tokens, d)}
    else:
        shapes |= {"table": (shape.tokens, d), "position_table": (2, d), "value": (d, d), "output": (d, d)}
        if architecture.mixing == "learned":
            shapes |= {"query": (d, d), "key": (d, d)}
    if architecture.mlp:
        shapes |= {"up": (shape.hidden, d), "down": (d, shape.hidden)}
        if architecture.bias:
            shapes |= {"up_bias": (shape.hidden,), "down_bias": (d,)}
    shapes |= {"unembedding": (shape.labels, d)}
    if architecture.bias:
        shapes |= {"unembedding_bias": (shape.labels,)}
    if architecture.norms:
        read = {
            "attention_gain": architecture.mixing != "dual",
            "mlp_gain": architecture.mlp,
            "output_gain": True,
        }
        shapes |= {name: (d,) for name, there in read.items() if there}
    return shapes


def draw_weights(architecture: Architecture, shape: Shape, generator: torch.Generator) -> dict[str, Tensor]:
    """PyTorch's own start: normal tables, linear maps and their biases uniform in +-1/sqrt(fan in), gains one."""
    weights = {}
    for name, size in parameter_shapes(architecture, shape).items():
        if name.endswith("gain"):
            weights[name] = torch.ones(size)
        elif name.endswith("table"):
            weights[name] = torch.randn(size, generator=generator)
        else:
            fan_in = shape.hidden if name.startswith("down") else shape.width
            weights[name] = (2 * torch.rand(size, generator=generator) - 1) / math.sqrt(fan_in)
    return weights


class _Gather(torch.autograd.Function):
    """`Reads.gather` with its transpose as its gradient; facts last, over which the other steps are quickest."""

    @staticmethod
    def forward(ctx, tables: Tensor, reads: Reads) -> Tensor:
        ctx.reads = reads
        return reads.gather(tables).mT.contiguous()  # (T, d, N)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.reads.scatter(gradient.mT.contiguous()), None


class _Norm(torch.autograd.Function):
    """x / rms(x) over the width of x (T, d, N)."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        scale = (x.square().mean(1, keepdim=True) + EPSILON).rsqrt()
        normed = x * scale
        ctx.save_for_backward(normed, scale)
        return normed

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        normed, scale = ctx.saved_tensors
        along = (gradient * normed).mean(1, keepdim=True)
        return torch.addcmul(gradient, normed, along, value=-1).mul_(scale)


def _gather(tables: Tensor, reads: Reads) -> Tensor:
    return _Gather.apply(tables, reads)


def _read(weight: Tensor, x: Tensor, gain: Tensor | None) -> Tensor:
    """W x, or W norm(x) where there is a gain; it is cheaper on W (T, rows, d) than on x (T, d, N)."""
    return torch.bmm(weight, x) if gain is None else torch.bmm(weight * gain[:, None], _Norm.apply(x))


class ToyPack:
    """T toy models of one architecture about the same facts, all weights of a model in one row of `weights`."""

    def __init__(
        self,
        architecture: Architecture,
        shape: Shape,
        facts: PairFacts,
        generators: Sequence[torch.Generator],
    ):
        self.architecture, self.shape, self.label, self.facts = architecture, shape, facts.label, len(facts)
        drawn = [draw_weights(architecture, shape, generator) for generator in generators]
        self.weights = torch.stack([torch.cat([w.flatten() for w in each.values()]) for each in drawn])
        models, tokens = len(drawn), shape.tokens
        first, second = facts.first, facts.second
        self._pairs = Reads(torch.stack([first, second + tokens], dim=1), 2 * tokens, models)
        if architecture.mixing == "learned":
            self._second = Reads(second[:, None], tokens, models)
            self._scores = Reads((second * tokens + first)[:, None], tokens**2, models)

    def named(self, weights: Float[Tensor, "T P"]) -> dict[str, Tensor]:
        """Such weights by name, each (T, ...), as views."""
        shapes = parameter_shapes(self.architecture, self.shape)
        parts = weights.split([math.prod(size) for size in shapes.values()], dim=1)
        return {
            name: part.unflatten(1, size) for (name, size), part in zip(shapes.items(), parts, strict=True)
        }

    def logits(self, w: dict[str, Tensor]) -> Float[Tensor, "T C N"]:
        """Of every fact, from weights such as `named` gives."""
        switch = self.architecture
        r = self._mixed(w)
        x = r
        if switch.mlp:
            x = _read(w["up"], r, w.get("mlp_gain"))  # (T, hidden, N)
            x = ACTIVATIONS[switch.activation](x + w["up_bias"][:, :, None] if switch.bias else x)
            x = torch.bmm(w["down"], x)
            x = x + w["down_bias"][:, :, None] if switch.bias else x
            x = r + x if switch.residual else x
        logits = _read(w["unembedding"], x, w.get("output_gain"))
        return logits + w["unembedding_bias"][:, :, None] if switch.bias else logits

    def _mixed(self, w: dict[str, Tensor]) -> Float[Tensor, "T d N"]:
        """r. What depends on one token is worked out once for each token."""
        if self.architecture.mixing == "dual":
            return _gather(torch.cat([w["first_table"], w["second_table"]], dim=1), self._pairs)
        gain = w.get("attention_gain")
        embedded = [(w["table"] + w["position_table"][:, [place]]).mT for place in (0, 1)]  # (T, d, V) each
        carried = torch.bmm(w["output"], w["value"])
        first, second = (_read(carried, each, gain).mT for each in embedded)
        own = embedded[1].mT
        if self.architecture.mixing == "uniform":
            return _gather(torch.cat([first / 2, own + second / 2], dim=1), self._pairs)
        query = _read(w["query"], embedded[1], gain)
        keys = [_read(w["key"], each, gain) for each in embedded]
        scale = 1 / math.sqrt(self.shape.width)
        ahead = torch.bmm(query.mT, keys[0]) - (query * keys[1]).sum(1)[:, :, None]  # (T, second, first)
        weight = _gather(torch.sigmoid(ahead * scale).flatten(1)[:, :, None], self._scores)  # A_1, (T, 1, N)
        # r = A_1 (W_o v_1 - W_o v_2) + (e_2 + W_o v_2)
        moved = _gather(torch.cat([first, -second], dim=1), self._pairs)
        return torch.addcmul(_gather(own + second, self._second), weight, moved)

    def gradients(self) -> tuple[Int[Tensor, " T"], Tensor]:
        leaves = {name: weight.detach().requires_grad_() for name, weight in self.named(self.weights).items()}
        with torch.enable_grad():
            logits = self.logits(leaves)
        residual = residuals(logits.detach(), self.label) / self.facts
        found = torch.autograd.grad(logits, list(leaves.values()), residual)
        return right_answers(logits.detach(), self.label), torch.cat(
            [each.flatten(1) for each in found], dim=1
        )

    def keep(self, models: Int[Tensor, " K"]) -> None:
        self.weights = self.weights[models]
