"""Associative stores, and how many memories they hold before the others drown the one that is asked for.

A store of M memories (k_i, v_i), keys uniform on the unit sphere and values of equal length, answers a query q with
y = sum_i w_i(q) v_i. Asked for k_i, the signal is w_i v_i and the rest interference. With random values

    ISR_i^2 = ||y - w_i v_i||^2 / ||w_i v_i||^2 = sum_{j != i} w_j^2 / w_i^2,

the squared interference-to-signal ratio; values are never needed to measure it. Reported is the root of its mean over i,
and the capacity of a store is the M at which this is 1.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.config import build_options, option
from mlpswap.constructions.base import ACTIVATIONS
from mlpswap.embeddings import spherical
from mlpswap.errors import ConfigError

CHUNK = 65536  # keys drawn at a time; a store's memory is never in memory as a whole
QUERIES = 64


def write_memories(
    weight: Float[Tensor, "d_v d"], keys: Float[Tensor, "n d"], values: Float[Tensor, "n d_v"]
) -> Float[Tensor, "d_v d"]:
    """The outer-product store with n more memories: W + sum_i v_i k_i^T."""
    return weight + values.T @ keys


def written_values(gradients: Float[Tensor, "n d_v"], learning_rate: float) -> Float[Tensor, "n d_v"]:
    """What a step of gradient descent on a linear layer y = W x writes under the keys x_i: -learning_rate dL/dy_i.

    dL/dW = sum_i dL/dy_i x_i^T, so that the step is `write_memories(W, x, written_values(dL/dy, learning_rate))`: training
    a linear layer and filling an outer-product store are one and the same.
    """
    return -learning_rate * gradients


@dataclass(frozen=True)
class Store(ABC):
    """One kind of store, with its options as fields."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Name and options, as figures show them."""

    @abstractmethod
    def predicted(self, memories: int, d: int) -> float:
        """The interference-to-signal ratio of M memories with keys of width d."""

    @abstractmethod
    def capacity(self, d: int, *, gaussian: bool = False) -> float:
        """Memories at which the predicted ratio is 1, for keys on the sphere.

        gaussian: with similarities N(0, 1/d), the limit of wide keys, instead of their exact distribution.
        """

    @abstractmethod
    def measured(
        self, memories: Sequence[int], d: int, generator: torch.Generator, queries: int = QUERIES
    ) -> list[float]:
        """The ratio, root mean square over `queries` of the memories, at each of the counts `memories`.

        All counts are of one growing store. Memory: about CHUNK (d + queries) numbers, however many memories.
        """

    def parameters(self, memories: int, d: int) -> int:
        """Numbers held, with values of the keys' width: a matrix here, one key and one value each elsewhere."""
        return d * d


@dataclass(frozen=True)
class KernelStore(Store):
    """A store whose weights depend on the similarities s_i = <k_i, q> alone: w_i = weight(s_i)."""

    @abstractmethod
    def weight(self, similarity: Tensor, d: int) -> Tensor:
        """w(s), up to a factor that all memories share."""

    def bends(self, d: int) -> list[float]:
        """Similarities at which the integral of w^2 should be split: kinks, and peaks of the integrand."""
        return [0.0]

    def predicted(self, memories: int, d: int) -> float:
        return math.sqrt((memories - 1) / self.capacity(d))

    def capacity(self, d: int, *, gaussian: bool = False) -> float:
        """w(1)^2 / E[w(s)^2]."""

        def square(s: float) -> float:
            return float(self.weight(torch.tensor(s, dtype=torch.float64), d).square())

        signal = square(1.0)
        try:
            mean = mean_over_similarities(square, d, self.bends(d), gaussian=gaussian)
        except OverflowError:
            mean = math.inf
        if not 0 < signal < math.inf:
            raise ConfigError(
                f"store '{self.label}': its signal, the weight of a memory asked for, is 0 or overflows"
            )
        return signal / mean if mean > 0 else math.inf  # less than float64 can hold

    @torch.no_grad()
    def measured(
        self, memories: Sequence[int], d: int, generator: torch.Generator, queries: int = QUERIES
    ) -> list[float]:
        found: dict[int, float] = {}
        asked = spherical(0, d, generator)
        total = torch.zeros(0, dtype=torch.float64)
        signal = float(self.weight(torch.ones(1), d)) ** 2
        for begin, keys, stops in _growing(memories, d, generator):
            if begin == 0:
                asked = keys[:queries]
                total = torch.zeros(len(asked), dtype=torch.float64, device=keys.device)
            squares = self.weight(asked @ keys.T, d).square_()  # (Q, chunk)
            if begin == 0:
                squares.fill_diagonal_(0.0)  # the signal itself
            start = 0
            for stop in stops:
                total += squares[:, start : stop - begin].sum(dim=1, dtype=torch.float64)
                start = stop - begin
                if stop in memories:
                    found[stop] = math.sqrt(float(total[:stop].mean()) / signal)
        return [found[count] for count in memories]


@dataclass(frozen=True)
class OuterProductStore(KernelStore):
    """W = sum_i v_i k_i^T: weights w(s) = s, ratio sqrt((M - 1) / d)."""

    label = "outer product"

    def weight(self, similarity: Tensor, d: int) -> Tensor:
        return similarity


@dataclass(frozen=True)
class MLPStore(KernelStore):
    """One neuron for each memory, y = V^T act(K q - shift)^power: w(s) = act(s - shift)^power.

    The widely quoted 2,700 memories at d = 64 belong to relu^2: 2 d (d + 2) / 3 = 2,816 exactly, 2 d^2 / 3 = 2,731 for
    Gaussian similarities. relu itself holds 2 d, the square alone d (d + 2) / 3.
    """

    activation: str = option("relu", f"one of {', '.join(ACTIVATIONS)}")
    power: int = option(2, "power to which the activation is raised")
    shift: float = option(0.0, "subtracted from similarities, which are at most 1")

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ConfigError(
                f"unknown activation '{self.activation}': expected one of {', '.join(ACTIVATIONS)}"
            )
        if self.power < 1:
            raise ConfigError(f"power = {self.power}: expected at least 1")
        if not -1 <= self.shift < 1:
            raise ConfigError(f"shift = {self.shift}: expected at least -1 and less than 1")

    @property
    def label(self) -> str:
        shift = f" - {self.shift:g}" if self.shift > 0 else f" + {-self.shift:g}" if self.shift < 0 else ""
        power = f"^{self.power}" if self.power != 1 else ""
        return f"MLP, {self.activation}(s{shift}){power}"

    def weight(self, similarity: Tensor, d: int) -> Tensor:
        return ACTIVATIONS[self.activation](similarity - self.shift).pow(self.power)

    def bends(self, d: int) -> list[float]:
        return [self.shift]

    def parameters(self, memories: int, d: int) -> int:
        return 2 * memories * d


@dataclass(frozen=True)
class AttentionStore(KernelStore):
    """softmax(beta K q) V: w(s) = exp(beta s), since the normaliser divides signal and interference alike.

    Capacity is about exp(2 beta - 2 beta^2 / d), largest at beta = d / 2.
    """

    beta: float | None = option(
        None, "inverse temperature; null: sqrt(d), which is 1/sqrt(d) for keys of norm sqrt(d)"
    )

    def __post_init__(self) -> None:
        if self.beta is not None and not self.beta > 0:
            raise ConfigError(f"beta = {self.beta}: expected a positive number, or null for sqrt(d)")

    @property
    def label(self) -> str:
        return "attention" if self.beta is None else f"attention, beta {self.beta:g}"

    def temperature(self, d: int) -> float:
        return math.sqrt(d) if self.beta is None else self.beta

    def weight(self, similarity: Tensor, d: int) -> Tensor:
        return ((similarity - 1) * self.temperature(d)).exp()  # 1 at most: no overflow

    def bends(self, d: int) -> list[float]:
        """Where exp(2 beta s) (1 - s^2)^((d - 3) / 2) peaks."""
        pull, width = 2 * self.temperature(d), max(d - 3, 0)
        return [2 * pull / (width + math.hypot(width, 2 * pull))]

    def capacity(self, d: int, *, gaussian: bool = False) -> float:
        if not gaussian:
            return super().capacity(d)
        beta = self.temperature(d)
        exponent = 2 * beta - 2 * (beta * beta) / d  # inf where beta**2 would raise
        return math.exp(exponent) if exponent < 700 else math.inf

    def parameters(self, memories: int, d: int) -> int:
        return 2 * memories * d


@dataclass(frozen=True)
class LeastSquaresStore(Store):
    """W = V^T pinv(K)^T, the linear store of least squared error: weights are a row of the projector P = K pinv(K).

    ISR_i^2 = 1 / P_ii - 1, since P P = P; the mean of P_ii is d / M. Nothing interferes up to M = d.
    """

    label = "least squares"

    def predicted(self, memories: int, d: int) -> float:
        return math.sqrt(max(memories / d - 1, 0.0))

    def capacity(self, d: int, *, gaussian: bool = False) -> float:
        return 2.0 * d

    @torch.no_grad()
    def measured(
        self, memories: Sequence[int], d: int, generator: torch.Generator, queries: int = QUERIES
    ) -> list[float]:
        found: dict[int, float] = {}
        asked = triangle = torch.zeros(0, d, dtype=torch.float64)
        for begin, keys, stops in _growing(memories, d, generator):
            rows, start = keys.double(), 0
            if begin == 0:
                asked = rows[:queries]
                triangle = rows[:0]
            for stop in stops:
                # R^T R = K^T K, from blocks of K: the square K^T K itself would lose half of the digits near M = d.
                triangle = torch.linalg.qr(torch.cat([triangle, rows[start : stop - begin]]), mode="r").R
                start = stop - begin
                if stop in memories:
                    found[stop] = _ratio_of_projection(triangle, asked[:stop], stop)
        return [found[count] for count in memories]


def _ratio_of_projection(triangle: Tensor, asked: Tensor, memories: int) -> float:
    if memories <= triangle.shape[1]:
        return 0.0  # independent keys, with probability one: P = I
    half = torch.linalg.solve_triangular(triangle.T, asked.T, upper=False)
    leverage = half.square().sum(dim=0)  # P_ii
    return math.sqrt(float((1 / leverage - 1).clamp(min=0).mean()))


STORES: dict[str, type[Store]] = {
    "outer_product": OuterProductStore,
    "least_squares": LeastSquaresStore,
    "mlp": MLPStore,
    "attention": AttentionStore,
}


def make_stores(entries: Sequence[Mapping[str, Any]]) -> list[Store]:
    """The stores that a config describes, as in {name: mlp, power: 3}. Raises `ConfigError`."""
    made = []
    for number, entry in enumerate(entries):
        place, name = f"stores[{number}]", entry.get("name")
        if not isinstance(name, str) or name not in STORES:
            raise ConfigError(f"{place}.name = {name}: expected one of {', '.join(STORES)}")
        options = {key: value for key, value in entry.items() if key != "name"}
        made.append(build_options(STORES[name], options, place))
    return made


def mean_over_similarities(
    function: Callable[[float], float], d: int, bends: Sequence[float], *, gaussian: bool = False
) -> float:
    """E[function(s)] for s = <k, q> with k uniform on the sphere, density proportional to (1 - s^2)^((d - 3) / 2).

    By adaptive quadrature, split at `bends`. gaussian: s ~ N(0, 1/d) instead. Raises `ConfigError` for d < 2.
    """
    from scipy.integrate import quad
    from scipy.special import gammaln

    if d < 2:
        raise ConfigError(f"similarities have a density from two dimensions on: found d = {d}")
    if gaussian:
        scale = math.sqrt(d / (2 * math.pi))
        reach = 1 + 40 / math.sqrt(d)
        ends = (-reach, reach)
    else:
        scale = math.exp(gammaln(d / 2) - gammaln((d - 1) / 2)) / math.sqrt(math.pi)
        ends = (-1.0, 1.0)

    def integrand(s: float) -> float:
        density = math.exp(-d * s * s / 2) if gaussian else (1 - s * s) ** ((d - 3) / 2)
        return scale * density * function(s)

    cuts = sorted({ends[0], ends[1], *(bend for bend in bends if ends[0] < bend < ends[1])})
    return math.fsum(
        quad(integrand, low, high, limit=500, epsabs=0, epsrel=1e-8)[0]
        for low, high in zip(cuts, cuts[1:], strict=False)
    )


def _growing(
    memories: Sequence[int], d: int, generator: torch.Generator
) -> Iterator[tuple[int, Tensor, list[int]]]:
    """Chunks of one growing store: the index of the first key, keys (c, d), and the counts at which to pause.

    These are the ones of `memories` that fall into the chunk, and the chunk's end.
    """
    last = max(memories)
    for begin in range(0, last, CHUNK):
        end = min(begin + CHUNK, last)
        stops = sorted({count for count in memories if begin < count < end} | {end})
        yield begin, spherical(end - begin, d, generator), stops
