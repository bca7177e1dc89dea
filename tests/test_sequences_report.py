"""The reports of sequence memorisation: laws, pictures of weights, tables, and pages that stand alone."""

import dataclasses
import json
import math

import pytest
import torch

from mlpswap.errors import CheckpointError
from mlpswap.report import sequences_figures, write_report
from mlpswap.report.sequences_figures import facts_by_method, varied_sizes
from mlpswap.sequences.ablation.config import AblationConfig
from mlpswap.sequences.ablation.run import cells_of, rows_of, search_of
from mlpswap.sequences.board.config import SequenceEntry, SequencesConfig
from mlpswap.sequences.board.laws import Law, fit_law
from mlpswap.sequences.board.pictured import FILE, build_pictured, load_pictured, pictured_rows, save_pictured
from mlpswap.sequences.board.probe import measure
from mlpswap.sequences.facts import draw_pair_facts
from tests import report_samples as samples
from tests import test_report
from tests.test_sequences_ablation import SEEDS, outcome

LABEL = "trained <script>|& $x_1$"


def row(method, kind, d, threshold, facts, **more):
    size = {"d": d, "tokens": 2 * d, "labels": d, "parameters": 5 * d * d}
    rules = {
        rule: None if facts is None else facts - less for less, rule in enumerate(("any", "most", "all"))
    }
    found = {
        "any_unbroken": facts,
        "any_options": {"recipe": "challenge"},
        "bits": 9,
        "margin": 0.01,
        "seconds": 0.5,
    }
    beside = {f"published_{rule}": None for rule in rules} | {"beside": "trained"}
    return {
        "method": method, "kind": kind, "column": "trained", "threshold": threshold, "trials": 11, "note": "",
        **size, **rules, **found, **beside, **more,
    }  # fmt: skip


ROWS = [
    row(LABEL, "trained", 8, 1.0, 132, frontier=[[7, 30], [9, 132]]),
    row(LABEL, "trained", 8, 0.9, 215),
    row(
        LABEL,
        "trained",
        16,
        1.0,
        560,
        published_any=568,
        published_most=424,
        published_all=336,
        frontier=[[6, 20], [9, 560]],
    ),
    row(LABEL, "trained", 16, 0.9, 780),
    row("hand-coded", "hand_coded", 16, 1.0, 60, frontier=[[2, 31], [3, 60]]),
    row("hand-coded", "hand_coded", 8, 1.0, None, note="not run"),
]


def board(rows=ROWS):
    config = {"trials": 11, "seed": 0, "methods": [{"label": LABEL}]}
    return {
        "schema": 1, "kind": "sequences", "config": config, "metrics": {}, "rows": rows,
        "environment": samples.books()["environment"],
    }  # fmt: skip


def ablation():
    cells = cells_of(AblationConfig(table=16, scaling=[16, 32], repeats=2), **SEEDS)
    found = {}
    for number, cell in enumerate(cells):
        search, limits = search_of(cell, None), [30 * cell.d, 40 * cell.d, 45 * cell.d + number % 54]
        try:
            count, _ = next(search)
            while True:
                count, _ = search.send(outcome(count, limits))
        except StopIteration as end:
            found[number] = end.value
    return board(rows_of(cells, found)) | {"kind": "ablation"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    root, done = tmp_path_factory.mktemp("reports"), {}
    for name, results in (("board", board()), ("ablation", ablation()), ("nothing", board(ROWS[-1:]))):
        folder = samples.write_run(root / name, results)
        if name == "board":
            save_pictured(folder / FILE, [build_pictured(configured(), ROWS[0])])
        figures = write_report(folder)
        html = (folder / "report.html").read_text(encoding="utf-8")
        done[name] = html, test_report.Page(html), figures
    return done


def configured():
    return SequencesConfig(
        methods=[SequenceEntry("trained", LABEL), SequenceEntry("hand_coded", "hand-coded")]
    )


@pytest.mark.parametrize("name", ["board", "ablation", "nothing"])
@pytest.mark.parametrize(
    "check",
    [
        test_report.test_page_stands_alone,
        test_report.test_ids_are_unique_and_every_reference_resolves,
        test_report.test_page_can_be_heard_and_walked,
        test_report.test_no_control_or_format_character_reaches_the_page,
    ],
    ids=lambda check: check.__name__.removeprefix("test_"),
)
def test_page_keeps_the_rules_of_every_report(pages, name, check):
    check(pages, name)


def test_the_board_is_drawn_and_told(pages):
    html, page, figures = pages["board"]
    assert set(figures) == {"facts_1", "facts_0_9", "bits_1", "weights"}
    assert all(path.stat().st_size > 5000 for path in figures.values())
    assert html.count("data:image/png;base64,") == 4  # three matrices and the activations
    assert "560 / 559 / 558 568 / 424 / 336" in page.text
    assert f"560 {LABEL} / 568" in page.text
    assert f"{LABEL} 16 20 20 560 560" in page.text  # in 6, 8, 10 and 11 bits
    assert "at 8 bits and d = 16, hand-coded stores the most, 60" in html
    law = fit_law({8: 132, 16: 560})
    assert f"{law.factor:.3g} d^{law.power:.2f} / ln d" in page.text
    assert "not run" in page.text


def test_the_ablation_is_drawn_and_told(pages):
    _, page, figures = pages["ablation"]
    assert set(figures) == {"architectures", "scaling"}
    assert "792 / 744 / 120" in page.text
    assert "GELU / ReLU 24" in page.text


def test_a_board_of_which_nothing_was_run_has_no_pictures(pages):
    _, page, figures = pages["nothing"]
    assert not figures
    assert "not run" in page.text


def test_a_law_is_found_again():
    law = Law(2.5, 1.9)
    found = fit_law({d: law(d) for d in (8, 16, 32, 64)})
    assert (found.factor, found.power) == (pytest.approx(2.5), pytest.approx(1.9))
    assert fit_law({16: 500.0}) is None
    assert fit_law({16: 500.0, 32: 0}) is None
    assert law(math.e) == pytest.approx(2.5 * math.e**1.9)


def test_a_law_is_drawn_as_far_as_its_facts_go(monkeypatch):
    """Beyond, it would look like a result."""
    drawn = []
    monkeypatch.setattr(sequences_figures, "_draw_law", lambda axes, law, sizes, **style: drawn.append(sizes))
    sequences_figures.growth_picture([*ROWS, row("other", "trained", 32, 1.0, 2000)], 1.0, "facts")
    assert drawn[:3] == [[8, 16], [16], [32]]


def test_other_vocabularies_are_no_part_of_a_law():
    wide = row("x", "trained", 8, 1.0, 999, tokens=40)
    assert facts_by_method([*ROWS, wide], 1.0) == {LABEL: {8: 132, 16: 560}, "hand-coded": {16: 60}}


def test_sizes_that_grow_together_and_apart_are_told_apart(tmp_path):
    swept = [
        row("hand-coded", "hand_coded", d, t, 60, tokens=tokens, labels=labels, any_options=options)
        for t in (1.0, 0.9)
        for d, tokens, labels, options in (
            (8, 16, 8, {"neurons_per_label": 2, "top_fraction": 0.1}),
            (16, 32, 16, {"neurons_per_label": 4, "top_fraction": 0.02}),
            (16, 64, 16, {"neurons_per_label": 3, "top_fraction": 0.02}),
            (32, 32, 16, {"neurons_per_label": 6, "top_fraction": 0.02}),
        )
    ]
    panels = varied_sizes(swept)
    sizes = {
        title: [each[key] for each in own if each["threshold"] == 1] for title, (key, own) in panels.items()
    }
    assert sizes == {"d = V / 2 = C": [8, 16], "d alone": [16, 32], "V alone": [32, 64]}
    assert "sweep" in write_report(samples.write_run(tmp_path / "sweep", board(swept)))


def test_one_network_of_each_kind_is_pictured_at_one_width():
    better = row("hand-coded, better", "hand_coded", 16, 1.0, 70)
    assert [each["method"] for each in pictured_rows([*ROWS, better])] == ["hand-coded, better", LABEL]
    assert pictured_rows(ROWS[-1:]) == []


def test_what_is_pictured_is_the_network_that_stores_the_facts():
    """The very trials of the board: the best of them has the accuracy that the probe measured."""
    from mlpswap.sequences.board.run import tasks_of

    config = dataclasses.replace(configured(), d=[8], trials=3, facts_seed=5)
    cell = tasks_of(config)[0].cell
    probe = measure(cell, 132)
    pictured = build_pictured(config, ROWS[0] | {"trials": 3})
    facts = draw_pair_facts(132, 16, 8, seed=5)
    assert pictured.network.accuracy(facts) == probe.accuracy
    assert torch.equal(pictured.facts.second, facts.second)


def test_pictured_networks_come_back_from_their_file(tmp_path):
    path = tmp_path / FILE
    assert load_pictured(path) == []
    pictured = build_pictured(configured(), ROWS[0])
    save_pictured(path, [pictured, dataclasses.replace(pictured, name="again")])
    first, again = load_pictured(path)
    assert (first.name, again.name, len(again.facts)) == (LABEL, "again", 132)
    assert torch.equal(first.network.unembedding, pictured.network.unembedding)
    assert again.network.accuracy(again.facts) == pictured.network.accuracy(pictured.facts)


@pytest.mark.parametrize("damage", ["empty", "cut", "other", "not finite"])
def test_a_damaged_file_of_networks_is_named(tmp_path, damage):
    from safetensors.torch import save_file

    path = tmp_path / FILE
    pictured = build_pictured(configured(), ROWS[0])
    if damage == "not finite":
        network = dataclasses.replace(pictured.network, first=pictured.network.first * math.nan)
        pictured = dataclasses.replace(pictured, network=network)
    save_pictured(path, [pictured])
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "other":
        save_file(
            {"x": torch.zeros(2)}, path, {"networks": json.dumps([{"name": "a", "tokens": 16, "labels": 8}])}
        )
    with pytest.raises(CheckpointError, match=f"{FILE} cannot be read"):
        load_pictured(path)
