"""Laws of growth: facts = a d^p / ln d, fitted to what was stored at several widths."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import linear_regression


@dataclass(frozen=True)
class Law:
    """a d^p / ln d. Source: sequence-memorisation challenge, fitted laws."""

    factor: float
    power: float

    def __call__(self, d: float) -> float:
        return self.factor * d**self.power / math.log(d)


def fit_law(facts: Mapping[int, float]) -> Law | None:
    """Least squares on logarithms, of facts by width; None for fewer than two widths, of at least 2, with any facts."""
    points = [
        (math.log(d), math.log(count * math.log(d))) for d, count in facts.items() if count > 0 and d > 1
    ]
    if len(points) < 2:
        return None
    line = linear_regression([x for x, _ in points], [y for _, y in points])
    return Law(math.exp(line.intercept), line.slope)
