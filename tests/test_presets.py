"""Every shipped YAML fits the code, says what it is for, and has the figures of the specification."""

import pytest

from mlpswap.cli import main
from mlpswap.commands.validate import check
from mlpswap.config import packaged_presets
from mlpswap.errors import ConfigError, MlpSwapError
from mlpswap.training.config import TrainConfig

PRESETS = {path.stem: path for path in packaged_presets()}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid_down_to_the_options_of_each_method(name):
    check(PRESETS[name])
    assert PRESETS[name].read_text().startswith("# ")


def test_all_presets_are_there():
    assert set(PRESETS) == {
        "ssfr_tiny", "ssfr", "ssfr_4096", "ssfr_paper", "books_tiny", "books_edit_tiny", "books_4k", "books_16k",
        "books_edit_16k",
        "books_paper", "edit_tiny", "edit_paper", "yardstick", "stores", "sequential", "sequential_tiny",
        "sequences", "sequences_sweep", "sequences_ablation",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "facts", "d", "h", "steps", "batch", "negatives"),
    [
        ("ssfr_tiny", 256, 64, 128, 200, 128, None),
        ("ssfr", 1024, 128, 512, 200, 128, None),
        ("ssfr_4096", 4096, 128, 1024, 100, 128, None),
        ("books_tiny", 256, 128, 512, 400, 64, None),
        ("books_edit_tiny", 256, 128, 40, 400, 64, None),
        ("books_4k", 4096, 256, 1024, 400, 64, 1024),
        ("books_16k", 16384, 256, 2816, 900, 64, 1536),
        ("books_paper", 16384, 256, 512, 147456, 32, None),
        ("ssfr_paper", 1024, 128, 512, 150000, 32, None),
    ],
)
def test_the_sizes_are_those_of_the_specification(name, facts, d, h, steps, batch, negatives):
    _, config = check(PRESETS[name])
    assert isinstance(config, TrainConfig)
    found = (config.facts.count, config.host.n_embd, config.mlp["h"], config.training.steps)
    assert found == (facts, d, h, steps)
    assert (config.training.batch_size, config.training.negatives) == (batch, negatives)
    assert config.allow_partial == name.endswith("_paper")


def test_a_preset_is_recognised_by_its_keys(capsys):
    kinds = {name: check(path)[0] for name, path in PRESETS.items()}
    assert {name for name, kind in kinds.items() if kind == "benchmark"} == {"edit_tiny", "edit_paper"}
    assert {name for name, kind in kinds.items() if kind == "sequential"} == {"sequential", "sequential_tiny"}
    assert {name for name, kind in kinds.items() if kind == "stores"} == {"stores"}
    assert kinds["sequences"] == kinds["sequences_ablation"] == "sequences"
    assert main(["list", "presets"]) == 0
    assert "[stores]" in capsys.readouterr().out


def test_the_grid_has_every_published_setting():
    from mlpswap.benchmark.entries import settings_of

    _, config = check(PRESETS["edit_tiny"])
    counts = {entry["name"]: len(settings_of(entry)[1]) for entry in config.editors}
    assert counts == {"swap": 1, "rome": 54, "memit": 108, "alphaedit": 81, "ft": 1}
    assert [split["altered"] for split in config.splits] == [5, 13, 26]


@pytest.mark.parametrize(
    "text",
    [
        "task: books\nmlp: {construction: gd, hh: 3}\n",
        "splits: [{altered: 1}]\neditors: [{name: rome, lrr: 1}]\n",
        "splits: [{altered: 1}]\neditors: [{name: rome, grid: {lrr: [1]}}]\n",
        "splits: [{altered: 1}]\neditors: [{name: rome, grid: own}]\n",
        "splits: [{altered: 1}]\neditors: [{name: swap, construction: hebbian, options: {hh: 1}}]\n",
        "n_embd: 8\nstores: [{name: mlp, beta: 1}]\n",
        "stores: [{name: associative}]\n",
        "task: books\nmlp: {construction: nosuch}\n",
        "splits: [{altered: 1}]\neditors: [{name: nosuch}]\n",
        "splits: [{altered: 1}]\neditors: [{name: rome}]\nbase: nosuch\n",
        "batches: 1\neditors: [{name: rome}]\nbase: ssfr_tiny\n",
        "splits: [{altered: 0}]\neditors: [{name: rome}]\n",
        "model: runs/a\neditor: {name: rome, lrr: 1}\nchanges: {a: b}\n",
        "model: runs/a\nconstruction: gd\noptions: {hh: 1}\nchanges: {a: b}\n",
        "n_embd: 8\nmlp: {construction: gd, hh: 1}\nfacts: {count: 8}\n",
    ],
)
def test_validate_looks_into_the_options_of_methods(tmp_path, text, capsys):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(MlpSwapError, match="bad.yaml"):
        check(path)
    assert main(["validate", str(path)]) == 2
    assert main(["validate", "books_tiny"]) == 0


def test_validate_looks_into_the_base(tmp_path):
    base, path = tmp_path / "base.yaml", tmp_path / "contest.yaml"
    base.write_text("task: books\nmlp: {construction: nosuch}\n")
    path.write_text(f"splits: [{{altered: 1}}]\neditors: [{{name: rome}}]\nbase: {base}\n")
    with pytest.raises(ConfigError, match="contest.yaml: base = .*base.yaml: .*'nosuch'"):
        check(path)


def test_a_file_without_splits_is_a_sequence(tmp_path):
    path = tmp_path / "sequential.yaml"
    path.write_text("model: runs/a\neditors: [{name: rome}]\n")
    assert check(path)[0] == "sequential"


def test_a_name_that_no_file_can_have_is_named(tmp_path):
    path = tmp_path / "contest.yaml"
    path.write_text(f"base: {'x' * 5000}.yaml\neditors: [{{name: rome}}]\n")
    with pytest.raises(
        ConfigError,
        match=r"contest.yaml: base = x+\.yaml: config file x+\.\.\. cannot be used: File name too",
    ):
        check(path)


def test_a_swap_of_changes_alone_is_no_edit(tmp_path):
    path = tmp_path / "swap.yaml"
    path.write_text("model: runs/a\nchanges: {a: b}\n")
    assert check(path)[0] == "swap"
