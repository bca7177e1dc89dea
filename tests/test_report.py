"""The report: what it says follows from the numbers, and nothing in a fact can act on the page."""

import json
import re
import unicodedata
import warnings
from html.parser import HTMLParser

import pytest

from mlpswap.benchmark.ties import TIE_RULE, tolerance
from mlpswap.cli import main
from mlpswap.editing.evaluation import DEFINITIONS as EDITING
from mlpswap.errors import CheckpointError, RunFolderError
from mlpswap.facts import printable
from mlpswap.metrics import DEFINITIONS
from mlpswap.report import write_report
from mlpswap.report.formats import accuracy, duration, number, ratio
from mlpswap.report.standings import overall, stand
from mlpswap.report.training_figures import attention_map
from tests import report_samples as samples


class Page(HTMLParser):
    """What a browser would make of the report: tags with attributes, and all text."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self._silent = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("style", "svg"):
            self._silent = tag

    def handle_endtag(self, tag):
        if tag == self._silent:
            self._silent = ""
        if tag in ("dt", "dd", "th", "td"):
            self.pieces.append(" ")

    def handle_data(self, data):
        if not self._silent:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        """All text outside of figures, on one line."""
        return " ".join("".join(self.pieces).split())

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


def report(folder, results, lines=None) -> tuple[str, Page]:
    write_report(samples.write_run(folder, results, lines))
    html = (folder / "report.html").read_text(encoding="utf-8")
    return html, Page(html)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One report of each sort, written once: name -> (html, page, figures)."""
    root = tmp_path_factory.mktemp("reports")
    runs = {
        "books": samples.books(),
        "ssfr": samples.ssfr(),
        "benchmark": samples.benchmark(),
        "loose": samples.benchmark(dict.fromkeys(samples.SCORES, (1.0, 1.0, 1.0)), loose=True),
        "no numbers": samples.without_numbers(samples.books()),
        "benchmark without numbers": samples.without_numbers(samples.benchmark()),
        "benchmark without base": samples.benchmark() | {"base": None, "base_metrics": []},
    }
    done = {}
    for name, results in runs.items():
        figures = write_report(samples.write_run(root / name, results))
        html = (root / name / "report.html").read_text(encoding="utf-8")
        done[name] = html, Page(html), figures
    return done


EVERY = [
    "books",
    "ssfr",
    "benchmark",
    "loose",
    "no numbers",
    "benchmark without numbers",
    "benchmark without base",
]


@pytest.mark.parametrize("name", EVERY)
def test_page_stands_alone(pages, name):
    """No script, no handler, and no reference that leaves the file: it opens without a network, years later."""
    html, page, _ = pages[name]
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "object", "embed", "form", "base"}
    # A matrix in a figure is a raster inside of the page.
    assert all(attrs["href"].startswith("data:image/png;") for tag, attrs in page.tags if tag == "image")
    assert not [key for _, attrs in page.tags for key in attrs if key.startswith("on")]
    for attribute in ("src", "href", "xlink:href", "data", "srcset", "action"):
        assert all(value.startswith(("#", "data:")) for value in page.attributes(attribute)), attribute
    styles = "".join(page.attributes("style") + re.findall(r"<style>.*?</style>", html, re.S))
    assert "@import" not in styles
    assert all(
        target.startswith("#")
        for target in re.findall(r"url\((.*?)\)", styles + " ".join(page.attributes("clip-path")))
    )


@pytest.mark.parametrize("name", EVERY)
def test_ids_are_unique_and_every_reference_resolves(pages, name):
    """Several figures in one page must not take each other's markers, nor headings each other's anchors."""
    html, page, _ = pages[name]
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for value in page.attributes("href") if value.startswith("#")}
    wanted |= set(page.attributes("aria-labelledby")) | set(re.findall(r"url\(#([^)]*)\)", html))
    assert wanted <= set(ids)


@pytest.mark.parametrize("name", EVERY)
def test_page_can_be_heard_and_walked(pages, name):
    """Language, one h1, no level skipped, every figure described, every table with caption and scopes."""
    _, page, figures = pages[name]
    assert ("html", {"lang": "en"}) in page.tags
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    drawings = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(drawings) >= len(figures)
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in drawings)
    counts = [sum(tag == wanted for tag, _ in page.tags) for wanted in ("table", "caption")]
    assert counts[0] == counts[1] > 0
    assert all(attrs.get("scope") in ("row", "col") for tag, attrs in page.tags if tag == "th")


@pytest.mark.parametrize("name", EVERY)
def test_figures_are_kept_as_files_too(pages, name):
    assert len(pages[name][2]) >= 4


@pytest.mark.parametrize("name", EVERY)
def test_no_control_or_format_character_reaches_the_page(pages, name):
    """An override or an escape sequence in a title is written out, in figures and attributes as well."""
    html, page, _ = pages[name]
    assert not {c for c in html if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}
    if name == "books":
        assert r"zero\u200bwidth\u202eoverride\x1b[31m" in page.text


def test_hostile_facts_are_text(pages):
    """Markup, template syntax and mathtext in titles show as they are, each with its own direction."""
    _, page, _ = pages["books"]
    for pair in samples.HOSTILE:
        for text in pair:
            shown = printable(text) if len(text) <= 120 else text[:100]
            assert " ".join(shown.split()) in page.text
    directions = [attrs for tag, attrs in page.tags if tag == "bdi" and attrs.get("class") == "fact"]
    assert directions
    assert all(attrs["dir"] == "auto" for attrs in directions)


@pytest.mark.parametrize(
    "token", [key for key, _ in samples.HOSTILE] + ["\ufffe", "\U0001ffff", "]]>", 'id="x"', "$5_and^$"]
)
def test_any_token_can_be_drawn(token):
    """Tokens that break XML, look like mathtext or lack a glyph neither fail nor warn in the attention picture."""
    drawn = attention_map(samples._attention(["The", token, "is"], 1))
    assert drawn.png.startswith(b"\x89PNG")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn.svg)
    if token in ("]]>", 'id="x"', "$5_and^$"):
        assert token.replace(">", "&gt;") in texts


def test_training_report_shows_every_number_with_its_meaning(pages):
    """Headline figures, guess rate, definitions, rows, settings and provenance of a run on books."""
    _, page, figures = pages["books"]
    for text in (
        "width d = 128", "256 facts", "h = 512", "196,608 parameters", "In 400 steps, 25.4 s", "254 of 256 facts",
        "accuracy before the swap 0.996", "accuracy after the swap 0.993", "commonest value would score 0.004",
        "> 0.999", "1.011 (+1.12 %)", "96 % of the attention is on the key", "hebbian", "gd", "0.871",
        "2,048 (trained), 2,048 (held out)", "a" * 64, "0123456789abcdef", "torch 2.13.0", "seed 7", "threads 2",
    ):  # fmt: skip
        assert text in page.text.replace("\xa0", " "), text
    for name, definition in DEFINITIONS.items():
        assert f"define-{name}" in page.attributes("id")
        assert definition in page.text
    assert list(figures) == ["loss", "learning", "attention", "templates"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures.values())
    assert "below 0.9" not in page.text.lower()


def test_answers_are_marked_right_or_wrong(pages):
    """A wrong answer says so in words and is followed by the wanted one."""
    _, page, _ = pages["books"]
    marks = [attrs["aria-label"] for _, attrs in page.tags if attrs.get("class") == "mark"]
    assert marks.count("wrong:") == 1
    assert marks.count("right:") == 19
    wrong = samples.HOSTILE[2][1], samples.HOSTILE[1][1]
    assert f"✗ {wrong[0]} wanted: {wrong[1]}" in page.text


def test_complete_configuration_can_be_copied(pages):
    """The YAML in the page is the configuration, key for key."""
    import yaml

    html, _, _ = pages["books"]
    inside = Page(re.findall(r"<pre.*?</pre>", html, re.S)[0])
    assert yaml.safe_load("".join(inside.pieces)) == samples.books()["config"]


def test_ssfr_report_leaves_out_what_was_not_measured(pages):
    """No language, no unseen templates; the missing usability is a dash; the failing template is flagged."""
    _, page, _ = pages["ssfr"]
    for absent in ("nonfact", "cross-entropy ratio", "held", "unseen templates", "gate_other"):
        assert absent not in page.text
    assert "usability –" in page.text
    assert "Below 0.9: template 4." in page.text
    assert page.text.count("⚠") == 1


def test_missing_numbers_are_dashes_not_zeros(pages):
    """A null in the results never shows as a number, in words or as a failure."""
    for name in ("no numbers", "benchmark without numbers"):
        _, page, figures = pages[name]
        assert "–" in page.text
        assert "nan" not in page.text.lower().split()
        assert "None" not in page.text
        assert figures


def test_run_without_events_has_no_curves(tmp_path):
    """A run resumed at its end logs nothing: the report is written all the same."""
    _, page = report(tmp_path, samples.books(), [])
    assert "Learning" in page.text
    assert sum(tag == "svg" for tag, _ in page.tags) == 2


def test_early_stop_is_told(tmp_path):
    """A run that stopped early is not presented as one that ran all its steps."""
    line = {"event": "early_stop", "step": 300, "adaptive_accuracy": 0.99}
    _, page = report(tmp_path, samples.books(), [*samples.events(), line])
    assert "(stopped early)" in page.text


def test_benchmark_report_explains_its_numbers(pages):
    """Both kinds of rows, the names of the paper, the two means, the single seed, settings, notes and the base."""
    _, page, figures = pages["benchmark"]
    text = page.text.replace("\xa0", " ")
    for part in (
        "Oracle : the best setting chosen and reported on the same facts", "chosen on one half of the facts",
        "Never compare a harmonic with a geometric score", "A.3.4, gives efficacy and specificity each other's names",
        "one seed (0)", "lam = 150.0", "alphaedit: null space empty", "26 altered facts (10.2 %), 230 preserved",
        "1 of the altered got their old value by chance", "The base is tight: h = 40", "The base model", "Setup of the base",
    ):  # fmt: skip
        assert part.replace(" :", ":") in text, part
    for name, definition in EDITING.items():
        if name != "nonfact_word_ppl_ratio":  # not a column
            assert definition in text
            assert f"define-edit-{name}" in page.attributes("id")
    own = ["scores", "language", "grid", "seconds"]
    assert list(figures) == own + [f"base_{name}" for name in ("loss", "learning", "attention", "templates")]
    assert "swap wins at every one of 3 shares of altered facts." in text


def test_a_tie_is_told_by_the_rule_that_decides_it(pages):
    """The page and the table at the end of a run say it in the same words; just within and just beyond it."""
    assert TIE_RULE in pages["benchmark"][1].text
    for facts, width in ((10, 1 / 30), (1000, 0.005)):
        assert tolerance(facts) == pytest.approx(width)
        assert len(stand({"swap": 0.9, "rome": 0.9 - 0.99 * width}, facts).winners) == 2
        assert len(stand({"swap": 0.9, "rome": 0.9 - 1.01 * width}, facts).winners) == 1


def test_benchmark_without_a_base_says_so(pages):
    """A model from elsewhere has no training run to show."""
    _, page, figures = pages["benchmark without base"]
    assert "were not found beside it" in page.text
    assert "base" not in page.attributes("id")
    assert len(figures) == 4


def test_loose_base_is_explained(pages):
    """Where every editor wins, the reader learns that the base is the reason."""
    _, page, _ = pages["loose"]
    assert "This base is loose" in page.text
    assert "one linear solve changes any of them exactly" in page.text
    assert "so editors tie" not in page.text  # MEMIT and FT-L do not, for reasons of their own
    assert "held back by its own limits" in page.text
    assert "No editor wins: alphaedit, memit, rome and swap tie at every share" in page.text
    assert "This base is loose" not in pages["benchmark"][1].text


def test_page_admits_that_another_editor_beats_swap(tmp_path):
    """The headline follows the selected rows, whoever wins."""
    scores = {"swap": (0.9, 0.9, 0.9), "memit": (0.999, 0.999, 0.999), "rome": (0.5, 0.5, 0.5)}
    results = samples.benchmark(scores)
    for row in results["rows"]:  # few facts are a coarse measure: leave the two larger splits
        row["altered"] = {5: 60, 13: 80, 26: 100}[row["altered"]]
    _, page = report(tmp_path, results)
    assert "memit wins at every one of 3 shares of altered facts, and beats swap." in page.text
    assert "memit (0.999) beats swap (0.900); then rome (0.500)." in page.text


@pytest.mark.parametrize(
    ("scores", "facts", "sentence"),
    [
        ({"swap": 0.98, "rome": 0.8}, 100, "swap (0.980) wins; then rome (0.800)."),
        ({"swap": 0.8, "rome": 0.98}, 100, "rome (0.980) beats swap (0.800)."),
        ({"swap": 0.98, "rome": 0.978}, 1000, "swap (0.980) and rome (0.978) tie."),
        (
            {"rome": 0.98, "swap": 0.95},
            10,
            "rome (0.980) and swap (0.950) tie.",
        ),  # within a third of one of ten facts
        (
            {"rome": 0.98, "memit": 0.98, "swap": 0.5},
            90,
            "rome (0.980) and memit (0.980) tie and beat swap (0.500).",
        ),
        ({"rome": 0.98, "memit": 0.5}, 90, "rome (0.980) wins; then memit (0.500)."),
        (
            {"swap": 0.98, "rome": None},
            90,
            "only swap (0.980) was scored: there is nothing to compare it with.",
        ),
        ({"swap": None}, 90, "no editor has a score."),
        ({"swap": 0.0, "rome": 0.0}, 90, "swap (0.000) and rome (0.000) tie."),
    ],
)
def test_sentence_about_the_winner_follows_from_the_scores(scores, facts, sentence):
    """Win, loss, tie, absence: each said as it is."""
    assert stand(scores, facts).sentence == sentence


@pytest.mark.parametrize(
    ("splits", "sentence"),
    [
        ([(0.9, 0.5), (0.9, 0.5)], "swap wins at every one of 2 shares of altered facts."),
        ([(0.5, 0.9)], "rome wins, and beats swap."),
        ([(0.9, 0.9)], "No editor wins: rome and swap tie."),
        ([(0.9, 0.5), (0.5, 0.9), (0.7, 0.7)],
         "swap wins at 1 of 3 shares of altered facts and rome wins at 1 of 3 shares of altered facts; one is a tie."),
        ([(None, 0.9)], "There is nothing to compare: fewer than two editors were scored."),
    ],
)  # fmt: skip
def test_headline_counts_every_split(splits, sentence):
    """A win at one share of altered facts is not sold as a win everywhere."""
    assert overall([stand({"swap": swap, "rome": rome}, 200) for swap, rome in splits]) == sentence


def test_same_results_same_report(pages, tmp_path):
    """Nothing of the moment of writing enters: page and figures are equal byte for byte."""
    html, _, figures = pages["benchmark"]
    folder = samples.write_run(tmp_path / "benchmark", samples.benchmark())
    again = write_report(folder)
    assert (folder / "report.html").read_text(encoding="utf-8") == html
    assert {name: path.read_bytes() for name, path in again.items()} == {
        name: path.read_bytes() for name, path in figures.items()
    }


def test_users_own_plot_style_neither_matters_nor_changes(pages, tmp_path):
    """A foreign matplotlib style must not break the figures, and drawing must leave it and the warnings alone."""
    import matplotlib

    folder = samples.write_run(tmp_path / "books", samples.books())
    filters = list(warnings.filters)
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "red", "font.size": 30}):
        write_report(folder)
        assert matplotlib.rcParams["font.size"] == 30
    assert (folder / "report.html").read_text(encoding="utf-8") == pages["books"][0]
    assert warnings.filters == filters


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        ("{broken", "cannot be read"),
        ("[]", "should be an object with kind"),
        (json.dumps({"kind": "riddle"}), "no report for kind 'riddle'"),
    ],
)
def test_folder_without_results_is_refused_in_one_sentence(tmp_path, content, message):
    """Missing, damaged or foreign results name the file and leave no page behind."""
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises((RunFolderError, CheckpointError), match=message) as error:
        write_report(tmp_path)
    assert "results.json" in str(error.value)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    "damage", [[], {"kind": "sequences", "rows": [3]}, {"kind": "train"}, {"kind": "benchmark", "rows": None}]
)
def test_the_verb_names_results_that_lack_what_a_report_needs(tmp_path, capsys, damage):
    """A file from another version or an unlucky hand is no mistake of the program."""
    (tmp_path / "results.json").write_text(json.dumps(damage))
    (tmp_path / "metrics.jsonl").write_text("")
    assert main(["report", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "results.json" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_numbers_are_printed_alike_everywhere():
    """Rounding never turns nearly all into all, nor hardly any into none."""
    assert [accuracy(x) for x in (1.0, 0.9999, 0.99349, 0.0001, 0.0, None)] == [
        "1.000", "> 0.999", "0.993", "< 0.001", "0.000", "–",
    ]  # fmt: skip
    assert [number(x) for x in (196608, 1.01123, 1.0, 1234.5, 45678.9, 0.0001234, float("nan"), None, 0.0)] == [
        "196,608", "1.011", "1.000", "1,234", "45,679", "1.234e-04", "–", "–", "0",
    ]  # fmt: skip
    assert [duration(x) for x in (0.4213, 75, 7384, None)] == ["0.421 s", "1 min 15 s", "2 h 3 min", "–"]
    assert [ratio(x) for x in (1.0112, 0.9, 250.0, None)] == [
        "1.011 (+1.12\xa0%)",
        "0.9000 (-10.00\xa0%)",
        "250.0",
        "–",
    ]
