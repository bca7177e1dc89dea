"""For each row of a table, the direction that separates it best from all the others: Wolfe's method, many rows at once.

With the unit differences a_ij = (v_i - v_j) / ||v_i - v_j|| as atoms, the direction u_i with the largest min_j <a_ij, u> is
that of the point z_i of conv{a_ij}_j nearest to the origin, and the largest margin is ||z_i||. Wolfe's method (Mathematical
Programming 11, 1976) holds at most d + 1 atoms and the nearest point of their hull, and adds the atom that this point
separates worst. Here all rows take their steps together: one matrix product finds every row's worst atom, and one rank-one
update keeps every row's inverse. The (n, n, d) tensor of atoms is never formed.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from mlpswap.errors import NotDecodableError

SLOTS = 32  # atoms that a row can hold at first; doubled when a row needs more
REFRESHES = 4  # times that the inverses are computed anew, against the drift of rank-one updates
NEAR = 1e-6  # a hull that comes nearer to the origin holds it, as far as can be told
DEPENDENT = 1e-14  # Schur complement of a new atom that depends on those held


class Separation(NamedTuple):
    """For B rows: nearest points z_i = sum_j w_ij a_ij of their hulls, ||z_i||, the smallest margin of the direction z_i,
    and sum_j w_ij a_ij a_ij^T, the second moment of the atoms that hold z_i.
    """

    points: Float[Tensor, "B d"]
    upper: Float[Tensor, " B"]
    lower: Float[Tensor, " B"]
    moments: Float[Tensor, "B d d"]


def separate(
    values: Float[Tensor, "n d"],
    rows: Int[Tensor, " B"],
    start: Float[Tensor, "B d"],
    tolerance: float,
) -> Separation:
    """The directions that separate `rows` best from all other values.

    The largest possible margin lies between `upper` and `lower`. Their distance is at most `tolerance` of it, unless
    values differ by so little that rounding forbids it. `values` are distinct and float64, n at least 2; `start` holds
    directions that separate the rows well (any will do). Raises `NotDecodableError` for values whose distance vanishes in
    float64.
    """
    table = _Table(values, rows)
    moments = start.new_zeros(*start.shape, start.shape[1])
    everyone = torch.arange(len(rows), device=rows.device)
    points, upper, lower = start.clone(), start.new_zeros(len(rows)), start.new_zeros(len(rows))
    sets = _AtomSets.holding(table, everyone, table.worst(everyone, start)[1])
    for _ in range(REFRESHES):
        sets = _descend(table, sets, tolerance)
        factor, singular = sets.refresh()
        place = sets.place
        points[place], moments[place] = sets.nearest(), sets.moment()
        upper[place] = points[place].norm(dim=1)
        lower[place] = table.worst(place, points[place])[0] / upper[place].clamp(min=NEAR)
        unfinished = (lower[place] < (1 - tolerance) * upper[place]) & (upper[place] > NEAR) & ~singular
        if not bool(unfinished.any()):
            break
        sets = sets.take(unfinished)
        sets.invert(factor[unfinished])
    return Separation(points, upper, lower, moments)


class _Table:
    """The values, and for a block of B rows their distances from all values."""

    def __init__(self, values: Tensor, rows: Tensor):
        self.values, self.rows, self.own = values, rows, values[rows]
        distances = torch.cdist(self.own, values, compute_mode="donot_use_mm_for_euclid_dist")
        self.closeness = distances.scatter_(1, rows[:, None], 1.0).reciprocal_()  # (B, n)
        merged = self.closeness.isinf().any(dim=1)
        if bool(merged.any()):
            raise NotDecodableError(
                "differ from another value by less than float64 holds", tuple(rows[merged].tolist())
            )

    def worst(self, place: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """For rows at `place` of the block: the smallest <a_ij, point> over j, and its j."""
        right = (self.own[place] * points).sum(dim=1, keepdim=True)
        margins = torch.addmm(right, points, self.values.T, alpha=-1).mul_(self.closeness[place])
        margins.scatter_(1, self.rows[place][:, None], torch.inf)
        smallest, atom = margins.min(dim=1)
        return smallest, atom

    def atoms(self, place: Tensor, atom: Tensor) -> Tensor:
        return (self.own[place] - self.values[atom]) * self.closeness[place, atom][:, None]


@dataclass
class _AtomSets:
    """The atoms held by B rows in m slots; an empty slot has atom -1 and zeros."""

    place: Int[Tensor, " B"]  # of the row in its block
    atom: Int[Tensor, "B m"]  # j
    atoms: Float[Tensor, "B m d"]  # a_ij
    weights: Float[Tensor, "B m"]  # >= 0; of sum s: the point held is sum_j weights_j a_ij / s
    inverse: Float[Tensor, "B m m"]  # of A A^T + 1 1^T over the atoms held

    @classmethod
    def holding(cls, table: _Table, place: Tensor, atom: Tensor) -> "_AtomSets":
        """One atom each."""
        count, d = len(place), table.own.shape[1]
        slots = min(SLOTS, d + 1)
        made = cls(
            place,
            torch.full((count, slots), -1, device=place.device),
            table.own.new_zeros(count, slots, d),
            table.own.new_zeros(count, slots),
            table.own.new_zeros(count, slots, slots),
        )
        made.atom[:, 0], made.atoms[:, 0], made.inverse[:, 0, 0] = atom, table.atoms(place, atom), 0.5
        return made

    def take(self, chosen: Tensor) -> "_AtomSets":
        return _AtomSets(*(getattr(self, field.name)[chosen] for field in fields(self)))

    @staticmethod
    def concatenated(parts: list["_AtomSets"]) -> "_AtomSets":
        slots = max(part.atom.shape[1] for part in parts)
        for part in parts:
            part.grow(slots)
        return _AtomSets(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(_AtomSets)))

    def grow(self, slots: int) -> None:
        more = slots - self.atom.shape[1]
        if more > 0:
            self.atom = pad(self.atom, (0, more), value=-1)
            self.atoms = pad(self.atoms, (0, 0, 0, more))
            self.weights = pad(self.weights, (0, more))
            self.inverse = pad(self.inverse, (0, more, 0, more))

    def refresh(self) -> tuple[Tensor, Tensor]:
        """Weights from the atoms alone, free of the rounding of earlier updates.

        Returns the Cholesky factors (B, m, m), and which rows have none, since their atoms nearly depend on each other:
        these keep the weights that they have.
        """
        held = (self.atom >= 0).to(self.atoms.dtype)
        matrix = self.atoms @ self.atoms.mT + held[:, :, None] * held[:, None, :]
        matrix.diagonal(dim1=1, dim2=2).add_(1 - held)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        singular = failed > 0
        solved = torch.cholesky_solve(held[:, :, None], factor).squeeze(2).clamp(min=0)
        self.weights = torch.where(singular[:, None], self.weights, solved)
        return factor, singular

    def invert(self, factor: Tensor) -> None:
        self.inverse = torch.cholesky_inverse(factor)
        self.inverse.diagonal(dim1=1, dim2=2).sub_((self.atom < 0).to(factor.dtype))

    def nearest(self) -> Tensor:
        """The points held, (B, d)."""
        weights = self.weights / self.weights.sum(dim=1, keepdim=True)
        return torch.bmm(weights[:, None, :], self.atoms).squeeze(1)

    def moment(self) -> Tensor:
        """The second moment of the atoms held, (B, d, d)."""
        weights = self.weights / self.weights.sum(dim=1, keepdim=True)
        return (self.atoms * weights[:, :, None]).mT @ self.atoms


def _descend(table: _Table, sets: _AtomSets, tolerance: float) -> _AtomSets:
    """Step until no row finds an atom that its point separates worse than those it holds."""
    finished: list[_AtomSets] = []
    done = torch.zeros(len(sets.place), dtype=torch.bool, device=sets.place.device)
    for _ in range(20 * (sets.atoms.shape[2] + 1)):
        done = done | _step(table, sets, tolerance)
        if int(done.sum()) * 4 >= len(done):
            finished.append(sets.take(done))
            sets, done = sets.take(~done), done[~done]
            if not len(done):
                break
    return _AtomSets.concatenated([*finished, sets])


def _step(table: _Table, sets: _AtomSets, tolerance: float) -> Tensor:
    """Add or drop one atom in every row; True for rows that are at their nearest point."""
    everyone = torch.arange(len(sets.place), device=sets.place.device)
    held = sets.atom >= 0
    if bool(held.all(dim=1).any()):
        sets.grow(min(2 * held.shape[1], sets.atoms.shape[2] + 1))
        held = sets.atom >= 0
    wanted = sets.inverse.sum(dim=2)  # weights of the nearest point of the affine hull
    negative = held & (wanted <= 0)
    drops = negative.any(dim=1)
    ratio = torch.where(negative, sets.weights / (sets.weights - wanted), torch.inf)
    length, slot = ratio.min(dim=1)
    sets.weights = sets.weights + length.clamp(max=1)[:, None] * (wanted - sets.weights)

    adding = (~drops).nonzero().flatten()
    points = sets.nearest()[adding]
    smallest, atom = table.worst(sets.place[adding], points)
    square = points.square().sum(dim=1)
    new = torch.zeros_like(sets.atoms[:, 0])  # (B, d)
    new[adding] = table.atoms(sets.place[adding], atom)
    known = (torch.bmm(sets.atoms, new[:, :, None]).squeeze(2) + 1) * (held & ~drops[:, None])
    moved = torch.bmm(sets.inverse, known[:, :, None]).squeeze(2)
    schur = 2 - (known * moved).sum(dim=1)
    slot = torch.where(drops, slot, (~held).to(torch.uint8).argmax(dim=1))
    at_end = torch.zeros_like(drops)
    at_end[adding] = (
        (smallest >= (1 - tolerance) * square)
        | (square < NEAR**2)
        | (sets.atom[adding] == atom[:, None]).any(dim=1)
        | (schur[adding] < DEPENDENT)
        | held[adding].all(dim=1)
    )

    # One rank-one update: the bordered inverse where an atom comes, a Schur complement where one goes.
    leaving = sets.inverse[everyone, slot]  # (B, m)
    column = torch.where(drops[:, None], leaving, moved.scatter(1, slot[:, None], -1.0))
    pivot = torch.where(drops, -leaving.gather(1, slot[:, None]).squeeze(1), schur)
    factor = torch.where(at_end, 0.0, 1 / pivot)[:, None]
    sets.inverse.baddbmm_((factor * column)[:, :, None], column[:, None, :])

    dropping = drops.nonzero().flatten()
    gone = slot[dropping]
    sets.inverse[dropping, gone] = 0
    sets.inverse[dropping, :, gone] = 0
    sets.atoms[dropping, gone] = 0
    sets.atom[dropping, gone] = -1
    sets.weights[dropping, gone] = 0
    coming = (~drops & ~at_end).nonzero().flatten()
    sets.atoms[coming, slot[coming]] = new[coming]
    sets.atom[coming, slot[coming]] = atom[~at_end[adding]]
    return at_end
