"""Going on with a run whose folder was damaged: one sentence that names the file, or the run goes on without loss."""

import json
import shutil

import pytest

from mlpswap.cli import main
from mlpswap.training.checkpoint import latest


def _directory(path):
    path.unlink()
    path.mkdir()


def _progress(**fields):
    def change(path):
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def _writes(content):
    return lambda path: path.write_bytes(content)


@pytest.fixture
def interrupted(trained, tmp_path):
    """The run as a kill after its last step, before the results, would have left it."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    for name in ("results.json", "swap.safetensors", "swap.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "model")
    return folder


def _resume(folder, capsys):
    code = main(["train", "--resume", f"output_dir={folder}"])
    return code, capsys.readouterr().err


PROGRESS = "checkpoints/step_00000300/progress.json"


@pytest.mark.parametrize(
    ("name", "inflict"),
    [
        ("config.yaml", _writes(b"seed: [0")),
        ("config.yaml", _writes(b"\xff\xfe\x00")),
        ("config.yaml", _writes(b"- 1\n")),
        ("config.yaml", _writes(b"")),
        ("config.yaml", _directory),
        ("metrics.jsonl", _directory),
        ("checkpoints/fact_mlp.json", _writes(b"{")),
        ("checkpoints/fact_mlp.json", _writes(b"[]")),
        ("checkpoints/fact_mlp.json", _writes(b'{"wrong": null}')),
        ("checkpoints/fact_mlp.json", _directory),
        ("checkpoints/start/config.json", _writes(b"[]")),
        (PROGRESS, _writes(b"[" * 100_000)),
        (PROGRESS, _writes(b"null")),
        (PROGRESS, _progress(step=-5)),
        (PROGRESS, _progress(step=200)),
        (PROGRESS, _progress(step="300")),
        (PROGRESS, _progress(processes=None)),
        (PROGRESS, _progress(wandb_id=[])),
        (PROGRESS, _progress(more=1)),
        (PROGRESS, _directory),
    ],
)
@pytest.mark.timeout(60)
def test_damage_is_one_sentence_that_names_the_file(interrupted, capsys, name, inflict):
    inflict(interrupted / name)
    code, err = _resume(interrupted, capsys)
    assert code == 2, err
    assert err.strip().splitlines()[-1].startswith("mlpswap: ")
    assert str(interrupted / name) in err


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kind": 3}', b'{"kind": "benchmark"}', None])
def test_damaged_results_do_not_pass_for_a_finished_run(trained, tmp_path, capsys, content):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    path = folder / "results.json"
    _directory(path) if content is None else path.write_bytes(content)
    code, err = _resume(folder, capsys)
    assert code == 2, err
    assert str(path) in err


def test_unreadable_lines_of_the_log_are_dropped_and_counted(interrupted, capsys, caplog):
    """The log is no part of what is learnt: a run must not end because of a line of it."""
    path = interrupted / "metrics.jsonl"
    before = path.read_bytes()
    garbage = (b"garbage", b"[1]", b'{"event": "train", "step": null}', b"\xff\xfe", b"\0\0", b"[" * 100_000)
    path.write_bytes(b"\n".join(garbage) + b"\n" + before)
    code, err = _resume(interrupted, capsys)
    assert code == 0, err
    assert "6 unreadable lines" in caplog.text
    assert path.read_bytes() == before
    assert json.loads((interrupted / "results.json").read_text())["metrics"]["steps"] == 300


def test_left_overs_go_wherever_they_lie_and_strange_folders_stay(interrupted, capsys):
    """Files and folders that a kill left, at every depth; what no run has written is neither read nor deleted."""
    for place in (".", "checkpoints", "base/checkpoints", "patches"):
        (interrupted / place).mkdir(parents=True, exist_ok=True)
        (interrupted / place / ".model.99.tmp").mkdir()
        (interrupted / place / ".model.99.tmp" / "half").write_text("")
        (interrupted / place / ".step_00000300.98.tmp").write_text("")
    for strange in ("step_zzz", "step_-0000005", "step_"):
        (interrupted / "checkpoints" / strange).mkdir()
    code, err = _resume(interrupted, capsys)
    assert code == 0, err
    assert not list(interrupted.rglob("*.tmp"))
    assert (interrupted / "checkpoints" / "step_zzz").is_dir()


def test_the_newest_checkpoint_is_that_of_the_largest_number(tmp_path):
    for step in (99_999_999, 100_000_000):
        folder = tmp_path / f"step_{step:08d}"
        folder.mkdir()
        (folder / "progress.json").write_text(json.dumps({"step": step, "processes": 1, "wandb_id": None}))
    assert latest(tmp_path)[1].step == 100_000_000


def test_a_refused_start_sweeps_nothing(tmp_path, capsys):
    """The files may belong to the run that is going on there, or to another program."""
    home = tmp_path / "home"
    alive = [home / ".x.99.tmp", home / "work" / ".x.99.tmp"]
    alive[1].parent.mkdir(parents=True)
    for path in alive:
        path.write_text("")
    assert main(["train", f"output_dir={home}", "facts.count=9", "wandb.mode=disabled"]) == 2
    assert "holds other files, such as work" in capsys.readouterr().err
    assert all(path.exists() for path in alive)
