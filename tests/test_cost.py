"""`mlpswap cost`: builds in processes of their own, read back when resumed, and a table that says what was found."""

import csv
import json
import math
import multiprocessing
import os
import signal
import time

import pytest
import torch

from mlpswap.cli import main
from mlpswap.constructions import build_fact_mlp
from mlpswap.cost import pool
from mlpswap.cost.probe import Cell, accuracy, build_and_measure, fact_bits, rounded, values_of
from mlpswap.cost.records import read_probes
from mlpswap.cost.run import require_complete
from mlpswap.cost.search import smallest_size, verify
from mlpswap.embeddings import spherical
from mlpswap.errors import CheckpointError
from mlpswap.report.cost import cost_picture


def run_searches(searches, known, **options):
    return pool.run_searches(searches, known, measure=build_and_measure, **options)


SMALL = ["facts=[48]", "d=[16]", "seeds=[0, 1]", "workers=2"]
WHITENED = "{construction: hebbian, label: whitened, options: {variant: whitened}}"
GD = "{construction: gd, size: 12, options: {kind: bilinear}}"


def cell(**changes):
    base = {
        "name": "w", "construction": "hebbian", "options": {"variant": "whitened"}, "varies": "h", "facts": 48, "d": 16,
        "embeddings": "spherical", "kappa": 0.0, "alpha": 0.0,
    }  # fmt: skip
    return Cell(**(base | changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cost") / "run"
    words = ["cost", f"constructions=[{WHITENED}, {GD}]", *SMALL, f"output_dir={folder}"]
    assert main(words) == 0
    return folder, words


def test_a_search_leaves_tables_a_picture_and_every_build(run):
    folder, _ = run
    results = json.loads((folder / "results.json").read_text())
    rows = {row["construction"]: row for row in results["rows"]}
    assert set(rows) == {"whitened", "gd"}
    builds = [json.loads(line) for line in (folder / "probes.jsonl").read_text().splitlines()]
    for name, row in rows.items():
        assert row["parameters"] == 3 * 16 * row["size"]
        assert row["ratio"] == pytest.approx(row["parameters"] / (48 * math.log2(48)))
        own = [build for build in builds if build["cell"]["name"] == name]
        assert {b["seed"] for b in own if b["size"] == row["size"] and b["accuracy"] == 1} == {0, 1}
        assert any(b["size"] == row["below"] and b["accuracy"] < 1 for b in own)
        assert row["size"] - row["below"] == 1
    assert rows["gd"]["parameters"] < rows["whitened"]["parameters"]
    assert "| whitened | 48 | 16 |" in (folder / "cost.md").read_text()
    table = list(csv.DictReader((folder / "cost.csv").read_text().splitlines()))
    assert [int(line["size"]) for line in table] == [row["size"] for row in results["rows"]]
    assert (folder / "report.html").stat().st_size > 10_000
    assert (folder / "figures" / "cost.png").read_bytes().startswith(b"\x89PNG")


def test_a_resumed_search_builds_nothing_twice(run, capsys):
    """Not even where a kill cut the last line short; the cut build is done again."""
    folder, words = run
    before = json.loads((folder / "results.json").read_text())["rows"]
    lines = (folder / "probes.jsonl").read_text().splitlines()
    (folder / "results.json").unlink()
    (folder / "probes.jsonl").write_text("\n".join(lines[:-2]) + "\n" + lines[-2][:30])
    assert main([*words, "--resume"]) == 0
    again = (folder / "probes.jsonl").read_text().splitlines()
    assert len(again) == len(lines)
    after = json.loads((folder / "results.json").read_text())["rows"]
    same = ("construction", "size", "below", "parameters", "accuracy", "margin")
    assert [[row[n] for n in same] for row in after] == [[row[n] for n in same] for row in before]
    (folder / "probes.jsonl").write_text("{}\n" + "\n".join(lines) + "\n")
    assert main([*words, "--resume"]) == 2
    assert "probes.jsonl cannot be read" in capsys.readouterr().err


def test_without_a_search_sizes_are_verified(tmp_path, capsys):
    entry = (
        "{construction: hebbian, size: 45, options: {variant: whitened}, published: 8, published_seeds: [3]}"
    )
    words = ["cost", f"constructions=[{entry}]", *SMALL, "search=false", f"output_dir={tmp_path / 'x'}"]
    assert main(words) == 0
    (row,) = json.loads((tmp_path / "x" / "results.json").read_text())["rows"]
    assert (row["size"], row["published"], row["published_holds"]) == (45, 8, False)
    assert "8 fails on 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "constructions"),
        (["constructions=[{construction: magic}]"], "magic"),
        (["constructions=[{construction: gd, options: {hh: 1}}]"], "hh"),
        (["constructions=[{construction: gd, options: {h: 1}}]"], "'h' is varied"),
        (["constructions=[{construction: gd}, {construction: gd}]"], "called 'gd'"),
        (["constructions=[{construction: gd}]", "search=false"], "'gd' has none"),
        (["constructions=[{construction: gd}]", "kappa=[0.5]"], "kappa"),
        (["constructions=[{construction: gd}]", "kappa=[1e30]"], "kappa"),
        (["constructions=[{construction: gd, published: 3, published_seeds: []}]"], "published_seeds"),
        (['constructions=[{construction: gd, label: "a\\nb"}]'], "label"),
        (["constructions=[{construction: gd}]", "facts=[]"], "facts"),
        (["constructions=[{construction: gd}]", "seeds=[1, 1]"], "seeds"),
        (["constructions=[{construction: gd}]", "embeddings=cubic"], "cubic"),
    ],
)
def test_a_mistake_is_named_and_leaves_no_folder(tmp_path, monkeypatch, capsys, words, named):
    monkeypatch.chdir(tmp_path)
    assert main(["cost", *words]) == 2
    assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_build_that_takes_too_long_is_ended_and_marked():
    slow = cell(construction="gd", options={"kind": "swiglu", "steps": 10_000_000, "noise": 1.0})
    seen = []
    began = time.monotonic()
    ((_, found),) = run_searches(
        [(slow, verify(4, [0]))], {}, workers=1, seconds=0.5, record=lambda _, outcome: seen.append(outcome)
    )
    assert time.monotonic() - began < 60
    assert (found.size, found.status) == (None, "capped")
    assert (seen[0].accuracy, seen[0].figures) == (None, {"capped_after": 0.5})


def test_an_error_in_a_build_ends_its_own_search_only():
    bad = cell(construction="no_such_thing")
    found = dict(
        run_searches(
            [(bad, smallest_size(4, [0])), (cell(), verify(46, [0]))], {}, workers=1, seconds=60,
            record=lambda *_: None,
        )
    )  # fmt: skip
    assert found[0].status == "error"
    assert "no_such_thing" in found[0].outcomes[0].figures["error"]
    assert found[1].size == 46


@pytest.mark.parametrize(
    "damage",
    [
        {"accuracy": "1.0"},
        {"accuracy": 7},
        {"accuracy": math.nan},
        {"seconds": "x"},
        {"accuracy_int8": None},
        {"h": None},
    ],
)
def test_a_build_on_record_must_be_whole(tmp_path, damage):
    """Half a record would end in the table, or decide where a search goes."""
    outcome = build_and_measure(cell(), 46, 0)
    line = {"cell": cell().to_dict(), "size": 46, "seed": 0, "accuracy": outcome.accuracy, **outcome.figures}
    (tmp_path / "good").write_text(json.dumps(line) + "\n")
    assert read_probes(tmp_path / "good", 60, Cell, require_complete) == {(cell().identity, 46, 0): outcome}
    (tmp_path / "bad").write_text(json.dumps(line | damage) + "\n")
    with pytest.raises(CheckpointError, match="of a build"):
        read_probes(tmp_path / "bad", 60, Cell, require_complete)


def test_a_worker_that_somebody_ends_is_replaced():
    """Idle ones as well as those that build."""
    ended = []

    def record(*_):
        for child in multiprocessing.active_children():
            if not ended or child.pid not in ended:
                ended.append(child.pid)
                os.kill(child.pid, signal.SIGKILL)
                child.join()

    searches = [(cell(name=str(seed)), verify(46, [seed], smaller=False)) for seed in (0, 1)]
    found = dict(run_searches(searches, {}, workers=1, seconds=60, record=record))
    assert [found[number].size for number in (0, 1)] == [46, 46]


def test_two_searches_share_a_build():
    known = {}

    def record(cell, outcome):
        assert (cell.identity, outcome.size, outcome.seed) not in known
        known[cell.identity, outcome.size, outcome.seed] = outcome

    searches = [(cell(name=name), verify(46, [0], smaller=False)) for name in ("one", "other")]
    found = dict(run_searches(searches, known, workers=1, seconds=60, record=record))
    assert found[0].outcomes == found[1].outcomes
    assert len(known) == 1


def test_large_searches_go_first_and_one_that_has_begun_goes_on():
    """Left for the end, what takes longest would have one process only."""
    built = []
    searches = [
        (cell(name=name), verify(46, seeds, smaller=False))
        for name, seeds in (("a", [0, 1]), ("large", [2, 3]))
    ]
    found = run_searches(
        searches, {}, workers=1, seconds=60,
        record=lambda cell, outcome: built.append((cell.name, outcome.seed)), size_of=lambda cell: len(cell.name),
    )  # fmt: skip
    assert [number for number, _ in found] == [1, 0]
    assert built == [("large", 2), ("large", 3), ("a", 0), ("a", 1)]


def test_what_is_known_is_not_built():
    done = build_and_measure(cell(), 46, 0)
    ((_, found),) = run_searches(
        [(cell(name="other"), verify(46, [0], smaller=False))], {(cell().identity, 46, 0): done},
        workers=1, seconds=60, record=lambda *_: pytest.fail("was built"),
    )  # fmt: skip
    assert found.outcomes == (done,)


def test_each_seed_draws_everything_anew_and_repeats_itself():
    tables = [values_of(cell(), seed) for seed in (0, 0, 1)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    assert (
        build_and_measure(cell(), 30, 0).figures["margin"]
        == build_and_measure(cell(), 30, 0).figures["margin"]
    )


def test_whitening_helps_ill_conditioned_values_and_is_folded_back():
    """The accuracy is measured on the original values (arXiv 2512.00207, section 3.3)."""
    plain, whitened = (
        build_and_measure(cell(facts=128, kappa=100.0, alpha=alpha), 56, 0).accuracy for alpha in (0.0, 1.0)
    )
    assert plain < whitened


def test_rounding_is_to_the_format_it_says():
    generator = torch.Generator().manual_seed(0)
    keys = spherical(64, 16, generator)
    mapping = torch.randperm(64, generator=generator)
    mlp = build_fact_mlp(keys, keys, mapping, "hebbian", generator=generator)
    for name in ("bf16", "int8"):
        for old, new in zip(mlp.parameters(), rounded(mlp, name).parameters(), strict=True):
            assert not torch.equal(old, new)
            if name == "bf16":
                assert torch.equal(new, new.bfloat16().float())
            else:
                levels = new / (old.abs().amax(dim=1, keepdim=True) / 127)
                assert torch.allclose(levels, levels.round(), atol=1e-3)
                assert levels.abs().max() <= 127.01
    assert accuracy(rounded(mlp, "float32"), keys, keys, mapping) == 1.0


@pytest.mark.parametrize("counts", [[64], [64, 128, 1024]])
def test_pictures_have_plain_numbers_on_their_axes(counts):
    """matplotlib writes logarithmic ticks in its own markup, which the report does not parse."""
    rows = [
        {
            "construction": "gd <b>",
            "facts": n,
            "d": 16,
            "kappa": 0.0,
            "alpha": 0.0,
            "size": 3,
            "parameters": 9 * n,
        }
        for n in counts
    ]
    picture = cost_picture(rows)
    assert "mathdefault" not in picture.svg
    assert "gd &lt;b&gt;" in picture.svg
    assert cost_picture([row | {"size": None} for row in rows]) is None


def test_the_information_in_a_bijection():
    assert fact_bits(1024) == pytest.approx(8769.0, abs=1)  # specification, item 0
    assert fact_bits(3) == pytest.approx(math.log2(6))
