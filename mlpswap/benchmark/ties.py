"""When two editors count as equally good: decided here, and said here for the table and for the report."""

CLOSE = 0.005  # scores nearer than this are a tie at any number of facts

TIE_RULE = (
    f"An editor ties with the best one if its harmonic score is less than max({CLOSE}, 1 / (3 N)) below the best, where N is "
    "the number of altered facts scored: all of them for oracle, half of them, rounded up, for selected. One fact more or less "
    "moves the score by about 1 / (3 N)."
)


def scored(altered: int, selection: str) -> int:
    """N: how many altered facts a row of this selection is reported on."""
    return altered - altered // 2 if selection == "selected" else altered


def tolerance(facts: int) -> float:
    """By less than this no editor is said to win over `facts` altered facts.

    One fact more or less moves efficacy by 1/facts, and the harmonic mean of three about a third of that.
    """
    return max(CLOSE, 1 / (3 * max(facts, 1)))
