"""Margin projection: the smallest change of outputs with which every wanted row wins by a margin.

Least squares asks each output for its target itself, though a fact is stored as soon as its row wins. Here fact i only
asks for

    y in C_i = {y : <y, n_ij> >= gamma for every row j that must lose},   n_ij = (v_f(i) - r_j) / ||v_f(i) - r_j||

 where r_j are the other values and the competitors. An output inside its C_i is its own target, so that a fit spends
nothing on facts that it stores already.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from mlpswap.constructions.readout import RIDGE

SWEEPS = 3
MOMENTUM = 0.95
CHUNK = 2**20  # numbers in a block of normals or scores: some MiB, which stay near the processor
LARGE = 2**22  # scores (F x rows) above which shortlists are refreshed only every few rounds
REFRESH_EVERY = 5


@dataclass(frozen=True)
class Shortlist:
    """For each fact the wrong rows that score highest: a projection looks at no others."""

    rows: Int[Tensor, "F k"]
    distances: Float[Tensor, "F k"]  # from the right row; inf for a row that equals it and cannot lose
    stored: int  # facts whose right row scores highest of all


class MarginSets:
    """The sets C_i of a fact set, in units in which outputs have a length of about 1.

    `table` holds values, then competitors, less their mean (only differences count) and divided by `length`, the mean
    length of the values that is left.
    """

    def __init__(
        self,
        values: Float[Tensor, "n_v d"],
        mapping: Int[Tensor, " F"],
        competitors: Float[Tensor, "n_c d"],
        *,
        gamma: float,
        shortlist: int = 16,
        dtype: torch.dtype = torch.float32,
    ):
        rows = torch.cat([values, competitors]).double()
        if len(rows) > 1:
            rows -= rows.mean(dim=0)
        length = rows[: len(values)].norm(dim=1).mean()
        self.length = length if length > 0 else torch.ones_like(length)
        self.table = (rows / self.length).to(dtype)
        self.mapping = mapping
        self.gamma = gamma
        self.size = min(shortlist, len(self.table) - 1)
        self.refresh_every = REFRESH_EVERY if len(mapping) * len(self.table) > LARGE else 1

    @property
    def wanted(self) -> Float[Tensor, "F d"]:
        """The right row of each fact."""
        return self.table[self.mapping]

    def shortlist(self, y: Float[Tensor, "F d"]) -> Shortlist:
        """Compare each output with all rows."""
        rows, distances, stored = [], [], 0
        for facts in self._chunks(len(self.table)):
            wanted = self.mapping[facts, None]  # (chunk, 1)
            scores = y[facts] @ self.table.T  # (chunk, rows)
            right = scores.gather(1, wanted)
            highest = scores.scatter_(1, wanted, float("-inf")).topk(self.size, dim=1)
            stored += int((right > highest.values).all(dim=1).sum())
            rows.append(highest.indices)
            near = embedding(highest.indices, self.table)  # (chunk, k, d)
            apart = (embedding(wanted, self.table) - near).norm(dim=2)
            distances.append(apart.masked_fill_(apart == 0, float("inf")))
        return Shortlist(torch.cat(rows), torch.cat(distances), stored)

    def project(
        self, y: Float[Tensor, "F d"], shortlist: Shortlist, *, sweeps: int, relaxation: float = 1.5
    ) -> Float[Tensor, "F d"]:
        """Nearly the nearest point of each C_i: `sweeps` steps onto the half-space that is violated most, each
        longer than needed by the factor `relaxation` (Kaczmarz). Rows equal to the right one are passed over.
        """
        projected = y.clone()
        for facts in self._chunks(max(self.size, 1) * y.shape[1]):
            right, near = (
                embedding(rows, self.table) for rows in (self.mapping[facts], shortlist.rows[facts])
            )  # (chunk, d), (chunk, k, d)
            distances = shortlist.distances[facts]
            z = projected[facts]  # a view
            each = torch.arange(len(z), device=y.device)
            for _ in range(sweeps if self.size else 0):
                # Many small products of matrix and vector: a sum over products takes a fifth of what `bmm` does.
                behind = (right * z).sum(dim=1, keepdim=True) - (near * z[:, None]).sum(dim=2)
                margins = (behind / distances).masked_fill_(distances.isinf(), float("inf"))
                smallest, worst = margins.min(dim=1)
                missing = (self.gamma - smallest).clamp_(min=0)
                if not missing.any():
                    break
                step = relaxation * missing / distances[each, worst]
                z += step[:, None] * (right - near[each, worst])
        return projected

    def _chunks(self, numbers: int) -> Iterator[slice]:
        """Blocks of facts of `numbers` numbers each."""
        step = max(CHUNK // numbers, 1)
        for start in range(0, len(self.mapping), step):
            yield slice(start, start + step)


def correct_readout(
    phi: Float[Tensor, "F h"],
    targets: Float[Tensor, "F d"],
    sets: MarginSets,
    *,
    rounds: int,
    extra_rounds: int = 0,
) -> tuple[Float[Tensor, "d h"], dict[str, Any]]:
    """The read-out B with outputs B phi_i in C_i, as near as `rounds` come.

    Starts from least squares to `targets`, scaled so that the mean right score is 1. Each round fits the least-squares
    read-out to projected outputs: gradient descent on sum_i dist(y_i, C_i)^2 with the one step size that fits every
    direction, which momentum makes three times faster. Goes on for `extra_rounds` once all facts are stored, and returns
    the read-out that stored most. `phi` is expected in float64; the rounds run in the dtype of `sets`.
    """
    gram = phi.T @ phi
    diagonal = gram.diagonal()  # a view
    diagonal += RIDGE * diagonal.mean()
    factor = torch.linalg.cholesky(gram)
    # Least squares to T has the outputs Q Q^T T: single precision meets orthonormal columns only.
    q = torch.linalg.solve_triangular(factor, phi.T, upper=False).T.to(targets.dtype).contiguous()  # (F, h)
    c = q.T @ targets  # (h, d)
    score = ((q @ c) * sets.wanted).sum(dim=1).mean()
    c = c / score if score > 0 else c
    y = ahead = q @ c
    kept, most, done, end = c, -1, 0, rounds
    while True:
        if done % sets.refresh_every == 0 or done == end:
            shortlist = sets.shortlist(y)
            if shortlist.stored >= most:
                if most < len(y) == shortlist.stored:
                    end = min(done + extra_rounds, rounds)
                kept, most = c, shortlist.stored
        if done == end:
            break
        c = q.T @ sets.project(ahead, shortlist, sweeps=SWEEPS)
        last, y = y, q @ c
        ahead = y + MOMENTUM * (y - last)
        done += 1
    b = torch.linalg.solve_triangular(factor.T, kept.to(factor.dtype), upper=True).T
    return b, {"rounds": done}
