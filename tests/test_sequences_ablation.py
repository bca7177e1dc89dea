"""The ablation of toy models: its searches, what is published beside it, and what each switch changes."""

import json
import shutil
from dataclasses import asdict

import pytest

from mlpswap.cli import main
from mlpswap.cost.search import Found, Outcome
from mlpswap.errors import ConfigError
from mlpswap.sequences.ablation.config import AblationConfig
from mlpswap.sequences.ablation.published import SCALING, published_table
from mlpswap.sequences.ablation.run import cells_of, effects, measure, require_complete, rows_of, search_of
from mlpswap.sequences.ablation.tables import markdown
from mlpswap.sequences.ablation.toy import FULL, SIMPLE, Architecture, every_architecture

TINY = AblationConfig(table=2, scaling=[2, 3], repeats=2, epochs=30, patience=10)
SEEDS = {"trials": 3, "seed": 0, "facts_seed": 42}


def outcome(count, limits):
    """Trials that store as many facts as their limit and a little less of what is more."""
    return Outcome(
        count, 0, 1.0, {"accuracies": [1.0 if count <= each else 0.99 for each in limits], "seconds": 1.0}
    )


def driven(cell, limits, precision=None):
    search, tried = search_of(cell, precision), []
    try:
        count, _ = next(search)
        while True:
            tried.append(count)
            count, _ = search.send(outcome(count, limits))
    except StopIteration as end:
        return end.value, tried


def test_one_set_of_trials_answers_all_three_rules():
    cell = cells_of(AblationConfig(table=None, scaling=[16]), **SEEDS)[0]
    found, tried = driven(cell, [300, 500, 700])
    assert tried[:4] == [512, 768, 640, 704]  # bisection of 1..1024, down to 8 facts
    assert len(tried) == len(set(tried)) == len(found) < 3 * 7
    cells = [cell]
    (row,) = rows_of(cells, {0: found})
    assert 692 <= row["any"][0] <= 700
    assert 492 <= row["most"][0] <= 500
    assert 292 <= row["all"][0] <= 300
    assert (row["published_any"], row["published_all"]) == (792, 120)


def test_the_cells_are_every_architecture_and_the_two_named_ones():
    cells = cells_of(TINY, **SEEDS)
    assert len(cells) == 2 * (54 + 2 * 2)
    assert len({cell.identity for cell in cells}) == 2 * (
        54 + 2
    )  # at d = 2 the named ones are in the table too
    grown = [
        cell
        for cell in cells_of(AblationConfig(), **SEEDS)
        if cell.switches == FULL and cell.part == "scaling"
    ]
    assert {cell.d: cell.epochs for cell in grown} == {16: 50_000, 32: 100_000, 64: 200_000, 128: 400_000}


def test_repeats_have_trials_of_their_own():
    first, second = (
        cell
        for cell in cells_of(TINY, **SEEDS)
        if (cell.part, cell.switches, cell.d) == ("scaling", SIMPLE, 3)
    )
    assert measure(first, 30).figures["accuracies"] == measure(first, 30).figures["accuracies"]
    assert measure(first, 30).figures["accuracies"] != measure(second, 30).figures["accuracies"]


def test_an_easy_number_of_facts_is_stored_and_an_impossible_one_is_not():
    """A linear model of width 3 cannot give 36 pairs of 6 tokens arbitrary labels."""
    config = AblationConfig(table=3, scaling=[], repeats=1, epochs=500, patience=100)
    cells = {cell.switches: cell for cell in cells_of(config, **SEEDS)}
    linear = cells[Architecture("dual", False, False)]
    assert measure(linear, 3).accuracy == 1
    assert measure(linear, 36).accuracy < 1


def test_the_published_table_has_every_architecture():
    table = published_table()
    assert set(table) == set(every_architecture())
    assert table[FULL] == ([848, 816, 872, 808], [720, 696, 632, 704], [320, 248, 384, 448])
    assert table[SIMPLE][0] == [664, 688, 736, 816]
    assert set(SCALING) == {FULL, SIMPLE}


def test_effects_compare_what_differs_in_one_switch():
    """On the published figures: dual embeddings are never behind uniform attention, +39 % at most, as published."""
    rows = [{"part": "table", **asdict(each), "any": four[0]} for each, four in published_table().items()]
    found = {each["switch"]: each for each in effects(rows)}
    assert [each["pairs"] for each in found.values()] == [48, 3, 24, 24, 24, 24, 18, 18]
    assert found["dual embedding / uniform attention"]["least"] >= 1
    assert found["dual embedding / uniform attention"]["most"] == pytest.approx(1.39, abs=0.005)
    assert found["norms / none, without MLP"]["least"] == pytest.approx(1.79, abs=0.04)
    assert found["norms / none, without MLP"]["most"] == pytest.approx(2.74, abs=0.005)


def test_the_tables_show_every_search_and_what_went_wrong():
    cells = cells_of(AblationConfig(table=16, scaling=[16], repeats=2), **SEEDS)
    found = {number: driven(cell, [200, 400, 600])[0] for number, cell in enumerate(cells)}
    found[0] = Found(None, 0, "error", (Outcome(5, 0, None, {"error": "out of memory"}),))
    found[1][999] = Outcome(999, 0, None, {"capped_after": 1.0})
    text = markdown(rows_of(cells, found))
    assert "out of memory" in text
    assert "999 facts took too long" in text
    assert "| FULL | 16 | 2432 | 600 600 | 400 400 | 200 200 | 792 / 744 / 120 |  |" in text
    assert "| GELU / ReLU | 24 |" in text


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablation") / "run"
    words = "table: null, scaling: [2], repeats: 2, epochs: 10, patience: 5, precision: 4"
    assert main(["sequences", f"ablation={{{words}}}", "trials=3", "workers=1", f"output_dir={folder}"]) == 0
    return folder


def test_a_run_leaves_its_tables_and_every_probe(run):
    results = json.loads((run / "results.json").read_text())
    assert (results["kind"], len(results["rows"])) == ("ablation", 2)
    for row in results["rows"]:
        assert len(row["any"]) == len(row["most"]) == len(row["all"]) == 2
        assert all(0 <= low <= high <= 16 for low, high in zip(row["all"], row["any"], strict=True))
    assert results["metrics"]["probes"] == sum(row["probes"] for row in results["rows"]) > 0
    assert "| FULL | 2 |" in (run / "ablation.md").read_text()
    assert (run / "ablation.csv").read_text().startswith("part,name,d,mixing")


def test_a_run_that_was_cut_short_trains_nothing_twice(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    lines = (folder / "probes.jsonl").read_text().splitlines(keepends=True)
    (folder / "probes.jsonl").write_text("".join(lines[:-2]) + lines[-1][:20])
    (folder / "results.json").unlink()
    config = folder / "config.yaml"
    words = ["sequences", f"--config={config}", "--resume", f"output_dir={folder}"]
    assert main(words) == 0
    again = (folder / "probes.jsonl").read_text().splitlines(keepends=True)
    assert again[: len(lines) - 2] == lines[:-2]
    assert len(again) == len(lines)
    rows = [json.loads((each / "results.json").read_text())["rows"] for each in (run, folder)]
    assert [row["any"] for row in rows[0]] == [row["any"] for row in rows[1]]


def test_methods_and_an_ablation_are_not_mixed(capsys):
    assert main(["sequences", "ablation={table: 2}", "methods=[{method: exact}]"]) == 2
    assert "exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    "figures", [{}, {"accuracies": [], "seconds": 1.0}, {"accuracies": [2.0], "seconds": 1.0}]
)
def test_a_record_that_lacks_what_the_table_shows_is_refused(figures):
    with pytest.raises((ValueError, KeyError)):
        require_complete(Outcome(4, 0, 1.0, figures))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": None, "scaling": []}, "neither a table nor a scaling"),
        ({"scaling": [1]}, "ablation.scaling = 1"),
        ({"scaling": [4, 4]}, "names a width twice"),
        ({"patience": 0}, "ablation.patience = 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        AblationConfig(**options)
