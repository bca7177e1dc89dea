"""From a matplotlib figure to the picture of a report: inline SVG, and PNG for Weights & Biases.

Texts stay texts, so that the browser draws them in its own fonts: titles in any script are readable, and so is a page in
dark colours. Figures are drawn small, as a telephone shows them; nothing goes through pyplot.
"""

import io
import math
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from markupsafe import Markup

from mlpswap.facts import printable
from mlpswap.report.formats import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, GRID, PAPER = "#1f2328", "#d4dae1", "#fefefe"
_VARIABLES = {INK: "var(--ink)", GRID: "var(--line)", PAPER: "var(--paper)"}

# Okabe and Ito's palette, which people with any colour vision tell apart; markers and dashes differ as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")

_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same layout on every machine
    "font.size": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "mlpswap",  # ids depend on the content alone
    "text.color": INK,
    "text.parse_math": False,  # a "$" in a title is a dollar
    "xtick.color": GRID,
    "xtick.labelcolor": INK,
    "ytick.color": GRID,
    "ytick.labelcolor": INK,
}


@dataclass(frozen=True)
class Picture:
    """A figure as it stands in the report. `alt` says what is to be seen; `caption` explains it."""

    name: str
    svg: Markup
    png: bytes
    caption: str


@contextmanager
def drawing() -> Iterator[None]:
    """The style of every figure, whatever the user's own matplotlibrc says."""
    import matplotlib.style

    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        # The PNG shows a box for a letter that DejaVu lacks; the report itself is drawn by the browser.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


def figure(width: float = 5.0, height: float = 3.2) -> "Figure":
    """An empty figure, inches wide and high; to be used inside `drawing`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def picture(name: str, drawn: "Figure", *, alt: str, caption: str) -> Picture:
    """Render a figure; to be used inside `drawing`. `name` is unique within the report."""
    vector, raster = io.StringIO(), io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    drawn.savefig(vector, format="svg", transparent=True, metadata=nothing)
    drawn.savefig(raster, format="png", dpi=144, facecolor="white")
    return Picture(name, _inline(vector.getvalue(), name, alt), raster.getvalue(), caption)


def floats(values: Sequence[float | None]) -> list[float]:
    """Gaps for what was not measured."""
    return [math.nan if value is None else value for value in values]


def label(value: str, limit: int = 24) -> str:
    """A fact as text of a figure: one short line in which nothing is hidden and nothing breaks XML."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cn", "Co") else c
        for c in printable(shortened(value, limit))
    )


def _inline(svg: str, name: str, alt: str) -> Markup:
    """matplotlib's SVG file as an element of a page: ids of its own, colours of the page, no namespaces."""
    root = ElementTree.fromstring(svg)
    referred = set(re.findall(r'(?:url\(|href=")#([^")]+)', svg))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            plain = key.rpartition("}")[2]
            if plain == "id":
                if value not in referred:
                    continue
                value = f"{name}-{value}"
            elif plain == "href" and value.startswith("#"):
                value = f"#{name}-{value[1:]}"
            elif plain == "clip-path":
                value = value.replace("url(#", f"url(#{name}-")
            elif plain == "style":
                value = re.sub(r"font-family: [^;]+(; )?", "", value)
                for colour, variable in _VARIABLES.items():
                    value = value.replace(colour, variable)
            element.set(plain, value)
    for parent in root.iter():
        for style in parent.findall("style"):
            parent.remove(style)
    for attribute in ("width", "height", "version"):
        del root.attrib[attribute]
    width = float(root.attrib["viewBox"].split()[2])
    root.attrib |= {"role": "img", "aria-label": alt, "style": f"max-width: {width * 1.45:.0f}px"}
    return Markup(ElementTree.tostring(root, encoding="unicode"))
