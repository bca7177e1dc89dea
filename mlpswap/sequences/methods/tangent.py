"""Labels written into weights whose code is zero, by one small correction that changes no gate.

The code of a fact is s_w / s_v with s_w = sum_i w_i z_i and s_v = sum_i v_i z_i > 0. Label c has a position y_c on a
line, and U[c, i] = y_c w_i - rho y_c^2 v_i / 2 makes that logit the largest whose y_c is nearest to s_w / (rho s_v).
While every gate stays as it is, storing a fact is one linear equation in the correction rho D of (E1, E2):
sum_i gate_i (w_i - rho y v_i) D_i = y s_v. The scale rho is as large as the gates allow.

A fact of an outermost label has a neighbour on one side only, so its equation is an inequality: it is *released* where
the equation would hold it back, and recalled where it falls short. Where not all facts need be right, those whose
equations cost most, with the largest multipliers, are given up.

Where the equations are met and float32 still misses facts, what lacks is digits: weights are then moved away from
changes of gates, so that rho can grow.

Source: this project; the code on a line and the solve are those of its token gates and permuted knots.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mlpswap.sequences.facts import PairFacts
from mlpswap.sequences.methods.equations import Equations
from mlpswap.sequences.network import PairNetwork

ROOM = 0.8  # share of the way to the nearest change of a gate that the correction goes
LARGEST = 0.5  # rho
EXACT = 0.05  # of half the spacing of labels: how well an equation is met
SHORT = 0.5  # of half the spacing: how far a released fact may fall short
SOLVES = 4  # for one set of facts, until rho fits
REWEIGHTINGS = 8  # at most in one build, where float32 misses facts whose equations are met
MOST = 1.1  # times the independent equations: more are not tried at length
LIKELY = 4.0  # how much rather a fact of an outermost label is given up: it may still be right without its equation


@dataclass(frozen=True)
class BasePoint:
    """Weights E1 and E2 (V, d) in float64, signs w and scale v of the code: sum_i w_i z_i = 0 for every fact.

    independent: about how many equations can be independent of each other.
    """

    first: Float[Tensor, "V d"]
    second: Float[Tensor, "V d"]
    signs: Float[Tensor, " d"]
    scale: Float[Tensor, " d"]
    independent: float


def label_positions(labels: int) -> Float[Tensor, " C"]:
    """C positions on the line, centred on 0.

    They are 2/C apart. Rounding in the sum over the neurons grows with |y_c|, so that of many labels the outer ones
    suffer: beyond 32, these stand further apart.
    """
    even = (2 * torch.arange(labels, dtype=torch.float64) + 1 - labels) / labels
    stretch = max(0.0, labels / 16 - 2)
    return even * (1 + stretch * even.abs()) / (1 + stretch)


def half_spacing(positions: Float[Tensor, " C"]) -> Float[Tensor, " C"]:
    """How far the code of a label may be off: half the way to its nearest neighbour."""
    gap = torch.cat([positions.new_ones(1), positions.diff(), positions.new_ones(1)])
    return torch.minimum(gap[:-1], gap[1:]) / 2


def tangent_network(
    base: BasePoint, facts: PairFacts, *, threshold: float = 1.0, reweightings: int = 0
) -> PairNetwork:
    """Store the facts by a correction of `base`; below a threshold of 1, give up those that cost most.

    The float32 network with the best accuracy found; the search ends once it has `threshold`. Each of `reweightings`
    further solves then lets those weights move less whose gates limit the correction, and rho grows; where digits lack,
    there are some in any case.
    """
    writer = _Writer(base, facts)
    held = torch.ones(len(facts), dtype=torch.bool)
    may_miss = int((1 - threshold) * len(facts) + 1e-9)
    best = None
    rounds = 24 if len(facts) <= 2048 else 12  # of releasing, recalling and giving up
    if writer.equations(may_miss) > MOST * base.independent:
        rounds = 1
    for turn in range(rounds):
        written = writer.write(held)
        if best is None or written.accuracy > best.accuracy:
            best = written
        last = not may_miss or turn >= rounds - 4  # all that may miss has been given up, which costs less
        if last and best.accuracy < threshold <= writer.solved(written):
            best = max(best, writer.sharpened(written, threshold), key=lambda each: each.accuracy)
        if best.accuracy >= threshold or turn == rounds - 1:
            break
        kept = writer.outer_facts(written, release=turn < rounds - 3)
        if may_miss:
            kept = writer.give_up(kept, written, min(may_miss, may_miss * (turn + 1) // (rounds - 3)))
        if torch.equal(kept, held):
            break
        held = kept
    assert best is not None
    for _ in range(reweightings):
        writer.reweight(best)
        written = writer.write(best.held)
        if written.accuracy < best.accuracy:
            break
        best = written
    return best.network


@dataclass(frozen=True)
class _Written:
    """A network, and what its solve says of each fact: held to its equation?, multiplier, code to first order."""

    network: PairNetwork
    accuracy: float
    held: Bool[Tensor, " N"]
    multipliers: Float[Tensor, " N"]
    code: Float[Tensor, " N"]
    reach: Float[Tensor, "N d"]  # of the correction per rho, as a share of the way to a change of gate


class _Writer:
    """Gates, equations and the size of the correction for one base point."""

    def __init__(self, base: BasePoint, facts: PairFacts):
        self.base, self.facts = base, facts
        self.before = base.first[facts.first] + base.second[facts.second]
        self.gate = (self.before > 0).double()
        self.room = self.before.abs()
        self.total = torch.relu(self.before) @ base.scale
        self.positions = label_positions(facts.labels)
        self.wanted = self.positions[facts.label]
        self.half = half_spacing(self.positions)[facts.label]
        top, bottom = facts.label == facts.labels - 1, facts.label == 0
        self.outward = top.double() - bottom.double()
        self.reweightings = REWEIGHTINGS
        self.free()

    def free(self) -> None:
        """Let all weights move alike, and find rho anew."""
        self.rho = 0.0
        self.freedom = torch.ones_like(self.base.first), torch.ones_like(self.base.second)

    def write(self, held: Bool[Tensor, " N"]) -> _Written:
        """Solve the equations of the facts that are held. They depend on rho, so again until the gates hold."""
        part = Equations(self.facts.first[held], self.facts.second[held], self.freedom)
        target = self.wanted * self.total
        tolerance = EXACT * self.half * self.total
        for _ in range(SOLVES):
            rows = self.gate * (self.base.signs - self.rho * self.wanted[:, None] * self.base.scale)
            found = part.solve(rows[held], target[held], tolerance[held])
            first, second = part.correction(rows[held], found)
            shift = first[self.facts.first] + second[self.facts.second]
            reach = -torch.sign(self.before) * shift / self.room
            furthest = max(float(reach.max()), 1e-9)  # 0: nothing to write
            if self.rho * furthest < 1 and self.rho >= min(LARGEST, ROOM / 2 / furthest):
                break
            self.rho = min(LARGEST, ROOM / furthest)
        multipliers = torch.zeros_like(self.total)
        multipliers[held] = found
        network = self._network(first, second)
        code = (rows * shift).sum(1) / self.total
        return _Written(network, network.accuracy(self.facts), held, multipliers, code, reach)

    def equations(self, misses: int) -> float:
        """How many must hold: all but the misses, and half of those of outermost labels, which are inequalities."""
        return len(self.facts) - misses - float(self.outward.abs().sum()) / 2

    def solved(self, written: _Written) -> float:
        """Share of the facts that are right, or would be in exact arithmetic."""
        return max(written.accuracy, float((self._off(written) < self.half).double().mean()))

    def sharpened(self, written: _Written, threshold: float) -> _Written:
        """The same facts by reweighted solves, as long as they help and `threshold` is not reached."""
        best = written
        while self.reweightings:
            self.reweightings -= 1
            self.reweight(best)
            again = self.write(best.held)
            if again.accuracy > best.accuracy:
                best = again
            if best is not again or best.accuracy >= threshold:
                break
        self.free()
        return best

    def outer_facts(self, written: _Written, *, release: bool) -> Bool[Tensor, " N"]:
        """Recall facts of outermost labels that fall short, and release those that their equations hold back."""
        short = self.outward * (written.code - self.wanted) < -SHORT * self.half
        held = written.held | ((self.outward != 0) & short)
        return held & ~(written.held & (self.outward * written.multipliers < 0)) if release else held

    def give_up(self, held: Bool[Tensor, " N"], written: _Written, misses: int) -> Bool[Tensor, " N"]:
        """Drop the equations with the largest multipliers until `misses` facts are wrong, for all that is known."""
        more = misses - int((~held & (self._off(written) > self.half)).sum())
        if more <= 0:
            return held
        worth = written.multipliers.square() * torch.where(self.outward == 0, 1.0, LIKELY)
        worst = torch.where(held, worth, -1.0).topk(min(more, int(held.sum()))).indices
        kept = held.clone()
        kept[worst] = False
        return kept

    def reweight(self, written: _Written) -> None:
        """Let each weight move the less, the nearer one of its gates came to a change; rho is found anew."""
        share = (written.reach / written.reach.max().clamp(min=1e-9)).clamp(min=0)  # 0: nothing to write
        parts = []
        for token, freedom in zip((self.facts.first, self.facts.second), self.freedom, strict=True):
            most = torch.zeros_like(freedom)
            most.scatter_reduce_(0, token[:, None].expand_as(share), share, "amax")
            parts.append(freedom / (most + 0.1).sqrt())
        self.freedom = parts[0], parts[1]
        self.rho = 0.0

    def _off(self, written: _Written) -> Float[Tensor, " N"]:
        """How far the code misses the label's position; beyond an outermost one is no miss."""
        off = written.code - self.wanted
        return torch.where(self.outward == 0, off.abs(), -self.outward * off)

    def _network(self, first: Tensor, second: Tensor) -> PairNetwork:
        place = self.positions[:, None]
        unembedding = place * self.base.signs - self.rho * place**2 / 2 * self.base.scale
        e1, e2 = self.base.first + self.rho * first, self.base.second + self.rho * second
        return PairNetwork(e1.float(), e2.float(), unembedding.float())
