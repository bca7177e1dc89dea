"""The editing benchmark on a small host: rows, selection, patches, refusals."""

import json
import shutil
from dataclasses import dataclass

import pytest
import torch

from mlpswap.benchmark.base import the_task
from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.benchmark.contest import with_ridge
from mlpswap.benchmark.splits import make_split
from mlpswap.benchmark.ties import TIE_RULE
from mlpswap.cli import main
from mlpswap.config import load_config
from mlpswap.editing import SecondMoment
from mlpswap.errors import CheckpointError, ConfigError
from mlpswap.model import MlpSwapForCausalLM, Patch
from tests.conftest import train_run
from tests.contests import run_benchmark, untimed


@pytest.fixture(scope="module")
def model(trained):
    return MlpSwapForCausalLM.from_pretrained(trained / "model")


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark") / "run"
    return run_benchmark(
        folder, trained, "splits=[{altered: 3}, {altered: 6, preserved: 20}]",
        "editors=[{name: swap}, {name: rome, steps: 100, lr: 0.5}, {name: memit, grid: released}]",
    )  # fmt: skip


@pytest.fixture(scope="module")
def results(run):
    return json.loads((run / "results.json").read_text())


def test_every_setting_and_two_summaries_are_rows(results):
    rows = results["rows"]
    for altered in (3, 6):
        counts = {
            (editor, kind): sum(
                (row["editor"], row["selection"], row["altered"]) == (editor, kind, altered) for row in rows
            )
            for editor in ("swap", "rome", "memit")
            for kind in ("grid", "oracle", "selected")
        }
        assert counts["memit", "grid"] == 108
        assert counts["swap", "grid"] == counts["rome", "grid"] == 1
        assert all(counts[key] == 1 for key in counts if key[1] != "grid")
    assert {row["preserved"] for row in rows} == {29, 20}
    assert {(row["protocol"], row["scorer"]) for row in rows} == {("single_layer", "top1_full_vocabulary")}


def test_the_oracle_is_the_best_of_the_grid(results):
    for editor in ("swap", "rome", "memit"):
        rows = [row for row in results["rows"] if (row["editor"], row["altered"]) == (editor, 6)]
        (oracle,) = (row for row in rows if row["selection"] == "oracle")
        assert oracle["score_harmonic"] == max(
            row["score_harmonic"] for row in rows if row["selection"] == "grid"
        )
        assert oracle["nonfact_ce_ratio"] == pytest.approx(1, abs=0.1)
        assert oracle["paraphrase_unseen"] is not None


def test_the_score_is_the_harmonic_mean_of_the_three(results):
    for row in results["rows"]:
        three = [row[name] for name in ("efficacy", "paraphrase", "specificity")]
        assert row["score_harmonic"] == pytest.approx(0 if 0 in three else 3 / sum(1 / x for x in three))
        assert row["score_geometric"] >= row["score_harmonic"] - 1e-12


def test_swap_carries_out_the_edits(results):
    (row,) = (
        r for r in results["rows"] if (r["editor"], r["altered"], r["selection"]) == ("swap", 6, "oracle")
    )
    assert row["efficacy"] >= 0.8
    assert row["specificity"] >= 0.9


def test_saved_patches_give_the_answers_of_the_table(run, results, trained, model):
    """The table's answers come out of the files again, and undoing leaves the model as it was."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for editor in ("swap", "rome", "memit"):
        patch = Patch.load(run / "patches" / f"{editor}_6.safetensors")
        patch.apply(model)
        for line in results["answers"]:
            assert model.ask(line["prompt"]) == line["by_editor"][editor]
        patch.undo(model)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_predictions_hold_the_top_five_of_every_editor(run):
    lines = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * (3 + 10 + 6 + 10)
    assert all(len(line["top"]) == 5 for line in lines)


def test_an_editor_may_stand_twice_with_other_options(trained, tmp_path):
    folder = run_benchmark(
        tmp_path / "run", trained, "splits=[{altered: 3}]",
        "editors=[{name: rome, steps: 1}, {name: swap}, {name: rome, steps: 100, lr: 0.5}, {name: swap, label: wide_h-1.5}]",
    )  # fmt: skip
    rows = json.loads((folder / "results.json").read_text())["rows"]
    labels = ["rome", "swap", "rome-2", "wide_h-1.5"]
    assert [row["editor"] for row in rows if row["selection"] == "grid"] == labels
    assert {f"{name}_3.safetensors" for name in labels} <= {
        path.name for path in (folder / "patches").iterdir()
    }


@pytest.mark.parametrize(
    ("editors", "message"),
    [
        ("[{name: swap, label: a/b}]", r"editors\[0\].label = 'a/b': expected"),
        ("[{name: swap, label: ..}]", "label"),
        ("[{name: swap, label: 3}]", "label = 3"),
        ("[{name: swap, label: a}, {name: rome, label: a}]", "two of them have the label a"),
        ("[{name: swap, label: a}, {name: rome, label: A}]", "two of them have the label"),
        ("[{name: rome}, {name: swap, label: Rome}]", "two of them have the label rome"),
        ("[{name: swap, label: Collect}]", "collect is the name of a stage"),
    ],
)
def test_a_label_must_name_one_file_and_one_entry(editors, message):
    with pytest.raises(ConfigError, match=message):
        load_config(BenchmarkConfig, None, [f"editors={editors}"])


def test_splits_are_disjoint_and_permute_among_the_altered(model):
    task = the_task(model)
    split = make_split(task, 6, 20, seed=3)
    assert len(set(split.altered.tolist()) | set(split.preserved.tolist())) == 26
    assert set(task.facts.changed(split.after)) <= set(split.altered.tolist())
    assert split.unchanged == 6 - len(task.facts.changed(split.after))
    both = torch.cat([split.chosen, split.reported]).tolist()
    assert sorted(both) == sorted(split.altered.tolist() + split.preserved.tolist())
    assert len(set(both)) == len(both)
    again = make_split(task, 6, 20, seed=3)
    assert torch.equal(split.altered, again.altered)
    assert split.after == again.after
    assert make_split(task, 6, 20, seed=3, derange=True).unchanged == 0


@pytest.mark.parametrize(("altered", "preserved"), [(33, None), (30, 5), (0, None)])
def test_a_split_that_does_not_fit_names_both_numbers(model, altered, preserved):
    with pytest.raises(ConfigError, match=f"alter {altered}.*of 32"):
        make_split(the_task(model), altered, preserved, seed=0)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ("[{altered: 3}, {altered: 400}]", r"splits\[1\]: cannot alter 400"),
        ("[{altered: 3}, {altered: 3, preserved: null}]", r"splits\[1\] is the same as splits\[0\]"),
        ("[{altered: true}]", r"splits\[0\].altered = True"),
    ],
)
@pytest.mark.parametrize("base", ["given", "trained"])
def test_a_split_that_cannot_be_leaves_nothing_behind(trained, tmp_path, splits, message, base):
    """Nothing is trained and no folder begun, whose half of a run the next try would stumble over."""
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match=message):
        run_benchmark(folder, trained, f"splits={splits}", *([] if base == "given" else ["model=null"]))
    assert not folder.exists()


def test_a_base_without_sentences_is_refused_before_it_is_trained(trained, tmp_path):
    with pytest.raises(ConfigError, match="base = ssfr_tiny is a host of SSFR"):
        run_benchmark(tmp_path / "run", trained, "splits=[{altered: 3}]", "model=null", "base=ssfr_tiny")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("file", ["results.json", "metrics.jsonl"])
def test_a_base_whose_own_run_is_damaged_is_refused_at_once(trained, tmp_path, file):
    """The report shows it, at the end of what may be hours."""
    shutil.copytree(trained, tmp_path / "base")
    (tmp_path / "base" / file).write_text('{"kind": ')
    with pytest.raises(CheckpointError, match=f"{file} cannot be read"):
        run_benchmark(tmp_path / "run", tmp_path / "base", "splits=[{altered: 3}]")
    assert not (tmp_path / "run").exists()


def test_a_host_that_was_edited_is_a_base_too(trained, tmp_path, capsys):
    """Its folder tells of an edit, not of the training that the report would show."""
    (book, author), *others = MlpSwapForCausalLM.from_pretrained(trained / "model").facts.pairs()
    changes = json.dumps({book: next(other for _, other in others if other != author)})
    edited = tmp_path / "edited"
    words = [f"model={trained}", f"changes={changes}", "editor={name: swap}", f"output_dir={edited}"]
    assert main(["edit", *words]) == 0
    folder = run_benchmark(tmp_path / "run", edited, "splits=[{altered: 3}]", "report=true")
    assert (folder / "report.html").is_file()
    assert json.loads((folder / "results.json").read_text())["base"] is None


@pytest.mark.parametrize(
    "damage",
    [{"templates": None}, {"environment": {"seconds": 1.0}}],
)
def test_results_that_cannot_be_shown_are_named(trained, tmp_path, capsys, damage):
    """Whatever is wrong with them, and by whichever verb the report is written."""
    shutil.copytree(trained, tmp_path / "base")
    results = json.loads((tmp_path / "base" / "results.json").read_text())
    (tmp_path / "base" / "results.json").write_text(json.dumps(results | damage))
    words = [
        f"model={tmp_path / 'base'}",
        f"output_dir={tmp_path / 'run'}",
        "splits=[{altered: 3}]",
        "editors=[{name: swap}]",
    ]
    assert main(["benchmark", *words]) == 2
    assert "run/results.json cannot be shown" in capsys.readouterr().err
    assert (tmp_path / "run" / "results.json").is_file()


@pytest.mark.parametrize("text", ['"\\ud800"', "[" * 900 + "]" * 900])
def test_results_that_could_not_be_written_again_are_refused_at_once(trained, tmp_path, capsys, text):
    """Half a character, or lists in lists in lists: the benchmark's own results would be lost at its end."""
    shutil.copytree(trained, tmp_path / "base")
    path = tmp_path / "base" / "results.json"
    path.write_text(path.read_text().replace('"schema": 1', f'"schema": {text}', 1))
    words = [f"model={tmp_path / 'base'}", f"output_dir={tmp_path / 'run'}", "splits=[{altered: 3}]"]
    for each in (["benchmark", *words], ["report", str(tmp_path / "base")]):
        assert main(each) == 2
        assert "base/results.json cannot be read: " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_splits_that_alter_as_many_keep_apart(trained, tmp_path, model):
    """In the files of patches and in the metrics, by a number; in the rows, by how many are preserved."""
    folder = run_benchmark(tmp_path / "run", trained, "splits=[{altered: 3}, {altered: 3, preserved: 20}]")
    results = json.loads((folder / "results.json").read_text())
    assert results["metrics"].keys() == {"swap_score_harmonic_3", "swap_score_harmonic_3-2"}
    assert sorted(path.name for path in (folder / "patches").glob("*.safetensors")) == [
        "swap_3-2.safetensors",
        "swap_3.safetensors",
    ]
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert {line["preserved"] for line in lines} == {29, 20}


HOWS = [
    "raise",
    "refuse",
    "exit",
    "nothing",
    "patch",
    "diagnostics",
    "in place",
    "shape",
    "infinite",
    "hook",
    "requests",
    "types",
]


@pytest.fixture(scope="module")
def alone(trained, tmp_path_factory):
    """Rows of the swap without any other editor."""
    folder = run_benchmark(tmp_path_factory.mktemp("alone") / "run", trained, "splits=[{altered: 3}]")
    return untimed(json.loads((folder / "results.json").read_text())["rows"], "swap")


def test_a_broken_editor_costs_its_own_rows_only(trained, tmp_path, plugged, capsys, alone):
    """Whatever it does: its row says why, the table too, and the editors after it find the model as it was."""
    plugged("mlpswap.editors", broken="Broken", broken_grid="BrokenGrid")
    broken = ", ".join(f"{{name: broken, how: {how}}}" for how in HOWS)
    folder = run_benchmark(
        tmp_path / "run", trained, "splits=[{altered: 3}]", "report=true",
        f"editors=[{broken}, {{name: broken_grid, grid: released}}, {{name: swap}}]",
    )  # fmt: skip
    results, out = json.loads((folder / "results.json").read_text()), capsys.readouterr().out
    assert untimed(results["rows"], "swap") == alone
    failed = {
        row["setting"]["how"]: row["error"]
        for row in results["rows"]
        if row["editor"] not in ("swap", "broken_grid")
    }
    for how, reason in (
        ("raise", "ZeroDivisionError"), ("refuse", "not with this host"), ("exit", "SystemExit: 3"),
        ("nothing", "found NoneType"), ("patch", "found Patch"), ("diagnostics", "AttributeError"),
        ("in place", "changed the model itself"), ("shape", "RuntimeError"), ("infinite", "NaN or infinity"),
        ("hook", "changed the model itself"), ("requests", "nothing left to do"), ("types", "is of type torch.float64"),
    ):  # fmt: skip
        assert reason in failed.pop(how)
    assert not failed
    grid = [row for row in results["rows"] if row["editor"] == "broken_grid"]
    assert [row["selection"] for row in grid] == ["grid", "grid", "grid", "oracle", "selected"]
    assert [bool(row["error"]) for row in grid] == [False, True, False, False, False]
    page = (folder / "report.html").read_text()
    for text in (out, page):
        assert "broken-4 failed: TypeError: expected an EditResult, found NoneType" in text
        assert "\x1b" not in text
    assert "1 of 3 settings" in out


def test_a_benchmark_without_a_single_score_is_told(trained, tmp_path, plugged, capsys):
    plugged("mlpswap.editors", broken="Broken")
    folder = run_benchmark(
        tmp_path / "run", trained, "splits=[{altered: 3}]", "report=true", "editors=[{name: broken}]"
    )
    assert "fewer than two editors were scored" in (folder / "report.html").read_text()
    assert "broken failed: ZeroDivisionError" in capsys.readouterr().out


def test_editors_that_need_preserved_facts_say_so_and_the_others_run(trained, tmp_path, capsys):
    folder = run_benchmark(
        tmp_path / "run",
        trained,
        "splits=[{altered: 3, preserved: 0}]",
        "editors=[{name: rome}, {name: swap}]",
    )
    assert "rome failed: rome needs the second moment of the preserved facts' keys" in capsys.readouterr().out
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert [row["editor"] for row in rows] == ["rome", "swap", "swap", "swap"]


def test_refused_requests_are_counted_in_a_note(trained, tmp_path):
    """An editor that left requests out scores low for that reason, which the reader must not have to guess."""
    folder = run_benchmark(
        tmp_path / "run",
        trained,
        "splits=[{altered: 3}]",
        "editors=[{name: memit, lr: 1e308}]",
        "derange=true",
    )
    notes = json.loads((folder / "results.json").read_text())["notes"]
    assert "memit: 3 of 3 requests refused: NaN or infinity in its key, residual or loss" in notes


def test_the_table_says_what_a_tie_is(trained, tmp_path, capsys):
    run_benchmark(tmp_path / "run", trained, "splits=[{altered: 3}]")
    assert TIE_RULE in capsys.readouterr().out


def test_a_singular_moment_gets_a_ridge_that_the_row_shows():
    @dataclass(frozen=True)
    class Config:
        on_singular: str = "error"

    flat = SecondMoment.from_keys([torch.ones(3, 4)])
    full = SecondMoment.from_keys([torch.eye(4)])
    assert with_ridge(Config(), {0: flat}).on_singular == "ridge"
    assert with_ridge(Config(), {0: full}).on_singular == "error"
    assert with_ridge(Config("pinv"), {0: flat}).on_singular == "pinv"


def test_a_host_of_ssfr_is_refused(tmp_path):
    folder = train_run(
        tmp_path / "ssfr",
        "task=ssfr",
        "facts.count=16",
        "training.steps=2",
        "training.warmup=0",
        "mlp={construction: hebbian, h: 64}",
    )
    with pytest.raises(ConfigError, match="SSFR"):
        run_benchmark(tmp_path / "run", folder, "splits=[{altered: 3}]")


def test_nothing_preserved_is_reported_as_missing_not_as_zero(trained, tmp_path):
    """Without preserved facts specificity has no facts: null in the file, and no score."""
    folder = run_benchmark(
        tmp_path / "run", trained, "splits=[{altered: 3, preserved: 0}]", "editors=[{name: swap}]"
    )
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert all(row["specificity"] is None and row["score_harmonic"] is None for row in rows)
    assert all(row["efficacy"] is not None for row in rows)
