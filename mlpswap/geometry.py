"""How well a table of values can be told apart (arXiv 2512.00207, sections 3 and B.1).

A value v_i is decodable if some output u has a larger score <u, v_i> than every other <u, v_j>. Its margin-optimal output is
the unit u with the largest min_j <u, v_i - v_j> / ||v_i - v_j||; that margin is rho_i, and the smallest rho_i of all values
is their decodability rho. Adding one vector to all values, or scaling them together, changes neither.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mlpswap.errors import EmbeddingsError, NonFiniteError, NotDecodableError
from mlpswap.min_norm import NEAR, separate

ROWS = 256  # solved together; memory is about ROWS (n + 70 d) numbers for each thread
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
    """The margin-optimal outputs of all values, exact up to `tolerance` (relative to each rho_i).

    Computed in float64 on the values' device, on the CPU with as many threads as torch uses. The last few tables
    are remembered by their content. Raises `NotDecodableError`, with the indices, for values that no output
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
    _check(values)
    lengths = values.double().norm(dim=1, keepdim=True)
    if not bool((lengths > 0).all()):
        raise EmbeddingsError("coherence needs values other than zero")
    unit, largest = values.double() / lengths, 0.0
    for rows in torch.arange(len(unit), device=unit.device).split(1024):
        cosines = (unit[rows] @ unit.T).abs_()
        cosines.scatter_(1, rows[:, None], 0.0)
        largest = max(largest, float(cosines.max()))
    return largest


_cache: OrderedDict[tuple, MarginOptimal] = OrderedDict()
_lock = threading.Lock()


@torch.no_grad()
def _margin_optimal(values: Tensor, tolerance: float) -> MarginOptimal:
    """As `margin_optimal_outputs`, with rho_i = 0 where it raises for the hull; shared, not to be changed."""
    _check(values)
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
    start = _linear_directions(centred)
    blocks = torch.arange(n, device=values.device).split(ROWS)

    def solve(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return separate(centred, rows, start[rows], tolerance)

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


def _linear_directions(centred: Tensor) -> Tensor:
    """Rows of V Cov^-1: the directions that a least-squares classifier would use, a good start."""
    covariance = centred.T @ centred / len(centred)
    diagonal = covariance.diagonal()
    diagonal += 1e-10 * diagonal.mean()
    return torch.linalg.solve(covariance, centred.T).T


def _check(values: Tensor) -> None:
    if values.ndim != 2 or 0 in values.shape:
        raise EmbeddingsError(f"values must be (n, d), one row at least: found shape {tuple(values.shape)}")
    if not bool(torch.isfinite(values).all()):
        rows = (~torch.isfinite(values)).any(dim=1).nonzero().flatten().tolist()
        raise NonFiniteError(f"values hold NaN or infinity in row {rows[0]}")


def _check_distinct(values: Tensor) -> None:
    _, group, counts = torch.unique(values, dim=0, return_inverse=True, return_counts=True)
    twins = (counts[group] > 1).nonzero().flatten().tolist()
    if twins:
        raise NotDecodableError("are equal to another value", tuple(twins))
