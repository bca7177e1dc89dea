"""Knots of all first tokens, drawn one token at a time, so that the equations of their facts are independent.

A fact is starved where its gates say nothing that those of other facts do not say already: its label then cannot be
chosen. For each first token several sets of knots are drawn, and the one is kept whose equations are the most
independent of each other and of those of earlier tokens: with the largest determinant of their covariance, if the
correction of (E1, E2) were a standard normal vector. That covariance, given the facts so far, is kept for the second
tokens that are watched: all where that fits, else those at the ends of the line, where most starve.

Source: this project; the criterion is that of D-optimal design.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.methods.knots import draw_knots, placed, signs

NOISE = 1e-4  # variance that keeps dependent equations finite
WATCHED = 2048  # coordinates of the correction of E2 whose covariance is kept


def draw_base(
    facts: PairFacts, width: int, pairs: Sequence[int], draws: int, draw: torch.Generator
) -> tuple[Float[Tensor, "V d"], Float[Tensor, " V"]]:
    """(knots of the first tokens, levels of the second tokens)

    pairs: the numbers of pairs outside the run to choose from. draws: sets of knots for each first token to choose from.
    """
    levels = (torch.randperm(facts.tokens, generator=draw).double() + 0.5) / facts.tokens - 0.5
    knots = torch.full((facts.tokens, width), 1.0, dtype=torch.float64)  # above every level
    count = torch.bincount(facts.first, minlength=facts.tokens)
    covariance = _Covariance(levels, width) if draws > 1 else None
    for token in count.argsort(descending=True, stable=True).tolist():
        second = facts.second[facts.first == token]
        second = second[levels[second].argsort()]
        if not len(second):
            break
        which = torch.randint(len(pairs), (draws,), generator=draw).tolist()
        drawn = [placed(draw_knots(len(second), width, pairs[i], draw), levels[second]) for i in which]
        candidates = torch.stack(drawn)
        rows = (levels[second, None] > candidates[:, None]) * signs(width)
        best = covariance.condition(second, rows) if covariance else 0
        knots[token] = candidates[best]
    return knots, levels


class _Covariance:
    """Of the correction of E2, given the equations so far; the correction of E1 is new with each first token."""

    def __init__(self, levels: Tensor, width: int):
        tokens = len(levels)
        watched = min(tokens, max(2, WATCHED // width))
        order = levels.argsort()
        ends = torch.cat([order[: watched // 2], order[tokens - (watched - watched // 2) :]])
        self.place = torch.full((tokens,), -1)
        self.place[ends] = torch.arange(watched)
        self.width = width
        self.matrix = torch.eye(watched * width, dtype=torch.float64)

    def condition(self, second: Int[Tensor, " n"], rows: Float[Tensor, "T n d"]) -> int:
        """The candidate whose n equations are the most independent; the covariance is then that given them."""
        place = self.place[second]
        seen = (place >= 0).nonzero()[:, 0]
        count, size = len(second), len(seen)
        at = (place[seen, None] * self.width + torch.arange(self.width)).reshape(-1)
        known = self.matrix[at[:, None], at].reshape(size, self.width, size, self.width)
        watched = rows[:, seen]
        total = rows @ rows.transpose(1, 2)  # through E1, one token for all
        extra = (
            torch.where(place >= 0, 0.0, rows.square().sum(2)) + NOISE
        )  # through tokens that are not watched
        total += torch.diag_embed(extra)
        inner = torch.einsum("tni,nimj->tnmj", watched, known)
        through = (inner * watched[:, None]).sum(3)
        total[:, seen[:, None], seen] += through
        factor = torch.linalg.cholesky(total)
        best = int(factor.diagonal(dim1=1, dim2=2).log().sum(1).argmax())
        across = torch.zeros(len(self.matrix), count, dtype=torch.float64)
        columns = self.matrix[:, at].reshape(len(self.matrix), size, self.width)
        across[:, seen] = torch.einsum("cni,ni->cn", columns, watched[best])
        self.matrix -= across @ torch.cholesky_solve(across.T, factor[best])
        return best
