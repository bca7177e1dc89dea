"""How numbers and texts look in a report: the same everywhere, and safe whatever a fact contains."""

import math
from typing import Any

from markupsafe import Markup

from mlpswap.facts import printable

NOTHING = "–"
LONGEST = 120  # characters of a fact that are shown


def number(value: Any) -> str:
    """Four significant digits; whole numbers in full; a dash for what was not measured."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or 1e4 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    if value == 0:
        return "0"
    return f"{value:#,.4g}".rstrip(".") if 1e-3 <= abs(value) < 1e4 else f"{value:.3e}"


def accuracy(value: float | None) -> str:
    """Three decimals, of which 1.000 and 0.000 mean all and none."""
    if value is None:
        return NOTHING
    if 0.9995 <= value < 1:
        return "> 0.999"
    return "< 0.001" if 0 < value < 0.0005 else f"{value:.3f}"


def share(value: float | None) -> str:
    """As a percentage."""
    return NOTHING if value is None else f"{100 * value:.3g}\N{NO-BREAK SPACE}%"


def ratio(value: float | None) -> str:
    """A ratio after / before with its change in percent."""
    if value is None:
        return NOTHING
    change = 100 * (value - 1)
    return f"{number(value)} ({change:+.2f}\N{NO-BREAK SPACE}%)" if abs(change) < 1000 else number(value)


def duration(seconds: float | None) -> str:
    """Seconds, from a minute on with the minutes."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def text(value: str) -> str:
    """Any text with its line breaks, and every other control or format character made visible."""
    return "\n".join(printable(line) for line in value.split("\n"))


def shortened(value: str, limit: int) -> str:
    return value if len(value) <= limit else f"{value[: limit - 1]}…"


def fact(value: str) -> Markup:
    """A key or value as HTML: its own direction, hidden characters written out, very long ones cut."""
    parts = []
    for character in shortened(value, LONGEST):
        shown = printable(character)
        # Isolated, so that the letters of an escape do not reorder a title that runs from right to left.
        parts.append(
            Markup('<bdi class="escape" dir="ltr">{}</bdi>').format(shown) if shown != character else shown
        )
    return Markup('<bdi class="fact" dir="auto">{}</bdi>').format(Markup("").join(parts))


def prompt(value: str, key: str) -> Markup:
    """A prompt whose first `key` is set off as a fact."""
    before, found, after = value.partition(key)
    return Markup('<span class="prompt">{}{}{}</span>').format(
        printable(shortened(before, LONGEST)),
        fact(key) if found else "",
        printable(shortened(after, LONGEST)),
    )


def answer(value: str, wanted: str, *, correct: bool = False) -> Markup:
    """An answer with a mark that says, in colour, shape and words, whether it is the wanted one; with `correct`, a wrong
    one is followed by the wanted one.
    """
    good = value == wanted
    html = Markup(
        '<span class="{0}"><span class="mark" role="img" aria-label="{0}:">{1}</span> {2}</span>'
    ).format("right" if good else "wrong", "✓" if good else "✗", fact(value))
    return (
        html
        if good or not correct
        else html + Markup(' <span class="wanted">wanted: {}</span>').format(fact(wanted))
    )


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def listed(names: list[str]) -> str:
    """a / a and b / a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
