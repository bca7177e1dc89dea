"""Run folders: refused early, written whole or not at all."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from mlpswap.errors import CheckpointError, RunFolderError
from mlpswap.run_folder import alone, run_folder
from mlpswap.runs import replacing, require_same_config, results, write_json, write_tensors


def open_run_folder(path, **flags):
    """Open and leave at once: what a run does whose start goes well."""
    with run_folder(path, **flags) as folder:
        return folder


def _fail_in(path, **flags):
    with run_folder(path, **flags) as folder:
        (folder / "checkpoints").mkdir(exist_ok=True)
        raise ValueError("the new run cannot start")


def _interrupted_in(path, settings):
    with run_folder(path, overwrite=True, resume=False) as folder:
        if settings:
            (folder / "config.yaml").write_text("new")
        raise KeyboardInterrupt


def test_an_overwritten_run_comes_back_when_the_new_one_fails(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.yaml", "results.json"):
        (folder / name).write_text("old")
    with pytest.raises(ValueError, match="cannot start"):
        _fail_in(folder, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "results.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_failing_resume_never_touches_what_an_earlier_kill_left_aside(tmp_path):
    """A killed --overwrite leaves the old run aside; the unfinished new one must survive its own mistakes."""
    folder, aside = tmp_path / "run", tmp_path / ".run.replaced"
    for place, text in ((folder, "new"), (aside, "old")):
        place.mkdir()
        (place / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match="cannot start"):
        _fail_in(folder, resume=True)
    assert (folder / "config.yaml").read_text() == "new"
    assert (folder / "checkpoints").is_dir()


def test_a_kill_right_after_the_move_loses_nothing(tmp_path):
    aside = tmp_path / ".run.replaced"
    aside.mkdir()
    for name in ("config.yaml", "results.json"):
        (aside / name).write_text("old")
    with pytest.raises(RunFolderError, match="finished run"):
        open_run_folder(tmp_path / "run")
    assert (tmp_path / "run" / "results.json").read_text() == "old"


def test_a_kill_while_a_run_is_replaced_loses_nothing(tmp_path):
    """Neither before the new run has its settings, nor after that, nor when another attempt then fails."""
    folder, aside = tmp_path / "run", tmp_path / ".run.replaced"

    def killed(*names):
        shutil.rmtree(folder, ignore_errors=True)
        for place, files in ((aside, ("config.yaml", "results.json")), (folder, names)):
            place.mkdir(exist_ok=True)
            for name in files:
                (place / name).write_text("old" if place is aside else "new")

    for left in ((), ("model",), ("model", "config.yaml")):
        killed(*left)
        with pytest.raises(ValueError, match="cannot start"):
            _fail_in(folder, overwrite=True)
        assert (folder / "results.json").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["run"]
        killed(*left)
        if "config.yaml" not in left:
            with pytest.raises(RunFolderError, match="finished run"):
                open_run_folder(folder)
            killed(*left)
        open_run_folder(folder, overwrite=True)
        assert list(folder.iterdir()) == []
        assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_interrupted_start_is_kept_once_it_has_its_settings(tmp_path):
    """It may have trained a base for hours; the run that it replaces is kept, too, until it goes on."""
    folder, aside = tmp_path / "run", tmp_path / ".run.replaced"
    folder.mkdir()
    for name in ("config.yaml", "results.json"):
        (folder / name).write_text("old")
    for settings in (False, True):
        with pytest.raises(KeyboardInterrupt):
            _interrupted_in(folder, settings)
        assert (folder / "config.yaml").read_text() == ("new" if settings else "old")
        assert aside.is_dir() == settings
    open_run_folder(folder, resume=True)
    assert (folder / "config.yaml").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_lies_beside_a_run_set_aside_is_not_deleted(tmp_path):
    folder, aside = tmp_path / "run", tmp_path / ".run.replaced"
    for place, name in ((aside, "config.yaml"), (folder, "thesis.tex")):
        place.mkdir()
        (place / name).write_text("mine")
    for flags in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(RunFolderError, match=r"thesis\.tex.*\.run\.replaced.*move one of them away"):
            open_run_folder(folder, **flags)
    assert (folder / "thesis.tex").read_text() == (aside / "config.yaml").read_text() == "mine"


def test_a_finished_run_is_never_taken_for_a_killed_one(tmp_path):
    """A folder that could not be deleted may still be set aside."""
    folder, aside = tmp_path / "run", tmp_path / ".run.replaced"
    for place, text in ((aside, "one"), (folder, "two")):
        place.mkdir()
        for name in ("config.yaml", "results.json"):
            (place / name).write_text(text)
    with pytest.raises(ValueError, match="cannot start"):
        _fail_in(folder, overwrite=True)
    assert (folder / "results.json").read_text() == "two"


def test_behind_a_link_lies_the_folder_itself(tmp_path):
    disk, link = tmp_path / "disk" / "run", tmp_path / "run"
    disk.mkdir(parents=True)
    link.symlink_to(disk)
    for _ in range(2):
        (disk / "config.yaml").write_text("old")
        (disk / "results.json").write_text("old")
        open_run_folder(link, overwrite=True)
        assert link.is_symlink()
        assert list(disk.iterdir()) == []
        assert [path.name for path in disk.parent.iterdir()] == ["run"]


def test_a_folder_that_another_has_just_begun_is_left_alone(tmp_path, monkeypatch):
    """Both find no folder; one makes it first, and holds it."""
    folder, mkdir = tmp_path / "run", os.mkdir

    def late(path, *others):
        mkdir(path, *others)
        (folder / "checkpoints").mkdir()
        raise FileExistsError(path)

    def held(place, _):
        if (folder / "checkpoints").exists():
            raise RunFolderError("is in use")

    monkeypatch.setattr(os, "mkdir", late)
    monkeypatch.setattr("mlpswap.run_folder._hold", held)
    with pytest.raises(RunFolderError, match="in use"):
        open_run_folder(folder)
    assert (folder / "checkpoints").is_dir()


@pytest.mark.parametrize("flags", [{}, {"overwrite": True}])
def test_folders_without_a_name(tmp_path, monkeypatch, flags):
    (tmp_path / "thesis.tex").write_text("x")
    monkeypatch.chdir(tmp_path)
    for path in (".", "/"):
        with pytest.raises(RunFolderError, match=r"holds (other files|no run)"):
            open_run_folder(path, **flags)


def test_tensors_are_readable_to_whom_other_files_are(tmp_path):
    write_tensors(tmp_path / "t.safetensors", {"a": torch.eye(2).T})
    (tmp_path / "text").write_text("")
    assert (tmp_path / "t.safetensors").stat().st_mode == (tmp_path / "text").stat().st_mode
    with pytest.raises(RunFolderError, match=r"none/t\.safetensors cannot be written: No such file"):
        write_tensors(tmp_path / "none" / "t.safetensors", {"a": torch.eye(2)})
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_tensors(tmp_path, {"a": torch.eye(2)})


def test_a_finished_run_is_not_overwritten_by_accident(tmp_path):
    folder = open_run_folder(tmp_path / "run")
    (folder / "config.yaml").write_text("a: 1")
    with pytest.raises(RunFolderError, match="unfinished run; pass --overwrite to start"):
        open_run_folder(folder)
    with pytest.raises(
        RunFolderError, match="unfinished run; pass --resume to go on or --overwrite to start"
    ):
        open_run_folder(folder, resume=False)
    (folder / "results.json").write_text("{}")
    with pytest.raises(RunFolderError, match="finished run"):
        open_run_folder(folder)
    assert open_run_folder(folder, resume=True) == folder
    assert list(open_run_folder(folder, overwrite=True).iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    """Else a later --overwrite, seeing a run there, would delete them."""
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunFolderError, match=r"thesis\.tex"):
        open_run_folder(tmp_path)
    (tmp_path / "early" / "checkpoints").mkdir(parents=True)
    for left in (".probe-99", ".config.yaml.99.tmp"):  # a kill in the first moments
        (tmp_path / "early" / left).write_text("")
    assert open_run_folder(tmp_path / "early") == tmp_path / "early"
    assert [path.name for path in (tmp_path / "early").iterdir()] == ["checkpoints"]
    assert open_run_folder(tmp_path / "early", resume=True) == tmp_path / "early"


def test_overwrite_never_deletes_what_is_not_a_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunFolderError, match="holds no run"):
        open_run_folder(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_a_file_in_the_way_and_both_flags_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        open_run_folder(tmp_path / "file")
    with pytest.raises(RunFolderError, match="exclude"):
        open_run_folder(tmp_path, resume=True, overwrite=True)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc, which nobody can write to")
def test_a_read_only_place_is_refused_with_its_path():
    with pytest.raises(RunFolderError, match="/proc/run cannot be written"):
        open_run_folder("/proc/run")


@pytest.mark.parametrize("as_folder", [False, True])
def test_replacing_keeps_the_old_when_the_writing_fails(tmp_path, as_folder):
    def write(path, text):
        if as_folder:
            path.mkdir()
            path = path / "inside"
        path.write_text(text)

    target = tmp_path / "thing"
    with replacing(target) as temporary:
        write(temporary, "old")

    def fail():
        with replacing(target) as temporary:
            write(temporary, "new")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    kept = target / "inside" if as_folder else target
    assert kept.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_results_are_strict_json(tmp_path):
    content = results(
        "train", {"seed": 0}, {"a": float("nan"), "b": 1.0}, [{"c": float("inf")}], 1.5, notes=["x"]
    )
    write_json(tmp_path / "results.json", content)
    read = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert read["metrics"] == {"a": None, "b": 1.0}
    assert read["rows"] == [{"c": None}]
    assert read["schema"] == 1
    assert {"versions", "commit", "threads", "seconds"} <= set(read["environment"])


@pytest.mark.parametrize("content", [b"a: [", b"\xff", b"- 1", b"", b"a: &x {b: *x}", None])
def test_settings_that_cannot_be_read_are_named(tmp_path, content):
    path = tmp_path / "config.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.yaml (cannot be read|should hold)"):
        require_same_config(tmp_path, {"a": 1})


HOLD = """
import sys
from mlpswap.run_folder import alone, run_folder

@alone
def run():
    with run_folder(sys.argv[1], overwrite="overwrite" in sys.argv):
        if "ready" not in sys.argv:
            print("held", flush=True)
            input()
    print("held", flush=True)
    input()

run()
print("released", flush=True)
input()
"""


@pytest.mark.parametrize("state", ["overwrite", "ready"])
def test_one_process_at_a_time(tmp_path, state):
    """While a run gets ready, its earlier one set aside or not, and when it is under way; not afterwards."""
    folder = tmp_path / "run"
    folder.mkdir()
    if state == "overwrite":
        for name in ("config.yaml", "results.json"):
            (folder / name).write_text("old")
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), state],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(2 if state == "overwrite" else 1):
            assert other.stdout.readline() == "held\n"
            names = sorted(path.name for path in tmp_path.rglob("*"))
            for flags in ({}, {"resume": True}, {"overwrite": True}):
                with pytest.raises(RunFolderError, match="is in use by another process"):
                    open_run_folder(folder, **flags)
            assert sorted(path.name for path in tmp_path.rglob("*")) == names
            other.stdin.write("\n")
            other.stdin.flush()
        assert other.stdout.readline() == "released\n"
        alone(open_run_folder)(folder)
        alone(open_run_folder)(folder)
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.wait() == 0
    finally:
        other.kill()
        other.communicate()
