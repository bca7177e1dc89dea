"""The one container for every fact MLP, and the interface behind which each construction stands.

A fact MLP computes (arXiv 2512.00207, section 2)

    gated:      g(x) = B (act(G x + b_G) * (A x + b_A)) + b_B
    non-gated:  g(x) = B act(A x + b_A) + b_B
 with G, A of shape (h, d) and B of shape (d, h). A fact i is stored if the value of f(i) has strictly the
largest score <g(k_i), v_j> of all values; a tie is a failure.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mlpswap.errors import ConfigError, InfeasibleConstructionError, NonFiniteError

logger = logging.getLogger(__name__)


def identity(x: Tensor) -> Tensor:
    """x itself; a function with a name, so that modules can be copied to other processes."""
    return x


def hermite2(x: Tensor) -> Tensor:
    """The normalised Hermite polynomial of degree 2: orthogonal to constants and to x where x is N(0, 1)."""
    return (x.square() - 1) / math.sqrt(2)


def value_and_slope(act: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    """act(z) and act'(z), entry by entry; the slope of a ReLU at its kink is 0."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        value = act(z)
        (slope,) = torch.autograd.grad(value.sum(), z)
    return value.detach(), slope


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "identity": identity,
    "relu": F.relu,
    "gelu": F.gelu,
    "hermite2": hermite2,
}

# kind -> (activation, gated, hidden bias): the names that configs and papers use.
KINDS: dict[str, tuple[str, bool, bool]] = {
    "swiglu": ("silu", True, False),
    "bilinear": ("identity", True, False),
    "relu": ("relu", False, True),
    "gelu": ("gelu", False, True),
}


@dataclass(frozen=True)
class FactMLPConfig:
    """Shape of a fact MLP, as it is saved beside a model: widths d and h, activation, gate, biases."""

    d: int
    h: int
    activation: str = "silu"
    gated: bool = True
    hidden_bias: bool = False
    output_bias: bool = False

    def __post_init__(self) -> None:
        if not all(isinstance(width, int) and width >= 1 for width in (self.d, self.h)):
            raise ConfigError(f"a fact MLP needs positive widths: found d = {self.d!r}, h = {self.h!r}")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(
                f"unknown activation '{self.activation}': expected one of {', '.join(ACTIVATIONS)}"
            )

    @classmethod
    def of_kind(cls, kind: str, d: int, h: int) -> "FactMLPConfig":
        """The usual shape called `kind`: swiglu, bilinear, relu or gelu."""
        if kind not in KINDS:
            raise ConfigError(f"unknown kind of MLP '{kind}': expected one of {', '.join(KINDS)}")
        activation, gated, hidden_bias = KINDS[kind]
        return cls(d, h, activation, gated, hidden_bias)

    @property
    def kind(self) -> str:
        """The name of this shape in `KINDS`, or "custom"."""
        for name, shape in KINDS.items():
            if shape == (self.activation, self.gated, self.hidden_bias) and not self.output_bias:
                return name
        return "custom"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class BuildReport:
    """What a construction achieved, measured through the finished module after its last cast.

    accuracy: share of facts stored, over the values; `accuracy_vocabulary`: over values and competitors, None
    where no competitors were given; margin: smallest difference between the right score and the best wrong
    one among the values; parameters: dense count; seconds: wall time of the build; wrong: indices of the
    facts that are not stored; details: bits_per_parameter (F log2 n_v bits over the dense count; trained
    networks hold about 2, closed forms less) and figures of the construction's own.
    """

    construction: str
    facts: int
    accuracy: float
    accuracy_vocabulary: float | None
    margin: float
    parameters: int
    seconds: float
    wrong: tuple[int, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def capacity(self) -> float:
        """Share of the fact set that the bare MLP stores, over all rows that it was asked to beat."""
        return self.accuracy if self.accuracy_vocabulary is None else self.accuracy_vocabulary

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "BuildReport":
        """The inverse of `to_dict`, also after a round trip through JSON."""
        return cls(**(data | {"wrong": tuple(data["wrong"])}))


class ZeroLinear(nn.Linear):
    """A linear map that starts at zero: making a FactMLP draws nothing from torch's global generator."""

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class FactMLP(nn.Module):
    """An MLP (..., d) -> (..., d) that stores facts. Its weights do not train inside a host.

    `gate` is G (None where not gated), `up` is A, `down` is B; all zero until a construction or a checkpoint
    fills them. `report` is None for an MLP that was loaded.
    """

    report: BuildReport | None

    def __init__(self, config: FactMLPConfig, dtype: torch.dtype | None = None):
        super().__init__()
        self.config = config
        d, h = config.d, config.h
        self.gate = ZeroLinear(d, h, bias=config.hidden_bias, dtype=dtype) if config.gated else None
        self.up = ZeroLinear(d, h, bias=config.hidden_bias, dtype=dtype)
        self.down = ZeroLinear(h, d, bias=config.output_bias, dtype=dtype)
        self.act = ACTIVATIONS[config.activation]
        self.report = None
        self.requires_grad_(False)

    def hidden(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n h"]:
        """What enters the down-projection: the "key" of ROME and its kin."""
        if self.gate is None:
            return self.act(self.up(x))
        return self.act(self.gate(x)) * self.up(x)

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        return self.down(self.hidden(x))

    @property
    def parameters_count(self) -> int:
        """Dense count: every number that is deployed."""
        return sum(parameter.numel() for parameter in self.parameters())


@runtime_checkable
class Construction(Protocol):
    """A way to make a fact MLP. Pure: it changes none of its arguments.

    `Config` is a dataclass whose fields carry their help text (`mlpswap.config.option`); `h: int | None` and,
    where the construction offers several, `kind: str` are fields of that name, so that a swap can default to
    the MLP in place.
    """

    name: str
    Config: type

    def build(
        self,
        keys: Float[Tensor, "F d"],
        values: Float[Tensor, "n_v d"],
        mapping: Int[Tensor, " F"],
        config: Any,
        *,
        competitors: Float[Tensor, "n_c d"] | None = None,
        generator: torch.Generator,
    ) -> FactMLP:
        """Build an MLP with argmax_j <g(k_i), v_j> = mapping[i], and measure it (`FactMLP.report`).

        competitors: further rows whose scores must lose too (the rest of a host's vocabulary).
        """
        ...

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        """Arguments of `build`, all but `generator`: a small set of which it stores every fact."""
        ...


@torch.no_grad()
def margins(
    mlp: Callable[[Tensor], Tensor],
    keys: Float[Tensor, "F d"],
    values: Float[Tensor, "n_v d"],
    mapping: Int[Tensor, " F"],
    *,
    chunk: int = 1024,
) -> Float[Tensor, " F"]:
    """Score of the right row minus the best wrong one, for each key; positive means stored.

    With a single value there is no wrong row and the margin is infinite. Rows equal to the right one count as
    wrong.
    """
    return torch.cat([margin for margin, _ in _margin_chunks(mlp, keys, values, mapping, values[:0], chunk)])


def _margin_chunks(
    mlp: Callable[[Tensor], Tensor],
    keys: Tensor,
    values: Tensor,
    mapping: Tensor,
    competitors: Tensor,
    chunk: int = 1024,
) -> Iterator[tuple[Tensor, Tensor]]:
    """For chunks of keys: the margins over the values, and over values and competitors."""
    for rows, wanted in zip(keys.split(chunk), mapping.split(chunk), strict=True):
        outputs = mlp(rows)
        scores = outputs @ values.T  # (chunk, n_v)
        right = scores.gather(1, wanted[:, None]).squeeze(1)
        scores.scatter_(1, wanted[:, None], float("-inf"))
        margin = right - scores.amax(dim=1)
        if len(competitors):
            yield margin, torch.minimum(margin, right - (outputs @ competitors.T).amax(dim=1))
        else:
            yield margin, margin


@torch.no_grad()
def stores_all(
    mlp: Callable[[Tensor], Tensor], keys: Tensor, values: Tensor, mapping: Tensor, competitors: Tensor
) -> bool:
    """Whether all margins over values and competitors (0 rows: none) are positive; ends at the first miss."""
    return all(
        bool((margin > 0).all()) for _, margin in _margin_chunks(mlp, keys, values, mapping, competitors)
    )


@torch.no_grad()
def report(
    name: str,
    mlp: FactMLP,
    keys: Tensor,
    values: Tensor,
    mapping: Tensor,
    *,
    seconds: float,
    competitors: Tensor | None = None,
    details: dict[str, Any] | None = None,
) -> BuildReport:
    """Measure a finished MLP on the facts it was built for, in the dtype in which it is deployed."""
    dtype = mlp.down.weight.dtype
    keys, values = keys.to(dtype), values.to(dtype)
    others = values[:0] if competitors is None else competitors.to(dtype)
    margin, margin_vocabulary = (
        torch.cat(parts) for parts in zip(*_margin_chunks(mlp, keys, values, mapping, others), strict=True)
    )
    if margin_vocabulary.isnan().any():
        raise NonFiniteError(f"the scores overflow in {dtype}: keys or values are too long for it")
    bits = len(keys) * math.log2(len(values)) / mlp.parameters_count
    made = BuildReport(
        construction=name,
        facts=len(keys),
        accuracy=float((margin > 0).double().mean()),
        accuracy_vocabulary=float((margin_vocabulary > 0).double().mean()) if len(others) else None,
        margin=float(margin.min()),
        parameters=mlp.parameters_count,
        seconds=seconds,
        wrong=tuple((~(margin > 0)).nonzero().flatten().tolist()),
        details={"bits_per_parameter": bits, **(details or {})},
    )
    if made.capacity < 1:
        logger.warning(
            "%s with h = %d stores %.2f %% of %d facts (%.3g bits per parameter asked for)",
            name, mlp.config.h, 100 * made.capacity, made.facts, bits,
        )  # fmt: skip
    return made


def finish(
    name: str,
    mlp: FactMLP,
    keys: Tensor,
    values: Tensor,
    mapping: Tensor,
    *,
    started: float,
    norm_matched: bool,
    competitors: Tensor | None = None,
    details: dict[str, Any] | None = None,
) -> FactMLP:
    """The last steps of a construction: cast to the keys' dtype, match the output norm if wanted, measure.

    started: `time.perf_counter()` at the start of the build. Raises `InfeasibleConstructionError` if a weight
    is NaN or infinite.
    """
    mlp = mlp.to(keys.dtype).requires_grad_(False)
    if norm_matched:
        match_output_norm(mlp, keys, values)
    if bad := [part for part, weight in mlp.named_parameters() if not weight.isfinite().all()]:
        raise InfeasibleConstructionError(
            f"'{name}' came to NaN or infinity in {', '.join(bad)}; expected keys and values of ordinary length: "
            f"found means of {float(keys.double().norm(dim=1).mean()):.3g} and "
            f"{float(values.double().norm(dim=1).mean()):.3g}"
        )
    seconds = time.perf_counter() - started
    mlp.report = report(
        name, mlp, keys, values, mapping, seconds=seconds, competitors=competitors, details=details
    )
    return mlp


@torch.no_grad()
def match_output_norm(mlp: FactMLP, keys: Tensor, values: Tensor) -> None:
    """Scale B (and its bias) in place so that the mean output norm on `keys` is the mean norm of `values`.

    Inside a mixture the length of the output weighs against the language expert.
    """
    factor = values.norm(dim=1).mean() / mlp(keys).norm(dim=1).mean()
    if torch.isfinite(factor) and factor > 0:
        for parameter in mlp.down.parameters():
            parameter.mul_(factor)
