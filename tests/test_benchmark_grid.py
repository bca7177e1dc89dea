"""Grids of the editing benchmark: published presets, grids of one's own, screening, and resuming within a grid."""

import json

import pytest
import torch
from mlpswap_baselines.emmet import Emmet
from mlpswap_baselines.memit import Memit, memit_delta

from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.benchmark.entries import settings_of
from mlpswap.benchmark.run import benchmark
from mlpswap.benchmark.trials import KEPT
from mlpswap.config import load_config
from mlpswap.editing import SecondMoment
from mlpswap.errors import ConfigError
from mlpswap.randomness import generator
from tests.contests import with_seconds


def _benchmark(folder, trained, *overrides, **flags):
    words = [f"model={trained}", f"output_dir={folder}", "report=false", "splits=[{altered: 6}]", *overrides]
    benchmark(load_config(BenchmarkConfig, None, words), **flags)
    return json.loads((folder / "results.json").read_text())


def _plain(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_presets_set_splits_and_grids():
    """The counts of arXiv 2512.00207, A.3.4, and of its code; AlphaEdit's grid differs between the two."""
    found = {
        name: load_config(BenchmarkConfig, "edit_paper", [f"preset={name}"]) for name in ("paper", "released")
    }
    splits = {
        name: [(each["preserved"], each["altered"]) for each in config.splits]
        for name, config in found.items()
    }
    assert splits["paper"] == [(1311, 327), (3277, 819), (6554, 1638)]
    assert splits["released"] == [(16056, 328), (15565, 819), (14746, 1638)]
    for name, config in found.items():
        grids = {each["grid"] for each in config.editors if "grid" in each}
        assert grids == {name}
    with pytest.raises(ConfigError, match="splits of its own"):
        load_config(BenchmarkConfig, "edit_paper", ["splits=[{altered: 3}]"])
    with pytest.raises(ConfigError, match="expected one of paper, released"):
        load_config(BenchmarkConfig, "edit_paper", ["preset=published"])


def test_a_grid_of_ones_own_is_every_combination():
    """Options outside the grid hold for all its settings."""
    editor, settings = settings_of(
        {"name": "memit", "clip": None, "grid": {"lr": [0.05, 0.5], "steps": [1, 2, 3]}}
    )
    assert isinstance(editor, Memit)
    points = [(each.lr, each.steps) for each in settings]
    assert points == [(0.05, 1), (0.05, 2), (0.05, 3), (0.5, 1), (0.5, 2), (0.5, 3)]
    assert all(each.clip is None for each in settings)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{name: memit, grid: {lr: 0.5}}", r"editors\[0\].grid.lr = 0.5: expected a list"),
        ("{name: memit, grid: {lr: []}}", "expected a list"),
        ("{name: memit, lr: 1, grid: {lr: [1]}}", "lr has one value, and others in the grid"),
        ("{name: memit, grid: 3}", "expected a name or lists"),
        ("{name: memit, grid: {lrr: [1]}}", "lrr"),
    ],
)
def test_grids_that_cannot_be(entry, message, trained, tmp_path):
    with pytest.raises(ConfigError, match=message):
        _benchmark(tmp_path / "run", trained, f"editors=[{entry}]")
    assert not (tmp_path / "run").exists()


def test_emmet_is_memit():
    """The equality form with ridge m is MEMIT's with lambda = m; with m = 0 the edited keys meet their targets."""
    source = generator(0, "emmet")
    R, K1, K0 = (torch.randn(12, n, generator=source, dtype=torch.float64) for n in (5, 5, 40))
    C0 = K0 @ K0.T / 40
    inverse = torch.linalg.inv(C0)
    moments = {0: SecondMoment.from_keys([K0.T])}
    for ridge in (0.0, 0.1, 1000.0):
        dual = torch.linalg.inv(K1.T @ inverse @ K1 + ridge * torch.eye(5, dtype=R.dtype))
        wanted = R @ dual @ K1.T @ inverse
        found = R @ Emmet().writer(K1, moments, 0, Emmet.Config(lam=ridge), None).x.T
        torch.testing.assert_close(found, wanted)
        if ridge:
            torch.testing.assert_close(memit_delta(R, K1, C0, ridge), wanted)
        else:
            torch.testing.assert_close(found @ K1, R)
    assert len(Emmet().grid()) == 27


def test_a_screening_scores_the_best_settings_as_they_would_be_without(trained, tmp_path):
    """The sample ranks; what is scored on all prompts gets the very numbers of the full grid."""
    editors = "editors=[{name: memit, grid: released}, {name: swap}]"
    whole = _benchmark(tmp_path / "whole", trained, editors)["rows"]
    results = _benchmark(tmp_path / "screened", trained, editors, "screen=true", "report=true")
    assert "ranked on a sample" in (tmp_path / "screened" / "report.html").read_text()
    screened = results["rows"]
    lines = [json.loads(line) for line in (tmp_path / "screened" / "metrics.jsonl").read_text().splitlines()]
    assert all(
        row["seconds"] > 1e-5 for line in lines for row in line["rows"]
    )  # those of the edit, made once
    settings = {json.dumps(row["setting"]): row for row in whole if row["selection"] == "grid"}
    exact = [row for row in screened if row["selection"] == "grid"]
    assert len(exact) == KEPT + 1
    assert sum(row["selection"] == "screened" for row in screened) == 108 - KEPT
    assert _plain(exact) == _plain(settings[json.dumps(row["setting"])] for row in exact)
    best = {
        (row["editor"], row["selection"]): row["score_harmonic"]
        for row in screened
        if row["editor"] == "memit"
    }
    assert best["memit", "oracle"] == max(row["score_harmonic"] for row in exact if row["editor"] == "memit")


@pytest.mark.parametrize("screen", ["false", "true"])
def test_a_grid_goes_on_where_it_stopped(trained, tmp_path, monkeypatch, screen):
    """A kill within a grid loses one setting; rows and patches are those of a run in one go."""
    words = ["editors=[{name: memit, grid: {lam: [1, 10, 100, 1000, 3000, 10000, 30000, 100000]}}]"]
    words.append(f"screen={screen}")
    folder, asked = tmp_path / "run", []

    def grid(self, *args, edit_grid=Memit.edit_grid, **kwargs):
        for number, result in enumerate(edit_grid(self, *args, **kwargs)):
            if len(asked) == 5:
                raise KeyboardInterrupt
            asked.append(number)
            yield result

    with monkeypatch.context() as patch:
        patch.setattr(Memit, "edit_grid", grid)
        with pytest.raises(KeyboardInterrupt):
            _benchmark(folder, trained, *words)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["setting"] * 5
    (folder / "metrics.jsonl").write_text(with_seconds(lines, took=1000.0))
    resumed = _benchmark(folder, trained, *words, resume=True)
    whole = _benchmark(tmp_path / "whole", trained, *words)
    assert _plain(resumed["rows"]) == _plain(whole["rows"])
    assert resumed["stages"]["memit"] - 5000 < 1000 > whole["stages"]["memit"]
    assert resumed["stages"]["memit"] > 5000
    files = [each / "patches" / "memit_6.safetensors" for each in (folder, tmp_path / "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()
