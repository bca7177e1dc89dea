"""The run's log: JSONL always, W&B without ever asking for anything."""

import builtins
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mlpswap.errors import ConfigError, RunFolderError
from mlpswap.training.config import WandbOptions
from mlpswap.training.log import RunLog, _login_fault, wandb_ready
from tests.conftest import train_run


def _lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_event_is_one_line_of_strict_json(tmp_path):
    log = RunLog(tmp_path)
    log.event("train", 1, loss=float("nan"), lr=0.1)
    log.event("eval", 2, adaptive_accuracy=0.5)
    log.close()
    assert _lines(tmp_path) == [
        {"event": "train", "step": 1, "loss": None, "lr": 0.1},
        {"event": "eval", "step": 2, "adaptive_accuracy": 0.5},
    ]


def test_going_on_drops_what_the_checkpoint_has_not_seen(tmp_path):
    """Also the half line that a kill may leave."""
    log = RunLog(tmp_path)
    for step in (10, 20, 30):
        log.event("train", step, loss=1.0)
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tra')
    log = RunLog(tmp_path, from_step=20)
    log.event("train", 30, loss=2.0)
    log.close()
    assert [(line["step"], line["loss"]) for line in _lines(tmp_path)] == [(10, 1.0), (20, 1.0), (30, 2.0)]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(tmp_path):
    log = RunLog(tmp_path)
    log._file.close()
    log._file = open("/dev/full", "a")  # noqa: SIM115  closed by the log
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl cannot be written: No space left"):
        log.event("train", 1)
    log.close()


@pytest.fixture
def no_key(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("it asked"))


def test_online_without_a_key_is_refused(tmp_path, no_key):
    with pytest.raises(ConfigError, match="no API key"):
        wandb_ready(WandbOptions(mode="online"), tmp_path)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_names_that_wandb_does_not_allow_are_refused(tmp_path, no_key, mode):
    with pytest.raises(ConfigError, match="Invalid project name 'a/b'"):
        wandb_ready(WandbOptions(mode=mode, project="a/b"), tmp_path)


@contextmanager
def _server(status, body, seconds=0.0):
    """A web server on this machine that gives every request the same answer; yields its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            time.sleep(seconds)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (200, b'{"data": {"viewer": {"id": "me"}}}', None),
        (401, b"", "does not accept the API key"),
        (200, b'{"data": {"viewer": null}}', "does not accept the API key"),
        (200, b"<html>", "does not answer like a W&B server"),
        (404, b"[]", "does not answer like a W&B server"),
    ],
)
def test_the_server_is_asked_before_the_run(monkeypatch, status, body, fault):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    with _server(status, body) as address:
        found = _login_fault(address)
    assert found is None if fault is None else fault in found


def test_a_server_that_is_not_there_or_does_not_answer_is_given_up_soon(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setattr("mlpswap.training.log.PATIENCE", 0.2)
    began = time.perf_counter()
    with _server(200, b"", seconds=0.6) as address:
        silent = _login_fault(address)
    assert "has not answered" in silent or "cannot be reached" in silent
    assert "cannot be reached" in _login_fault(address)  # nobody listens there any more
    assert time.perf_counter() - began < 5


def test_the_key_of_the_server_in_use_counts(monkeypatch, tmp_path, no_key):
    with _server(200, b'{"data": {"viewer": {"id": "me"}}}') as address:
        (tmp_path / "no-netrc").write_text(f"machine here:80 login user password {'x' * 40}\n")
        assert "no API key" in _login_fault(address)
        (tmp_path / "no-netrc").write_text(f"machine {address[7:]} login user password {'x' * 40}\n")
        assert _login_fault(address) is None
    monkeypatch.setenv("WANDB_API_KEY", "short")
    assert "40+ characters" in _login_fault(address)


def test_a_failing_check_leaves_no_folder(tmp_path, no_key):
    with pytest.raises(ConfigError, match="no API key"):
        train_run(tmp_path / "run", "wandb.mode=online")
    assert not (tmp_path / "run").exists()


def test_without_the_package_the_default_run_goes_on(tmp_path, monkeypatch, caplog):
    """Its absence is one sentence; only `online` needs it."""
    real = builtins.__import__

    def without(name, *rest):
        if name == "wandb":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert not wandb_ready(WandbOptions(), tmp_path)
    assert "not installed" in caplog.text
    with pytest.raises(ConfigError, match="pip install wandb"):
        wandb_ready(WandbOptions(mode="online"), tmp_path)


def test_what_wandb_refuses_later_is_one_sentence_too(tmp_path, no_key):
    """Such as the id in a checkpoint that was changed."""
    log = RunLog(tmp_path)
    with pytest.raises(ConfigError, match="Run ID cannot contain"):
        log.start_wandb(WandbOptions(), tmp_path, {}, "a/b")
    (tmp_path / "wandb").rmdir()
    (tmp_path / "wandb").write_text("")
    with pytest.raises(RunFolderError, match="wandb cannot be written"):
        log.start_wandb(WandbOptions(), tmp_path, {}, None)
    log.close()


def test_without_a_home_its_service_stays_quiet(tmp_path):
    """It prints its own log if it finds no place for it."""
    code = (
        "from pathlib import Path; from mlpswap.training.config import WandbOptions\n"
        "from mlpswap.training.log import RunLog, wandb_ready\n"
        "folder, options = Path('run'), WandbOptions(); folder.mkdir(); assert wandb_ready(options, folder)\n"
        "log = RunLog(folder); log.start_wandb(options, folder, {}, None); log.close()"
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HOME", "XDG_CACHE_HOME", "WANDB_CACHE_DIR")
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=kept, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_offline_runs_lie_in_the_run_folder_and_keep_their_id(tmp_path, no_key, monkeypatch):
    """The id goes into the checkpoint, so that a resumed run continues the same W&B run."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    log = RunLog(tmp_path)
    name = log.start_wandb(WandbOptions(), tmp_path, {"seed": 0}, None)
    log.event("train", 1, loss=1.0)
    log.summarise({"value_accuracy": 1.0})
    log.close()
    again = RunLog(tmp_path, from_step=1)
    assert again.start_wandb(WandbOptions(), tmp_path, {"seed": 0}, name) == name
    again.close()
    assert list((tmp_path / "wandb").glob(f"offline-run-*-{name}"))
