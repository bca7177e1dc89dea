"""Encoders: MLPs from keys to low-dimensional codes (arXiv 2512.00207, section 4.2, B.3 and A.1.3).

    bin     one gadget of h~ hidden neurons for each of m code coordinates, A by solving a linear system: exact as soon
            as d h~ >= F, for keys in general position and an activation that is no polynomial.
    margin  the same gadgets with fewer neurons: the codes need not be met, only decoded (ours).
    gd      one dense gated MLP, trained on the squared error: fewer neurons, not exact.

A gadget is o(x) = sum_p act(g_p x) (a_p x), linear in its A: with Sigma = act(G K^T) the unknowns a_p obey
M vec(A) = o, M = [diag(Sigma_1) K, ..., diag(Sigma_h~) K]. The F x d h~ matrix M is never formed; the solution of
least norm is A = (Sigma * alpha^T) K with ((Sigma^T Sigma) * (K K^T)) alpha = o. All gadgets share G, and so one
factorisation.

Exact codes are m F equations, though fact i is stored as soon as its code lies in the cone C_i of those that score it
right. `margin` asks for that only: a convex problem in A, solved by margin projection (margin.py). Features in general
position allow it as soon as d h > sum_i E dist(z, C_i)^2, z ~ N(0, I_m), by the phase transition of convex feasibility
(Amelunxen and others, arXiv 1303.6672). At n = F = 1024, d = 64 that is 7.9 F for orthonormal decoders of any m, 6.4 F for
the trained one with m = 8, instead of m F. It holds as gamma goes to 0; a larger gamma bears more noise.

Non-gated gadgets are the derivative limit [act((G + eps A) x) - act((G - eps A) x)] / (2 eps) of a gadget whose gate
is act', with twice the neurons; the error falls with eps^2, rounding in float32 rises with 1 / eps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mlpswap.constructions.base import ACTIVATIONS, value_and_slope
from mlpswap.constructions.margin import MarginSets, correct_readout
from mlpswap.constructions.readout import RIDGE
from mlpswap.embeddings import gaussian
from mlpswap.errors import InfeasibleConstructionError

SMOOTH_EPSILON = 1e-2  # balances truncation and float32 rounding
RELU_DRAWS = 8  # of G, of which the one with the largest admissible epsilon is kept
MAX_RESIDUAL = 1e-4  # relative, of a system that should be solved exactly
MARGIN_ROUNDS, MARGIN_EXTRA_ROUNDS = 200, 5
GD_STEPS, GD_RATE = 1000, 1e-2


@dataclass(frozen=True)
class Encoder:
    """code(x) = E (act(G x) * (A x + b_A)) + c, or E act(A x + b_A) + c where `gate` is None; float64.

    free: how many numbers of E were chosen by the encoder, 0 where E only adds up neurons.
    """

    activation: str
    gate: Float[Tensor, "h d"] | None
    up: Float[Tensor, "h d"]
    read: Float[Tensor, "m h"]
    bias: Float[Tensor, " h"] | None = None
    shift: Float[Tensor, " m"] | None = None
    free: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        act = ACTIVATIONS[self.activation]
        up = x @ self.up.T + (0 if self.bias is None else self.bias)
        hidden = act(up) if self.gate is None else act(x @ self.gate.T) * up
        return hidden @ self.read.T + (0 if self.shift is None else self.shift)


@dataclass(frozen=True)
class BinOptions:
    """Options of `bin_encoder`: see `EncoderDecoderConfig`."""

    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    exact: bool = True
    epsilon: float | None = None


def bin_width(facts: int, d: int, multiplier: float, bias: bool = False) -> int:
    """Neurons of one gadget: `multiplier` times the fewest with which the system is solvable."""
    fewest = (facts - 1) / (d + 1) if bias else facts / d
    return max(1, math.ceil(multiplier * fewest))


def margin_width(facts: int, d: int, m: int, rows: int, multiplier: float) -> int:
    """Neurons of one gadget of `margin`: `multiplier` times one weight of A for each of F log2(rows) bits."""
    return max(1, math.ceil(multiplier * facts * math.log2(max(rows, 2)) / (d * m)))


def bin_encoder(
    keys: Float[Tensor, "F d"],
    codes: Float[Tensor, "F m"],
    width: int,
    options: BinOptions,
    generator: torch.Generator,
    sets: MarginSets | None = None,
) -> Encoder:
    """Gadgets of `width` neurons for keys of mean length one; with `exact` false by least squares where no solution
    exists. With `sets`, the codes that are decoded rightly, as `margin`: starts from least squares.

    Raises `InfeasibleConstructionError` with the violated rank condition.
    """

    def solve(g: Tensor) -> Gadgets:
        if sets is None:
            return solve_gadgets(keys, codes, g, options)
        return correct_gadgets(keys, codes, g, options, sets)

    if options.exact and sets is None:
        require_unknowns(len(keys), keys.shape[1], width, options.bias)
    if options.gated or options.activation != "relu":
        g = gaussian(width, keys.shape[1], generator, torch.float64).to(keys.device)
        gadgets = solve(g)
        epsilon = options.epsilon or SMOOTH_EPSILON
    else:
        draws = RELU_DRAWS if sets is None else 1
        gadgets, epsilon = _relu_gadgets(keys, width, draws, solve, generator)
        epsilon = options.epsilon or epsilon
    return gadgets.gated(options) if options.gated else gadgets.derivative_limit(options, epsilon)


@dataclass(frozen=True)
class Gadgets:
    """G (h~, d), shared, and per code coordinate A (m, h~, d), b_A (m, h~), c (m), the last two zero without bias."""

    g: Float[Tensor, "w d"]
    a: Float[Tensor, "m w d"]
    bias: Float[Tensor, "m w"]
    shift: Float[Tensor, " m"]
    details: dict[str, Any]

    def _read(self) -> Float[Tensor, "m h"]:
        """E, which adds up the neurons of each gadget."""
        m, width, _ = self.a.shape
        return torch.eye(m, dtype=self.a.dtype, device=self.a.device).repeat_interleave(width, dim=1)

    def gated(self, options: BinOptions) -> Encoder:
        return Encoder(
            options.activation,
            self.g.repeat(len(self.a), 1),
            self.a.flatten(0, 1),
            self._read(),
            self.bias.flatten() if options.bias else None,
            self.shift if options.bias else None,
            details=self.details,
        )

    def derivative_limit(self, options: BinOptions, epsilon: float) -> Encoder:
        g, a, b, read = self.g.repeat(len(self.a), 1), self.a.flatten(0, 1), self.bias.flatten(), self._read()
        return Encoder(
            options.activation,
            None,
            torch.cat([g + epsilon * a, g - epsilon * a]),
            torch.cat([read, -read], dim=1) / (2 * epsilon),
            torch.cat([epsilon * b, -epsilon * b]) if options.bias else None,
            self.shift if options.bias else None,
            details=self.details | {"epsilon": epsilon},
        )

    def largest_epsilon(self, keys: Float[Tensor, "F d"]) -> float:
        """Half the size at which eps |A x| reaches |G x| for a key: below it the ReLU limit is exact."""
        size = (keys @ self.g.T).abs()  # (F, w)
        ratios = [size / (keys @ a.T + b).abs() for a, b in zip(self.a, self.bias, strict=True)]
        return 0.5 * min(float(ratio.amin()) for ratio in ratios)


def solve_gadgets(
    keys: Float[Tensor, "F d"], codes: Float[Tensor, "F m"], g: Float[Tensor, "w d"], options: BinOptions
) -> Gadgets:
    """A of all gadgets in the dual form: one Cholesky factor, one step of refinement."""
    sigma = gates(keys, g, options)
    gram = sigma.T @ sigma * (keys @ keys.T + options.bias) + options.bias
    diagonal = gram.diagonal()  # a view
    if not options.exact:
        diagonal += RIDGE * diagonal.mean()
    factor, failed = torch.linalg.cholesky_ex(gram)
    condition = float("inf") if failed else condition_number(gram, factor)
    alpha = torch.cholesky_solve(codes, factor)  # (F, m)
    alpha += torch.cholesky_solve(codes - gram @ alpha, factor)
    residual = float((gram @ alpha - codes).norm() / codes.norm())
    if failed or not residual <= MAX_RESIDUAL:
        rank = int(torch.linalg.matrix_rank(sigma))
        raise InfeasibleConstructionError(
            f"the encoder's system of {len(keys)} equations in {g.numel()} unknowns is singular or nearly so: "
            f"relative residual {residual:.1g}, condition {condition:.1g}, rank(Sigma) = {rank}; "
            "d rank(Sigma[:, S]) >= |S| fails for some set S of keys: keys are nearly equal, or activation "
            f"'{options.activation}' is degenerate; try a wider h, another activation, or exact = false"
        )
    a = torch.stack([sigma * column @ keys for column in alpha.T])
    details = {"residual": residual, "condition": condition}
    return Gadgets(g, a, (sigma @ alpha).T * options.bias, alpha.sum(dim=0) * options.bias, details)


def correct_gadgets(
    keys: Float[Tensor, "F d"],
    codes: Float[Tensor, "F m"],
    g: Float[Tensor, "w d"],
    options: BinOptions,
    sets: MarginSets,
) -> Gadgets:
    """A of all gadgets with codes in `sets`, as near as margin projection comes."""
    (width, d), ones = g.shape, keys.new_ones(len(keys), 1)
    inputs = torch.cat([keys, ones], dim=1) if options.bias else keys
    phi = (gates(keys, g, options).T[:, :, None] * inputs[:, None, :]).flatten(1)  # (F, w d)
    phi = torch.cat([phi, ones], dim=1) if options.bias else phi
    weights, details = correct_readout(
        phi, codes.to(sets.table.dtype), sets, rounds=MARGIN_ROUNDS, extra_rounds=MARGIN_EXTRA_ROUNDS
    )
    a = weights[:, : width * inputs.shape[1]].unflatten(1, (width, -1))  # (m, w, d) or (m, w, d + 1)
    bias = a[:, :, -1] if options.bias else a.new_zeros(a.shape[:2])
    shift = weights[:, -1] if options.bias else a.new_zeros(len(a))
    return Gadgets(g, a[:, :, :d], bias, shift, details)


def gates(keys: Float[Tensor, "F d"], g: Float[Tensor, "w d"], options: BinOptions) -> Float[Tensor, "w F"]:
    """Sigma: act(G K^T), or act' of it without gate."""
    act, z = ACTIVATIONS[options.activation], g @ keys.T
    return act(z) if options.gated else value_and_slope(act, z)[1]


def condition_number(gram: Float[Tensor, "F F"], factor: Float[Tensor, "F F"]) -> float:
    """Of a positive definite matrix with its Cholesky factor: a lower bound from 20 power steps each way."""
    start = torch.linspace(1, 2, len(gram), dtype=gram.dtype, device=gram.device)[:, None].cos()
    ends = []
    for step in (lambda v: gram @ v, lambda v: torch.cholesky_solve(v, factor)):
        v = start
        for _ in range(20):
            v = step(v / v.norm())
        ends.append(float(v.norm()))
    return ends[0] * ends[1]


def require_unknowns(facts: int, d: int, width: int, bias: bool) -> None:
    """Refuse a gadget that has fewer weights than there are keys."""
    unknowns = (d + 1) * width + 1 if bias else d * width
    if unknowns < facts:
        product = f"(d + 1) h~ + 1 = {d + 1} * {width} + 1" if bias else f"d h~ = {d} * {width}"
        raise InfeasibleConstructionError(
            f"the encoder needs d rank(Sigma[:, S]) >= |S| for every set S of keys, and so at least as many unknowns "
            f"as keys: found {product} = {unknowns} < {facts}; widen h or take a smaller code width, or exact = "
            "false for least squares"
        )


def _relu_gadgets(
    keys: Tensor, width: int, draws: int, solve: Callable[[Tensor], Gadgets], generator: torch.Generator
) -> tuple[Gadgets, float]:
    """The gadgets with the largest epsilon among several draws of G, and that epsilon."""
    best: tuple[Gadgets, float] | None = None
    problem: InfeasibleConstructionError | None = None
    for _ in range(draws):
        g = gaussian(width, keys.shape[1], generator, torch.float64).to(keys.device)
        try:
            gadgets = solve(g)
        except InfeasibleConstructionError as error:  # a key may fall into the zero half of all neurons
            problem = error
            continue
        epsilon = gadgets.largest_epsilon(keys)
        if best is None or epsilon > best[1]:
            best = gadgets, epsilon
    if best is None:
        assert problem is not None
        raise problem
    return best


def gd_width(facts: int, d: int, m: int) -> int:
    """A quarter more neurons than the unknowns of G, A and E need to match F m code entries."""
    return max(1, math.ceil(1.25 * facts * m / (2 * d + m)))


def gd_encoder(
    keys: Float[Tensor, "F d"],
    codes: Float[Tensor, "F m"],
    width: int,
    activation: str,
    steps: int,
    generator: torch.Generator,
) -> Encoder:
    """A dense gated encoder for keys of mean length one, by full-batch Adam on the squared error to codes of unit
    variance; float32.
    """
    d, m = keys.shape[1], codes.shape[1]
    x = (keys * math.sqrt(d)).float()
    spread = codes.square().mean().sqrt()
    targets = (codes / spread).float()
    act = ACTIVATIONS[activation]
    g, a = (gaussian(width, d, generator).to(keys.device) / math.sqrt(d) for _ in range(2))
    e = gaussian(m, width, generator).to(keys.device) / math.sqrt(width)
    with torch.enable_grad():
        weights = [weight.requires_grad_() for weight in (g, a, e)]
        adam = torch.optim.Adam(weights, lr=GD_RATE, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
        for _ in range(steps):
            loss = F.mse_loss((act(x @ g.T) * (x @ a.T)) @ e.T, targets)
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
    g, a, e = (weight.detach().double() for weight in weights)
    scale = math.sqrt(d)
    return Encoder(
        activation, g * scale, a * scale, e * spread, free=e.numel(), details={"loss": float(loss.detach())}
    )
