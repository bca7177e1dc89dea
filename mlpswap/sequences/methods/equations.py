"""One linear equation for each fact in a correction of (E1, E2), and its solution of least norm.

With A_f in R^d the coefficients of fact f, and corrections D1, D2 (V, d), the equation of f = (a, b) is
A_f . (D1[a] + D2[b]) = t_f. The solution of least norm is D1[a] = sum_{f: a_f = a} nu_f A_f, and D2 likewise, with
K nu = t and K = (A A^T) * ([a = a'] + [b = b']). Where the norm weighs each D1[a, i] by 1 / p1[a, i], the sums have a factor
p1[a, i], and K likewise. Small systems are factorised. Large ones are solved by conjugate
gradients, which need A alone; the blocks of K that share a second token, inverted, are the preconditioner.

Source: this project.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

DIRECT = 4096  # facts, up to which K is formed: 128 MiB
JITTER = 1e-11  # of K's mean diagonal: dependent facts then have large multipliers instead of none
LOOSE_JITTER = 1e-8  # for conjugate gradients, which do not take it out again
STEPS = 6000  # of conjugate gradients at most; the largest error comes down late and all at once


class Equations:
    """The equations of N facts with tokens a and b, and how freely (p1, p2) each entry of the correction may move."""

    def __init__(
        self,
        first: Int[Tensor, " N"],
        second: Int[Tensor, " N"],
        freedom: tuple[Float[Tensor, "V d"], Float[Tensor, "V d"]],
    ):
        self.first, self.second, self.freedom = first, second, freedom
        self.tokens = len(freedom[0])

    def solve(
        self, rows: Float[Tensor, "N d"], targets: Float[Tensor, " N"], tolerance: Float[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """The multipliers nu, each equation met to its tolerance where they do not contradict each other."""
        if len(rows) <= DIRECT:
            return self._factorised(rows, targets)
        return self._conjugate_gradients(rows, targets, tolerance)

    def correction(
        self, rows: Float[Tensor, "N d"], multipliers: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "V d"], Float[Tensor, "V d"]]:
        """(D1, D2)"""
        weighted = rows * multipliers[:, None]
        zero = rows.new_zeros(self.tokens, rows.shape[1])
        sums = zero.index_add(0, self.first, weighted), zero.index_add(0, self.second, weighted)
        return sums[0] * self.freedom[0], sums[1] * self.freedom[1]

    def product(self, rows: Float[Tensor, "N d"], multipliers: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """K nu, without forming K."""
        first, second = self.correction(rows, multipliers)
        return (rows * (first[self.first] + second[self.second])).sum(1)

    def _factorised(self, rows: Tensor, targets: Tensor) -> Tensor:
        matrix = torch.zeros(len(rows), len(rows), dtype=rows.dtype)
        for token, freedom in zip((self.first, self.second), self.freedom, strict=True):
            scaled = rows * freedom[token].sqrt()
            matrix += (scaled @ scaled.T) * (token[:, None] == token)
        diagonal = matrix.diagonal()
        diagonal += JITTER * diagonal.mean()
        factor = torch.linalg.cholesky(matrix)
        del matrix, diagonal
        solution = torch.zeros_like(targets)
        for _ in range(3):  # refinement takes the jitter out again
            residual = targets - self.product(rows, solution)
            solution = solution + torch.cholesky_solve(residual[:, None], factor)[:, 0]
        return solution

    def _conjugate_gradients(self, rows: Tensor, targets: Tensor, tolerance: Tensor) -> Tensor:
        """Of K with the jitter, so that equations that contradict each other do not keep the others from being met."""
        precondition = _Blocks(self, rows)
        jitter = LOOSE_JITTER * (rows.square() * self.freedom[0][self.first]).sum(1).mean()
        solution = torch.zeros_like(targets)
        residual = targets
        best, best_error = solution, torch.inf
        direction = step = precondition(residual)
        slope = residual @ step
        for _ in range(STEPS):
            image = self.product(rows, direction) + jitter * direction
            length = slope / (direction @ image)
            solution = solution + length * direction
            residual = residual - length * image
            error = float((residual.abs() / tolerance).max())
            if error < best_error:
                best, best_error = solution, error
            if error < 1:
                break
            step = precondition(residual)
            slope, previous = residual @ step, slope
            direction = step + slope / previous * direction
        return best


class _Blocks:
    """The inverse of K's blocks that share a second token, padded to the largest."""

    def __init__(self, equations: Equations, rows: Tensor):
        second, tokens = equations.second, equations.tokens
        count = torch.bincount(second, minlength=tokens)
        order = second.argsort(stable=True)
        place = torch.arange(len(second)) - (count.cumsum(0) - count)[second[order]]
        slot = torch.full((tokens, int(count.max())), -1)
        slot[second[order], place] = order
        self.used = slot >= 0
        self.slot = slot.clamp(min=0)
        of_second = rows * equations.freedom[1][second].sqrt()
        of_first = (rows.square() * equations.freedom[0][equations.first]).sum(
            1
        )  # they differ within a block
        part = of_second[self.slot] * self.used[..., None]
        alone = torch.where(self.used, of_first[self.slot], 1.0)
        self.inverse = torch.linalg.inv(part @ part.transpose(1, 2) + torch.diag_embed(alone))

    def __call__(self, residual: Tensor) -> Tensor:
        part = residual[self.slot] * self.used
        solved = (self.inverse @ part[..., None])[..., 0]
        out = torch.zeros_like(residual)
        out[self.slot[self.used]] = solved[self.used]
        return out
