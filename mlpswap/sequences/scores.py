"""When a number of facts counts as stored: accuracy over trials, by the rules Any, Most and All."""

from collections.abc import Sequence

RULES = ("any", "most", "all")
TRIALS = 11  # of the published figures
THRESHOLDS = (1.0, 0.9)


def agreed(accuracies: Sequence[float], rule: str) -> float:
    """The accuracy that one, a majority, or all of the trials reach: the best, median or worst one.

    Of an even number of trials, more than half are a majority.
    """
    ranked = sorted(accuracies, reverse=True)
    return ranked[{"any": 0, "most": len(ranked) // 2, "all": len(ranked) - 1}[rule]]


def succeeds(accuracies: Sequence[float], threshold: float, rule: str) -> bool:
    """Whether the trials of one number of facts reach `threshold` by `rule`.

    Source: sequence-memorisation challenge, success criteria.
    """
    return agreed(accuracies, rule) >= threshold
