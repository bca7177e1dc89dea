"""Which neurons belong to which label: a 0/1 matrix (d, C) whose columns sum to S and overlap as little as possible.

Two labels should share at most one neuron, which is possible only while C S (S - 1) <= d (d - 1), and all neurons
should have equally many labels. Where algebra gives such a matrix it is used, otherwise a greedy filling with swaps.

Source: sequence-memorisation challenge, label -> neuron allocation; the ways to find it are this project's.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import count

import torch
from jaxtyping import Bool
from torch import Tensor

from mlpswap.errors import InfeasibleConstructionError
from mlpswap.randomness import generator

STEPS = 20_000  # of the backtracking for a ruler
ROUNDS = 20  # of swaps over all columns


@lru_cache(maxsize=64)
def allocation(neurons: int, labels: int, size: int) -> Bool[Tensor, "d C"]:
    """The matrix for S = `size`; the same one at every call, so that trials must permute it.

    Raises `InfeasibleConstructionError` unless 1 <= S <= d.
    """
    if not 1 <= size <= neurons:
        raise InfeasibleConstructionError(
            f"{size} neurons for each label: expected 1 to {neurons}, as many as there are"
        )
    columns = plane_lines(neurons, labels, size) or ruler_shifts(neurons, labels, size)
    if columns is None:
        return greedy(neurons, labels, size)
    matrix = torch.zeros(neurons, labels, dtype=torch.bool)
    for label, members in enumerate(columns):
        matrix[members, label] = True
    return matrix


def permuted(matrix: Bool[Tensor, "d C"], draw: torch.Generator) -> Bool[Tensor, "d C"]:
    """The allocation of one trial: rows and columns in random order."""
    rows = torch.randperm(matrix.shape[0], generator=draw)
    return matrix[rows][:, torch.randperm(matrix.shape[1], generator=draw)]


def excess(matrix: Bool[Tensor, "d C"]) -> int:
    """Overlap beyond one, summed over pairs of columns."""
    overlap = matrix.T.long() @ matrix.long()
    return int((overlap - 1).clamp(min=0).triu(1).sum())


def plane_lines(neurons: int, labels: int, size: int) -> list[list[int]] | None:
    """Lines of the affine plane of order S over d = S^2 points, one parallel class after the other.

    S must be a prime or a power of two: other fields are not worth their arithmetic here.
    """
    if neurons != size**2 or labels > size**2 + size or (times := multiplication(size)) is None:
        return None
    field = range(size)
    slopes = [[[x * size + add(times(m, x), b, size) for x in field] for b in field] for m in field]
    upright = [[x * size + y for y in field] for x in field]
    return [line for lines in (*slopes, upright) for line in lines][:labels]


def add(x: int, y: int, order: int) -> int:
    """Addition in the field of a prime or a power of two."""
    return x ^ y if order & (order - 1) == 0 else (x + y) % order


def multiplication(order: int) -> Callable[[int, int], int] | None:
    """Multiplication in the field of a prime or a power of two; None for any other order."""
    if order > 1 and all(order % factor for factor in range(2, int(order**0.5) + 1)):
        return lambda x, y: x * y % order
    if order < 4 or order & (order - 1):
        return None

    def times(x: int, y: int, modulus: int) -> int:
        product = 0
        while y:
            if y & 1:
                product ^= x
            x, y = x << 1, y >> 1
            if x & order:
                x ^= modulus
        return product

    def generates(modulus: int) -> bool:
        """Whether the powers of x run through all elements but zero, which makes the ring a field."""
        power = 1
        for exponent in count(1):
            power = times(power, 2, modulus)
            if power <= 1 or exponent >= order:
                return power == 1 and exponent == order - 1
        raise AssertionError

    modulus = next(each for each in range(order + 1, 2 * order) if generates(each))
    return lambda x, y: times(x, y, modulus)


def ruler_shifts(neurons: int, labels: int, size: int) -> list[list[int]] | None:
    """Cyclic shifts of S residues mod d whose differences are all distinct; None where none is found."""
    if size * (size - 1) > neurons - 1 or labels > neurons:
        return None
    marks, used, steps = [0], {0}, 0

    def extend(start: int) -> bool:
        nonlocal steps, used
        if len(marks) == size:
            return True
        for mark in range(start, neurons):
            steps += 1
            if steps > STEPS:
                return False
            new = {sign * (mark - other) % neurons for other in marks for sign in (1, -1)}
            if len(new) == 2 * len(marks) and not new & used:
                marks.append(mark)
                used |= new
                if extend(mark + 1):
                    return True
                marks.pop()
                used -= new
        return False

    if not extend(1):
        return None
    shifts = [label * neurons // labels for label in range(labels)]
    return [[(mark + shift) % neurons for mark in marks] for shift in shifts]


def greedy(neurons: int, labels: int, size: int) -> Bool[Tensor, "d C"]:
    """Fill label after label with the neurons that met its others least, then swap inside columns until none helps."""
    draw = generator(0, "sequence allocation", neurons, labels, size)
    matrix = torch.zeros(neurons, labels)
    met = torch.zeros(neurons, neurons)
    load = torch.zeros(neurons)
    for label in range(labels):
        chosen: list[int] = []
        for _ in range(size):
            # Lexicographic: labels already shared with the chosen ones, then load, then chance.
            cost = met[chosen].sum(0) * 1e4 + load + torch.rand(neurons, generator=draw)
            cost[chosen] = torch.inf
            chosen.append(int(cost.argmin()))
            met[chosen[-1], chosen[:-1]] += 1
            met[chosen[:-1], chosen[-1]] += 1
        load[chosen] += 1
        matrix[chosen, label] = 1
    for _ in range(ROUNDS):
        if not any([_swapped(matrix, label) for label in range(labels)]):
            break
    return matrix.bool()


def _swapped(matrix: Tensor, label: int) -> bool:
    """Make the best swap inside one column, in place, if any lowers (excess, variance of the loads)."""
    inside, outside = matrix[:, label].nonzero()[:, 0], (matrix[:, label] == 0).nonzero()[:, 0]
    if not len(outside):
        return False
    overlap = matrix[:, label] @ matrix
    overlap[label] = 0
    others = matrix.clone()
    others[:, label] = 0
    without = (overlap - others[inside])[:, None]  # (S, 1, C)
    after = (without + others[outside] - 1).clamp(min=0).sum(-1)  # (S, d - S)
    load = matrix.sum(1)
    rise = load[outside] - load[inside][:, None] + 1  # half the change of the sum of squares
    cost = (after - (overlap - 1).clamp(min=0).sum()) * 1e4 + rise
    best = int(cost.argmin())
    if cost.flatten()[best] >= 0:
        return False
    matrix[inside[best // len(outside)], label] = 0
    matrix[outside[best % len(outside)], label] = 1
    return True
