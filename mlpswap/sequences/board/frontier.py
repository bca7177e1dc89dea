"""Facts against digits: how many facts a method stores in weights of a given number of significant bits."""

from collections.abc import Iterable, Sequence

Frontier = list[list[int]]  # [bits, facts], both rising


def frontier(stored: Iterable[tuple[int, int]]) -> Frontier:
    """From (facts, bits) of all networks: the points that no other beats with fewer bits for as many facts."""
    points: Frontier = []
    for facts, bits in sorted(stored, key=lambda point: (point[1], -point[0])):
        if not points or facts > points[-1][1]:
            points.append([bits, facts])
    return points


def facts_within(points: Sequence[Sequence[int]], bits: int) -> int:
    """Facts that weights of that many bits hold; 0 for none."""
    return max((facts for needed, facts in points if needed <= bits), default=0)
