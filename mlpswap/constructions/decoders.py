"""Decoders: low-dimensional codes for values, and a linear map back (arXiv 2512.00207, section 4 and B.4).

A decoder works if D c_j scores value j highest, for every value that some key has. Whether that can be is a
property of the values and of the code width m alone, so that m is searched here, before any encoder is built.

    jl           D ~ N(0, 1/m), codes are D^T of the outputs; m of order log(n) / rho^2. Random: several draws.
    orthonormal  the same with orthonormal columns: fewer dimensions, and exact at m = d.
    gd           codes and D trained by cross-entropy: by far the fewest dimensions, half a minute at n = 1,024.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mlpswap.constructions.base import margins, stores_all
from mlpswap.embeddings import gaussian
from mlpswap.errors import InfeasibleConstructionError
from mlpswap.randomness import generator as stream

DECODERS = ("jl", "orthonormal", "gd")
DRAWS = 8  # of a random decoder, before its code width counts as too small
RESERVE = 1e-4  # of the mean right score: a margin below it would not outlive float32
STEPS, CHECK_EVERY, PERFECT_CHECKS = 1000, 50, 4  # of the trained decoder


@dataclass(frozen=True)
class Decoder:
    """codes (n_v, m) of mean length one for the values, and D (d, m) with D c_j near output j; float64.

    `complete` says whether every value that is needed wins.
    """

    codes: Float[Tensor, "n_v m"]
    weight: Float[Tensor, "d m"]
    complete: bool


@dataclass(frozen=True)
class Decoding:
    """What is to be decoded: the output asked for each value, the rows that it must win against (the values, then
    competitors), and which values count.
    """

    outputs: Float[Tensor, "n_v d"]
    rows: Float[Tensor, "n d"]
    used: Int[Tensor, " n_u"]

    def check(self, codes: Float[Tensor, "n_v m"], weight: Float[Tensor, "d m"]) -> Decoder:
        """The decoder with codes brought to mean length one, and whether it works."""
        length = codes[self.used].norm(dim=1).mean()
        codes, weight = codes / length, weight * length
        decoded = codes[self.used] @ weight.T  # (n_u, d)
        right = (decoded * self.rows[self.used]).sum(dim=1).mean()
        margin = margins(lambda x: x, decoded, self.rows, self.used)
        return Decoder(codes, weight, bool((margin > RESERVE * right.abs()).all()))


def make_decoder(kind: str, decoding: Decoding, m: int | None, seed: int) -> Decoder:
    """A decoder with code width m, or with the smallest width that works; at least the best that was found.

    Each width and draw has its own random stream, so that the search costs nothing in reproducibility. With
    m null, `gd` starts at log2 n_v and grows by a quarter: its widths are not worth a search of minutes.
    """
    if kind == "gd":
        if m is not None:
            return trained_decoder(decoding, m, seed)
        m = max(1, math.ceil(math.log2(len(decoding.rows))))
        while not (found := trained_decoder(decoding, m, seed)).complete and m < decoding.rows.shape[1]:
            m = math.ceil(1.25 * m)
        return found
    if m is not None:
        return random_decoder(decoding, m, seed, orthonormal=kind == "orthonormal")
    d = decoding.rows.shape[1]
    low, high, most = 0, 1, d if kind == "orthonormal" else 4 * d
    best = random_decoder(decoding, high, seed, orthonormal=kind == "orthonormal")
    while not best.complete and high < most:
        low, high = high, min(2 * high, most)
        best = random_decoder(decoding, high, seed, orthonormal=kind == "orthonormal")
    while best.complete and high - low > 1:
        middle = (low + high) // 2
        found = random_decoder(decoding, middle, seed, orthonormal=kind == "orthonormal")
        if found.complete:
            high, best = middle, found
        else:
            low = middle
    return best


def random_decoder(decoding: Decoding, m: int, seed: int, *, orthonormal: bool) -> Decoder:
    """The first of eight random D whose codes D^T u_j are decoded by D; the last one if none is."""
    d = decoding.rows.shape[1]
    if orthonormal and m > d:
        raise InfeasibleConstructionError(f"an orthonormal decoder needs m <= d: found m = {m} > {d}")
    for draw in range(DRAWS):
        weight = gaussian(d, m, stream(seed, "decoder", m, draw), torch.float64) / math.sqrt(m)
        if orthonormal:
            weight = torch.linalg.qr(weight).Q
        weight = weight.to(decoding.rows.device)
        found = decoding.check(decoding.outputs @ weight, weight)
        if found.complete or (orthonormal and m == d):  # all draws of a rotation are the same
            break
    return found


def trained_decoder(decoding: Decoding, m: int, seed: int) -> Decoder:
    """Codes and D by full-batch Adam on the cross-entropy of C D^T V^T to the identity, in float32.

    Stops at the fourth perfect check in a row: stopping at the first leaves tiny margins.
    """
    rows = (decoding.rows / decoding.rows.norm(dim=1).mean()).float()
    used, device = decoding.used, rows.device
    codes = gaussian(len(used), m, stream(seed, "codes", m)).to(device)
    weight = (gaussian(rows.shape[1], m, stream(seed, "decoder", m)) / math.sqrt(m)).to(device)
    perfect = 0
    with torch.enable_grad():
        codes.requires_grad_(), weight.requires_grad_()
        adam = torch.optim.Adam([codes, weight], lr=1.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS, eta_min=0.01)
        for step in range(STEPS):
            if step % CHECK_EVERY == 0:
                whole = stores_all(lambda x: x, (codes @ weight.T).detach(), rows, used, rows[:0])
                perfect = perfect + 1 if whole else 0
                if perfect == PERFECT_CHECKS:
                    break
            loss = F.cross_entropy(codes @ (rows @ weight).T, used)  # (n_u, n) logits
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
    table = decoding.outputs.new_zeros(len(decoding.outputs), m)
    table[used] = codes.detach().double()
    return decoding.check(table, weight.detach().double())
