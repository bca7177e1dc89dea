"""Knots of one first token: where each neuron starts to fire along the line of second tokens, with signed sum zero.

Second tokens have levels on a line; neuron i of first token a is relu(level - knot_i(a)), with a sign w_i. Between two
neighbouring levels that the token has facts with lies a *cell*. Only at the levels must the signed sum
f = sum_i w_i relu(level - knot_i) vanish, and two patterns of knots keep it so, while as many neurons as possible have
cells of their own:

* a *pair*: a neuron +1 and a neuron -1 with the same knot. The slope of f stays 0, so any number of levels may follow.
* a *run*: f zigzags through zero. A neuron of sign 1 and one of sign -1/2 enter it with the slope 1/2; then single
  neurons of alternating sign 1 follow, one in each cell; at last a neuron of sign 1 and one of sign 1/2 leave it. Exactly
  one level, a zero of f, lies between neighbours in a run. It may begin below all levels, or end above them.

The first pair, or the beginning of the run, lies below all levels: no fact is without neurons that fire.

Source: this project; a pair in each cell is the permuted-knots construction.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

LIFT = 0.5  # of what always fires above the lowest level, in units of the whole line
CLOSED = 1e6  # cells above the last level: of neurons that stay silent
KINDS = ("middle", "bottom", "top")


def signs(width: int) -> Float[Tensor, " d"]:
    """(1/2, -1/2, 1, -1, 1, -1, ...)"""
    alternating = torch.ones(width, dtype=torch.float64)
    alternating[1::2] = -1
    alternating[:2] /= 2
    return alternating


@dataclass(frozen=True)
class Event:
    """Neurons that start to fire in one cell, and how far up in it (0..1)."""

    neurons: tuple[int, ...]
    at: tuple[float, ...]
    single_level: bool = False  # the slope behind it is not 0


def draw_knots(visible: int, width: int, pairs: int, draw: torch.Generator) -> Float[Tensor, " d"]:
    """Knots of the neurons, for a first token with facts at `visible` levels.

    In units of the rank among these levels: 1.5 lies half way between the second level and the third. Where the run
    stands, which neurons serve where and how many levels follow each pair are random. About `pairs` pairs stand outside
    the run; fewer where there are few levels, and the neurons left over stay silent.
    """
    knots = torch.full((width,), CLOSED, dtype=torch.float64)
    if not visible:
        return knots
    kind = KINDS[_below(len(KINDS), draw)]
    plus, minus = (_shuffled(range(first, width, 2), draw) for first in (2, 3))
    events = _events(kind, visible, pairs, plus, minus, draw)
    cell = -1
    for event, levels in zip(events, _levels(events, visible, draw), strict=True):
        for neuron, at in zip(event.neurons, event.at, strict=True):
            knots[neuron] = cell + at
        cell += levels
    below = [neuron for neuron in events[0].neurons if knots[neuron] < 0]
    # The signed sum at the lowest level stays 0: equal distances of a pair, and distances 1 : 2 of signs 1 : 1/2.
    for neuron in below:
        knots[neuron] = -2.0 if neuron < 2 else -1.0
    return knots


def placed(knots: Float[Tensor, " d"], levels: Float[Tensor, " n"]) -> Float[Tensor, " d"]:
    """Knots on the line of levels (ascending), from their ranks."""
    last = len(levels) - 1
    lower = knots.floor().clamp(0, last).long()
    upper = (lower + 1).clamp(max=last)
    inside = levels[lower] + (knots - lower) * (levels[upper] - levels[lower])
    below = levels[0] + LIFT * knots
    return torch.where(knots < 0, below, torch.where(knots > last, levels[-1] + LIFT, inside))


def _events(
    kind: str, visible: int, pairs: int, plus: list[int], minus: list[int], draw: torch.Generator
) -> list[Event]:
    """From the lowest up; no more than levels."""
    if visible < 4:
        return [_pair(plus, minus) for _ in range(min(visible, len(plus), len(minus)))]
    pairs = max(pairs, int(kind != "bottom"))
    pairs = min(pairs, visible - 3, min(len(plus), len(minus)) - 1)
    upward = bool(_below(2, draw))
    first, second = (plus, minus) if upward else (minus, plus)
    enter = Event((first.pop(), int(upward)), (2 / 3, 1 / 3), single_level=True)
    stacks = (second, first)
    ends = 1 if kind == "top" else 2
    left = len(first) - pairs, len(second) - pairs
    most = min(2 * left[0] + 1, 2 * left[1]) if kind == "top" else 2 * min(left[0], left[1] - 1)
    singles = min(visible - pairs - ends, most)
    singles -= singles % 2 if kind != "top" else 0
    run = [enter]
    for step in range(singles):
        run.append(Event((stacks[step % 2].pop(),), (0.5,), single_level=True))
    if kind != "top":
        run.append(Event((stacks[singles % 2].pop(), 1 - int(upward)), (1 / 3, 2 / 3)))
    outside = [_pair(plus, minus) for _ in range(pairs)]
    if kind == "bottom":
        return run + outside
    before = pairs if kind == "top" else 1 + _below(pairs, draw)
    return outside[:before] + run + outside[before:]


def _levels(events: list[Event], visible: int, draw: torch.Generator) -> list[int]:
    """How many levels follow each event: one inside a run, a random number elsewhere, and seldom many at the top.

    Above the last knot all neurons fire for every first token, so facts there look alike.
    """
    levels = [1] * len(events)
    free = [place for place, event in enumerate(events) if not event.single_level]
    inner = free[:-1] if free and free[-1] == len(events) - 1 and _below(10, draw) else free
    for _ in range(visible - len(events)):
        places = inner or free or [len(events) - 1]
        levels[places[_below(len(places), draw)]] += 1
    return levels


def _pair(plus: list[int], minus: list[int]) -> Event:
    return Event((plus.pop(), minus.pop()), (0.5, 0.5))


def _shuffled(numbers: range, draw: torch.Generator) -> list[int]:
    return [numbers[place] for place in torch.randperm(len(numbers), generator=draw).tolist()]


def _below(number: int, draw: torch.Generator) -> int:
    return int(torch.randint(number, (1,), generator=draw))
