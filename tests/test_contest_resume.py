"""Going on with a benchmark, or a sequence of edits, that was stopped: nothing is lost, and no number differs."""

import json
import math
import os
import signal

import pytest
from mlpswap_baselines.memit import Memit
from mlpswap_baselines.rome import Rome

from mlpswap.benchmark.base import Base
from mlpswap.benchmark.halfway import Halfway
from mlpswap.benchmark.progress import Progress, line_of
from mlpswap.cli import main
from mlpswap.editing import EditorState
from mlpswap.editing.swap import Swap
from mlpswap.errors import CheckpointError
from mlpswap.model import MlpSwapForCausalLM, Patch
from mlpswap.model.patch import same_bits
from tests.contests import EVERY, run_benchmark, run_sequence, untimed, with_seconds

GOOD = {"event": "setting", "model": "m", "split": "3", "editor": "e", "rows": [{"error": None}]}
DAMAGED = [
    b"5", b"null", b"[]", b"{}", b'{"event": "edi', '{"a": "é'.encode()[:-1], b"\xff\xfe", b"[" * 100_000,
    b'{"a": ' + b"[" * 900 + b"]" * 900 + b', "sha256": ""}',
    json.dumps(GOOD).encode(),
    line_of(GOOD).strip().replace("null", "0.5").encode(),
]  # fmt: skip


@pytest.fixture(scope="module")
def base(trained):
    return Base(trained, MlpSwapForCausalLM.from_pretrained(trained / "model"), 0)


@pytest.mark.parametrize("line", DAMAGED)
def test_lines_that_are_not_as_they_were_written_are_dropped_and_counted(tmp_path, caplog, line):
    """A kill cuts the last one short, be it within a character."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line + b"\n" + line_of(GOOD).encode() + line)
    assert Progress(tmp_path, "m").lines == [GOOD]
    assert "2 damaged lines are dropped" in caplog.text
    assert path.read_text() == line_of(GOOD)


def test_lines_are_read_as_they_were_written(tmp_path):
    """Numbers to the last bit, whatever the text."""
    row = {"error": None, "é\u2028": "\x00", "number": 0.1 + 0.2, "nan": math.nan, 3: (1, 2)}
    progress = Progress(tmp_path, "m")
    progress.add_setting("3", "e", rows=[row], place=10**20)
    assert Progress(tmp_path, "m").lines == progress.lines
    assert progress.lines[0]["rows"][0]["number"] == 0.1 + 0.2


def test_an_editors_line_takes_the_place_of_its_settings_at_once(tmp_path, monkeypatch):
    """A disk that is full then must not cost what the settings have found."""
    progress = Progress(tmp_path, "m")
    progress.add_setting("3", "e", rows=[{"error": None}])
    before = progress.path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mlpswap.benchmark.progress.write_text", full)
    with pytest.raises(OSError, match="No space"):
        progress.add("3", "e", rows=[{"error": None}], seconds=1.0, patch=False)
    assert progress.path.read_text() == before


def test_what_another_model_did_is_neither_used_nor_lost(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line_of(GOOD))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl holds results of another model"):
        Progress(tmp_path, "other")
    assert path.read_text() == line_of(GOOD)


@pytest.mark.parametrize("content", ["{", '{"kind": "train"}'])
def test_damaged_results_do_not_pass_for_a_finished_benchmark(trained, tmp_path, content):
    folder = run_benchmark(tmp_path / "run", trained, "splits=[{altered: 3}]")
    (folder / "results.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"results\.json"):
        run_benchmark(folder, trained, "splits=[{altered: 3}]", resume=True)


def test_a_run_that_is_stopped_says_how_it_goes_on_and_names_what_is_in_its_way(
    trained, tmp_path, monkeypatch, capsys
):
    words = [
        f"model={trained}",
        f"output_dir={tmp_path / 'run'}",
        "splits=[{altered: 3}]",
        "editors=[{name: swap}]",
    ]

    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Swap, "edit", stopped)
        assert main(["benchmark", *words]) == 130
    assert "a run that had begun goes on with --resume" in capsys.readouterr().err

    def terminated(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Swap, "edit", terminated)
        assert main(["benchmark", *words, "--resume"]) == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert "a run that had begun goes on with --resume" in capsys.readouterr().err
    (tmp_path / "run" / "predictions.jsonl").unlink()
    (tmp_path / "run" / "predictions.jsonl").mkdir()
    assert main(["benchmark", *words, "--resume"]) == 2
    assert "predictions.jsonl cannot be used: Is a directory" in capsys.readouterr().err


def test_an_interrupted_benchmark_goes_on_where_it_stopped(trained, tmp_path, monkeypatch):
    """Finished editors are not run again; rows, answers and patches are those of a run in one go."""
    words = [
        "splits=[{altered: 3}, {altered: 6}]",
        "editors=[{name: swap}, {name: rome, steps: 100, lr: 0.5}]",
    ]
    folder = tmp_path / "run"
    ran = []

    def edit(self, *args, edit=Swap.edit, **kwargs):
        ran.append(self.name)
        return edit(self, *args, **kwargs)

    def stopped(self, *args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Swap, "edit", edit)
    with monkeypatch.context() as patch:
        patch.setattr(Rome, "edit_grid", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_benchmark(folder, trained, *words)
    path = folder / "metrics.jsonl"
    assert [json.loads(line)["editor"] for line in path.read_text().splitlines()] == ["swap"]
    path.write_text(path.read_text() + '{"event": "edi')  # a kill in the middle of a line
    with pytest.raises(CheckpointError, match="other settings"):
        run_benchmark(folder, trained, *words, "seed=1", resume=True)
    run_benchmark(folder, trained, *words, resume=True)
    assert len(ran) == 2  # one for each split
    whole = run_benchmark(tmp_path / "whole", trained, *words)
    one, other = (json.loads((each / "results.json").read_text()) for each in (folder, whole))
    for name in ("swap", "rome"):
        assert untimed(one["rows"], name) == untimed(other["rows"], name)
    assert one["answers"] == other["answers"]
    assert one["stages"].keys() == other["stages"].keys()
    assert (folder / "predictions.jsonl").read_text() == (whole / "predictions.jsonl").read_text()


@pytest.mark.parametrize("mode", ["sequential", "independent"])
def test_an_interrupted_run_goes_on_with_the_next_batch(trained, tmp_path, monkeypatch, mode):
    """To the last bit, with what the editor carries from batch to batch."""
    words = [
        "report=false",
        "batches=4",
        f"mode={mode}",
        f"editors={json.dumps([EVERY[-1], EVERY[2]])}",  # swap, and MEMIT with its cache
    ]
    edit, calls = Memit.edit, []

    def stopped(self, *args, **kwargs):
        calls.append(kwargs["state"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return edit(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Memit, "edit", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_sequence(tmp_path / "run", trained, *words)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["editor"] for line in lines] == ["swap", "memit", "memit"]
    timed = with_seconds(lines, took=1000.0)
    (tmp_path / "run" / "metrics.jsonl").write_text(timed)
    with monkeypatch.context() as patch:
        patch.setattr(Memit, "edit", stopped)
        run_sequence(tmp_path / "run", trained, *words, resume=True)
    assert len(calls) == 3 + 2
    run_sequence(tmp_path / "whole", trained, *words)
    one, other = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("run", "whole"))
    assert untimed(one["rows"]) == untimed(other["rows"])
    assert 2000 < one["stages"]["memit"] < 3000
    assert other["stages"]["memit"] < 1000
    assert sorted(path.name for path in (tmp_path / "run" / "patches").glob("*")) == sorted(
        path.name for path in (tmp_path / "whole" / "patches").glob("*")
    )
    if mode == "sequential":
        patches = (Patch.load(tmp_path / name / "patches" / "memit.safetensors") for name in ("run", "whole"))
        first, second = (patch.changes[0].new["down.weight"] for patch in patches)
        assert same_bits(first, second)


def test_a_state_of_an_unknown_kind_is_not_kept(base, tmp_path):
    """An editor that carries something of its own begins anew."""

    class Own(EditorState):
        pass

    halfway = Halfway(Progress(tmp_path, base.fingerprint), "sequential", "own", tmp_path / "halfway")
    halfway.add({"batch": 1, "error": None}, None, Own({}), 1.0)
    assert halfway.rows() == []
    halfway.add({"batch": 1, "error": None}, None, EditorState({}), 1.0)
    assert len(halfway.rows()) == 1


@pytest.mark.parametrize("lost", ["line", "state"])
def test_a_state_that_does_not_fit_the_last_line_is_not_used(trained, tmp_path, monkeypatch, caplog, lost):
    """A kill may cost the latest line; a lost state costs the editor's batches, but never changes a number."""
    words = ["report=false", "batches=5", f"editors={json.dumps([EVERY[2]])}"]
    edit, folder, calls = Memit.edit, tmp_path / "run", []

    def stopped(self, *args, **kwargs):
        calls.append(kwargs["state"])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return edit(self, *args, **kwargs)

    monkeypatch.setattr(Memit, "edit", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_sequence(folder, trained, *words)
    if lost == "line":
        lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_text("".join(lines[:-1]))
    else:
        (folder / "patches" / "memit" / "state_0003.safetensors").unlink()
    calls[:] = [None] * 4
    run_sequence(folder, trained, *words, resume=True)
    assert len(calls) - 4 == (3 if lost == "line" else 5)
    assert ("state after batch 3 is lost" in caplog.text) == (lost == "state")
    run_sequence(tmp_path / "whole", trained, *words)
    one, other = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("run", "whole"))
    assert untimed(one["rows"]) == untimed(other["rows"])


def test_a_damaged_file_of_an_interrupted_run_is_named(trained, base, tmp_path, capsys):
    words = ["report=false", "editors=[{name: memit, cache: true, steps: 10, lr: 0.5}]"]
    folder = run_sequence(tmp_path / "run", trained, *words)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    row = lines[0]["rows"][0]
    (folder / "results.json").unlink()
    progress = Progress(folder, base.fingerprint)
    progress.lines = []
    progress._write()
    progress.add_setting("sequential", "memit", rows=[row])
    assert main(["sequential", "--resume", f"output_dir={folder}"]) == 2
    assert "batch_0001.safetensors cannot be read" in capsys.readouterr().err
