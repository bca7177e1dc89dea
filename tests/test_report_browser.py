"""The report in a real browser, on a telephone and on a desk: it fits, it shows facts as they are, nothing runs."""

import html
import json
import re
import shutil
import subprocess

import pytest

from mlpswap.facts import printable
from mlpswap.report import write_report
from tests import report_samples as samples

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

WIDTHS = {"phone": 360, "desk": 1280}
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--dump-dom",
)  # fmt: skip

# Frames of the same origin, so that their layout can be read. Without the page's own policy against scripts: what
# is tested is that facts are escaped, not that a second fence holds.
HARNESS = """<!doctype html><meta charset="utf-8"><title>untouched</title>{frames}<pre id="found"></pre><script>
window.onload = () => {{
  const found = {{}};
  for (const frame of document.querySelectorAll("iframe")) {{
    const page = frame.contentDocument, root = page.documentElement, body = page.body;
    const all = query => [...page.querySelectorAll(query)];
    const outside = element => element.getBoundingClientRect().right > root.clientWidth + 1 && !element.closest(".scroll");
    found[frame.id] = {{
      client: root.clientWidth, scroll: Math.max(root.scrollWidth, body.scrollWidth), title: page.title,
      foreign: all("script, img, b, object").length,
      outside: all("main *").filter(outside).map(e => e.outerHTML.slice(0, 80)),
      facts: all("bdi.fact").map(e => e.textContent),
      labels: all("svg text").map(e => e.textContent),
      hidden: all("svg").filter(e => e.getBoundingClientRect().width < 200).length,
      small: all("main p, td, figcaption").filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length,
      broken: all("use").filter(e => !page.querySelector(e.getAttribute("href"))).length,
      rtl: all("bdi.fact").filter(e => getComputedStyle(e).direction === "rtl").map(e => e.textContent),
    }};
  }}
  document.getElementById("found").textContent = document.title + " " + JSON.stringify(found);
}};
</script>"""


@pytest.fixture(scope="module", params=["books", "benchmark"])
def found(request, tmp_path_factory):
    """What the browser made of a report at each width."""
    folder = samples.write_run(tmp_path_factory.mktemp("browser") / "run", getattr(samples, request.param)())
    write_report(folder)
    page = re.sub(
        r"<meta http-equiv=[^>]*>", "", (folder / "report.html").read_text(encoding="utf-8"), count=1
    )
    frames = "".join(
        f'<iframe id="{name}" style="width: {width}px; height: 900px; border: 0" srcdoc="{html.escape(page)}"></iframe>'
        for name, width in WIDTHS.items()
    )
    harness = folder / "harness.html"
    harness.write_text(HARNESS.format(frames=frames), encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", harness.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    text = html.unescape(re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)[-1])
    title, _, content = text.partition(" ")
    assert title == "untouched"
    return json.loads(content)


@pytest.mark.parametrize("width", WIDTHS)
def test_page_does_not_scroll_sideways(found, width):
    """Wide tables scroll inside their own box; nothing else sticks out."""
    measured = found[width]
    assert measured["client"] >= WIDTHS[width] - 20  # less a scroll bar
    assert measured["scroll"] <= measured["client"]
    assert measured["outside"] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_figures_and_texts_are_large_enough(found, width):
    """Figures fill a telephone, and no text shrinks to fit."""
    assert found[width]["hidden"] == 0
    assert found[width]["small"] == 0
    assert found[width]["broken"] == 0


def test_hostile_titles_are_literal_text(found):
    """Every title reads as it was written, hidden characters as escapes, and no element comes out of one."""
    for measured in found.values():
        for key, _ in samples.HOSTILE:
            assert any(text.startswith(printable(key)[:100]) for text in measured["facts"]), key
        assert measured["foreign"] == 0
        assert measured["title"].startswith("run")
        assert any("<script>" in label for label in measured["labels"])


def test_titles_from_right_to_left_keep_their_direction(found):
    """Hebrew and Arabic run their own way inside an English table, and only they do."""
    shown = set(found["desk"]["rtl"])
    assert {"שלום עולם", "نجيب محفوظ"} <= shown
    assert not any(text.isascii() for text in shown)
