"""How well a table of values can be told apart (arXiv 2512.00207, sections 3 and B.1).

A value v_i is decodable if some output u has a larger score <u, v_i> than every other <u, v_j>. Its margin-optimal output is
the unit u with the largest min_j <u, v_i - v_j> / ||v_i - v_j||; that margin is rho_i, and the smallest rho_i of all values
is their decodability rho. Adding one vector to all values, or scaling them together, changes neither.
"""

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.embeddings import check_table
from mlpswap.errors import EmbeddingsError, NotDecodableError
from mlpswap.min_norm import NEAR, separate
from mlpswap.whitening import whitening

ROWS = 256  # solved together on a CPU, eight times as many elsewhere; memory: about ROWS (2 n + d^2) numbers a thread
CACHED = 4  # tables of values whose outputs are kept in memory


@dataclass(frozen=True)
class MarginOptimal:
    """`outputs` (n, d): the unit rows u_i. `rho` (n,): their margins, infinite for a single value.

    `gap` is a certificate: no output has a margin larger than rho_i + gap, for any i. All float64.
    """

    outputs: Float[Tensor, "n d"]
    rho: Float[Tensor, " n"]
    gap: float


def margin_optimal_outputs(values: Float[Tensor, "n d"], *, tolerance: float = 1e-9) -> MarginOptimal:
    """The margin-optimal outputs of all values, exact up to `tolerance` (relative to each rho_i) or to rounding.

    Computed in float64 on the values' device, on the CPU with as many threads as torch uses. The last few tables
    are remembered by their content. Takes 1 ms a value at (1024, 64), 2 at (4096, 64) or (1024, 128), 6 at (1024, 256),
    on one core: as long as a compiled non-negative least-squares solver on working sets, value by value, and a seventh
    of what it takes on all differences at n = 4096. Raises `NotDecodableError`, with the indices, for values that no output
    decodes (those inside the convex hull of the others) and for equal values, `NonFiniteError` for NaN or
    infinity, and `EmbeddingsError` for an empty table.
    """
    found = _margin_optimal(values, tolerance)
    lost = (found.rho <= 0).nonzero().flatten().tolist()
    if lost:
        raise NotDecodableError("lie in the convex hull of the others: no output decodes them", tuple(lost))
    return MarginOptimal(found.outputs.clone(), found.rho.clone(), found.gap)


def decodability(values: Float[Tensor, "n d"]) -> float:
    """rho = min_i rho_i, 0 if some value is not decodable. (The text of the paper once says maximum.)

    Raises as `margin_optimal_outputs` does for equal, non-finite or no values.
    """
    return float(_margin_optimal(values, 1e-9).rho.min())


@torch.no_grad()
def coherence(values: Float[Tensor, "n d"]) -> float:
    """max_{i != j} |cos(v_i, v_j)|; 0 for a single value.

    Raises `EmbeddingsError` for zero values and for an empty table, `NonFiniteError` for NaN or infinity.
    """
    check_table(values, "the table of values")
    lengths = values.double().norm(dim=1, keepdim=True)
    if not bool((lengths > 0).all()):
        raise EmbeddingsError("coherence needs values other than zero")
    unit, largest = values.double() / lengths, 0.0
    for rows in torch.arange(len(unit), device=unit.device).split(1024):
        cosines = (unit[rows] @ unit.T).abs_()
        cosines.scatter_(1, rows[:, None], 0.0)
        largest = max(largest, float(cosines.max()))
    return largest


@dataclass(frozen=True)
class BestWhitening:
    """`transform` (d, d): the matrix W by which rows of values are multiplied. `rho`: the decodability of V W."""

    alpha: float
    transform: Float[Tensor, "d d"]
    rho: float


def best_whitening(
    values: Float[Tensor, "n d"], alphas: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)
) -> BestWhitening:
    """The whitening, among the strengths `alphas`, after which the values have the largest decodability.

    Section 3.3 of the paper asks for the best affine transform: see `mlpswap.affine`. This function searches the one
    family `mlpswap.whitening` (centred), in which partial whitening often beats full whitening. alpha = 0 is always
    worth a place among `alphas`: rho then never falls. Raises as `margin_optimal_outputs` for equal values.
    """
    found = []
    for alpha in alphas:
        transform = whitening(values, alpha, center=True)
        found.append(BestWhitening(alpha, transform, decodability(values.double() @ transform)))
    return max(found, key=lambda each: each.rho)


def jl_code_width(rho: float, n: int, failure: float = 0.5) -> int:
    """A code width m with which random projections keep n values of decodability `rho` decodable.

    For D (d, m) with entries N(0, 1/m), codes D^T u_i and decoder D (arXiv 2512.00207, section 4: m = O(rho^-2 log n)).
    The constants here follow from a short proof of our own. For unit u, a with <u, a> = rho the sign of <D^T u, D^T a>
    is that of (1 + rho) X - (1 - rho) Y, with X and Y independent and chi-squared with m degrees of freedom; Chernoff's
    bound gives P(<= 0) <= (1 - rho^2)^(m / 2). Over all n (n - 1) pairs, and with margins of at least rho,

        m = 2 ln(n (n - 1) / failure) / -ln(1 - rho^2)

    suffices with a probability of at least 1 - failure. Real tables need about a third less. Raises `EmbeddingsError` for
    rho outside (0, 1] and failure outside (0, 1).
    """
    if not 0 < rho <= 1 or not 0 < failure < 1:
        raise EmbeddingsError(f"expected 0 < rho <= 1 and 0 < failure < 1: found {rho} and {failure}")
    if n < 2 or rho == 1:
        return 1
    return math.ceil(2 * math.log(n * (n - 1) / failure) / -math.log1p(-rho * rho))


_cache: OrderedDict[tuple, MarginOptimal] = OrderedDict()
_lock = threading.Lock()


@torch.no_grad()
def _margin_optimal(values: Tensor, tolerance: float) -> MarginOptimal:
    """As `margin_optimal_outputs`, with rho_i = 0 where it raises for the hull; shared, not to be changed."""
    check_table(values, "the table of values")
    _check_distinct(values)
    exact = values.detach().double().contiguous()
    content = hashlib.sha256(exact.cpu().numpy().tobytes()).hexdigest()
    key = (content, exact.shape, exact.device, tolerance)
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    found = _solve(exact, tolerance)
    with _lock:
        _cache[key] = found
        while len(_cache) > CACHED:
            _cache.popitem(last=False)
    return found


def _solve(values: Tensor, tolerance: float) -> MarginOptimal:
    n, d = values.shape
    if n == 1:
        length = values.norm()
        output = values / length if length > 0 else torch.eye(1, d, dtype=values.dtype, device=values.device)
        return MarginOptimal(output, torch.full_like(values[:, 0], torch.inf), 0.0)
    # Only differences count. A common scale keeps their squares in range.
    centred = values - values.mean(dim=0)
    centred = centred / centred.abs().amax()
    start = linear_directions(centred)
    blocks = torch.arange(n, device=values.device).split(ROWS if values.device.type == "cpu" else 8 * ROWS)

    def solve(rows: Tensor) -> tuple[Tensor, ...]:
        return separate(centred, rows, start[rows], tolerance)[:3]

    if values.device.type == "cpu":
        with _one_thread_each() as workers, ThreadPoolExecutor(min(workers, len(blocks))) as pool:
            parts = list(pool.map(solve, blocks))
    else:
        parts = [solve(rows) for rows in blocks]
    points, upper, lower = (torch.cat(part) for part in zip(*parts, strict=True))
    lost = (upper <= NEAR) | (lower <= 0)
    outputs = points / upper.clamp(min=NEAR)[:, None]
    rho = torch.where(lost, 0.0, lower)
    return MarginOptimal(outputs, rho, float((upper - lower.clamp(min=0)).max()))


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """For as many threads as torch uses: each computes alone, since two that share small steps wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def linear_directions(centred: Tensor) -> Tensor:
    """Rows of V Cov^-1: the directions that a least-squares classifier would use, a good start."""
    covariance = centred.T @ centred / len(centred)
    diagonal = covariance.diagonal()
    diagonal += 1e-10 * diagonal.mean()
    return torch.linalg.solve(covariance, centred.T).T


def _check_distinct(values: Tensor) -> None:
    _, group, counts = torch.unique(values, dim=0, return_inverse=True, return_counts=True)
    twins = (counts[group] > 1).nonzero().flatten().tolist()
    if twins:
        raise NotDecodableError("are equal to another value", tuple(twins))
