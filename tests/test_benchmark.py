"""The editing benchmark on a small host: rows, selection, patches, refusals."""

import json
from dataclasses import dataclass

import pytest
import torch

from mlpswap.benchmark.base import the_task
from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.benchmark.run import benchmark, with_ridge
from mlpswap.benchmark.splits import make_split
from mlpswap.config import load_config
from mlpswap.editing import SecondMoment
from mlpswap.errors import ConfigError
from mlpswap.model import MlpSwapForCausalLM, Patch
from tests.conftest import train_run


@pytest.fixture(scope="module")
def model(trained):
    return MlpSwapForCausalLM.from_pretrained(trained / "model")


def _benchmark(folder, trained, *overrides):
    words = [f"model={trained}", f"output_dir={folder}", "report=false", *overrides]
    return benchmark(load_config(BenchmarkConfig, None, words))


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark") / "run"
    return _benchmark(
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
    folder = _benchmark(
        tmp_path / "run", trained, "splits=[{altered: 3}]",
        "editors=[{name: rome, steps: 1}, {name: swap}, {name: rome, steps: 100, lr: 0.5}]",
    )  # fmt: skip
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert [row["editor"] for row in rows if row["selection"] == "grid"] == ["rome", "swap", "rome-2"]


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


def test_a_split_that_does_not_fit_stops_before_any_editor_runs(trained, tmp_path):
    with pytest.raises(ConfigError, match="of 32 facts"):
        _benchmark(tmp_path / "run", trained, "splits=[{altered: 3}, {altered: 40}]")


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
        _benchmark(tmp_path / "run", folder, "splits=[{altered: 3}]")


def test_nothing_preserved_is_reported_as_missing_not_as_zero(trained, tmp_path):
    """Without preserved facts specificity has no facts: null in the file, and no score."""
    folder = _benchmark(
        tmp_path / "run", trained, "splits=[{altered: 3, preserved: 0}]", "editors=[{name: swap}]"
    )
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert all(row["specificity"] is None and row["score_harmonic"] is None for row in rows)
    assert all(row["efficacy"] is not None for row in rows)
