"""The run's log: JSONL always, W&B without ever asking for anything."""

import builtins
import json

import pytest

from mlpswap.errors import ConfigError
from mlpswap.training.config import WandbOptions
from mlpswap.training.log import RunLog


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


@pytest.fixture
def no_key(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("it asked"))


def test_online_without_a_key_fails_before_training(tmp_path, no_key):
    log = RunLog(tmp_path)
    with pytest.raises(ConfigError, match="no API key"):
        log.start_wandb(WandbOptions(mode="online"), tmp_path, {}, None)
    log.close()


def test_without_the_package_the_default_run_goes_on(tmp_path, monkeypatch, caplog):
    """Its absence is one sentence; only `online` needs it."""
    real = builtins.__import__

    def without(name, *rest):
        if name == "wandb":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    log = RunLog(tmp_path)
    assert log.start_wandb(WandbOptions(), tmp_path, {}, None) is None
    assert "not installed" in caplog.text
    with pytest.raises(ConfigError, match="pip install wandb"):
        log.start_wandb(WandbOptions(mode="online"), tmp_path, {}, None)
    log.close()


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
