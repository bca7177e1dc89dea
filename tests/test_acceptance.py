"""What the project promises, measured: one seed by default, three seeds and the larger presets with `-m slow`."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mlpswap.config import load_config
from mlpswap.train import train
from mlpswap.training.config import TrainConfig

SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
GOODREADS = os.environ.get("MLPSWAP_GOODREADS")
needs_goodreads = pytest.mark.skipif(
    not GOODREADS, reason="MLPSWAP_GOODREADS does not name a CSV file of books and authors"
)


def _run(preset, folder, *overrides):
    config = load_config(
        TrainConfig, preset, [f"output_dir={folder}", "wandb.mode=disabled", "report=false", *overrides]
    )
    train(config)
    return json.loads((folder / "results.json").read_text())["metrics"]


@pytest.mark.parametrize("seed", SEEDS)
def test_ssfr_tiny(tmp_path, seed):
    metrics = _run("ssfr_tiny", tmp_path / "run", f"seed={seed}")
    assert metrics["fact_adaptive_accuracy"] >= 0.98


@pytest.mark.parametrize("seed", SEEDS)
def test_books_tiny(tmp_path, seed):
    metrics = _run("books_tiny", tmp_path / "run", f"seed={seed}")
    assert min(metrics["value_accuracy"], metrics["fact_adaptive_accuracy"]) >= 0.98
    assert abs(metrics["nonfact_ce_ratio"] - 1) < 0.01
    assert metrics["heldout_accuracy"] >= 0.95
    assert metrics["gate_value"] - metrics["gate_other"] > 0.5


@needs_goodreads
def test_books_of_a_real_download_are_read_and_trained_on(tmp_path):
    """A few steps on 4,096 real titles, with whatever they contain."""
    metrics = _run(
        "books_4k", tmp_path / "run", f"facts.path={GOODREADS}", "training.steps=5", "training.warmup=0",
        "training.eval_every=0", "evaluation.pairs=64",
    )  # fmt: skip
    assert metrics["capacity_trained"] >= 0.995


@pytest.mark.slow
@needs_goodreads
def test_books_4k(tmp_path):
    metrics = _run("books_4k", tmp_path / "run", f"facts.path={GOODREADS}")
    assert min(metrics["value_accuracy"], metrics["fact_adaptive_accuracy"]) >= 0.99
    assert metrics["heldout_accuracy"] >= 0.97


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_goodreads
def test_books_16k(tmp_path):
    metrics = _run("books_16k", tmp_path / "run", f"facts.path={GOODREADS}")
    assert min(metrics["value_accuracy"], metrics["fact_adaptive_accuracy"]) >= 0.99
    assert abs(metrics["nonfact_ce_ratio"] - 1) < 0.01
    assert metrics["heldout_accuracy"] >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ssfr", "ssfr_4096"])
def test_larger_ssfr(tmp_path, preset):
    assert _run(preset, tmp_path / "run")["fact_adaptive_accuracy"] >= 0.99


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_edit_tiny_over_three_seeds(tmp_path):
    """At 10 % altered facts swap stays at 0.95 or above, and its base is as good as it should be."""
    from mlpswap.benchmark.config import BenchmarkConfig
    from mlpswap.benchmark.run import benchmark

    scores = []
    for seed in (0, 1, 2):
        folder = tmp_path / str(seed)
        words = [f"seed={seed}", f"output_dir={folder}", "report=false"]
        benchmark(load_config(BenchmarkConfig, "edit_tiny", words))
        results = json.loads((folder / "results.json").read_text())
        assert sum(row["selection"] == "grid" for row in results["rows"]) == 3 * 245
        assert results["base"]["metrics"]["value_accuracy"] >= 0.98
        scores.append(results["metrics"]["swap_score_harmonic_26"])
    assert sum(scores) / 3 >= 0.95


def _torchrun(folder, *words, processes):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip
    return ["torchrun", "--standalone", "--nproc_per_node", str(processes), "-m", "mlpswap.train",
            f"output_dir={folder}", "wandb.mode=disabled", "report=false", *words], environment  # fmt: skip


def _launch(folder, *words):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    return ["accelerate", "launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
            "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "mlpswap.train", f"output_dir={folder}",
            "wandb.mode=disabled", "report=false", *words], environment  # fmt: skip


@pytest.mark.multiproc
def test_two_processes_learn_what_one_does(tmp_path):
    """Two real processes: the same samples and, but for the shuffle's draw, the same run."""
    small = ["facts.count=64", "host.n_embd=64", "mlp={construction: hebbian, h: 128}", "training.steps=250",
             "training.checkpoint_every=50", "training.shuffle_offvalue=false", "evaluation.pairs=101"]  # fmt: skip
    metrics = []
    for processes in (1, 2):
        command, environment = _torchrun(tmp_path / str(processes), *small, processes=processes)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        metrics.append(json.loads((tmp_path / str(processes) / "results.json").read_text())["metrics"])
        progress = tmp_path / str(processes) / "checkpoints" / "step_00000250" / "progress.json"
        assert json.loads(progress.read_text())["processes"] == processes  # else one is compared with itself
    one, two = metrics
    for name in ("value_accuracy", "fact_adaptive_accuracy", "heldout_accuracy", "nonfact_ce_ratio"):
        assert two[name] == pytest.approx(one[name], abs=0.005), name
    assert two["steps"] == one["steps"]


@pytest.mark.slow
@pytest.mark.multiproc
def test_what_stops_one_process_is_said_once_and_above_no_traceback_of_the_other(tmp_path):
    """Before the launcher's own summary, which nobody can keep it from printing."""
    (tmp_path / "thesis.tex").write_text("x")
    command, environment = _torchrun(tmp_path, processes=2)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode != 0
    assert done.stderr.count("thesis.tex") == 1
    assert "Connection closed" not in done.stderr


@pytest.mark.slow
@pytest.mark.multiproc
@pytest.mark.timeout(900)
def test_kills_at_random_moments_change_nothing(tmp_path):
    """SIGKILL three times, each time resumed: the final weights are those of an uninterrupted run, bit for bit."""
    words = ["--config", "books_tiny", "training.checkpoint_every=25"]
    whole, environment = _launch(tmp_path / "whole", *words)
    subprocess.run(whole, env=environment, check=True, capture_output=True)
    draw, killed = random.Random(time.time_ns()), tmp_path / "killed"
    command, environment = _launch(killed, *words)
    for attempt in range(3):
        process = subprocess.Popen(
            command + (["--resume"] if attempt else []), env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        goal = draw.randrange(60, 130) * (attempt + 1)
        log = killed / "metrics.jsonl"
        while not (log.exists() and any(step >= goal for step in _steps(log))):
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
        time.sleep(draw.random() / 5)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([*command, "--resume"], env=environment, check=True, capture_output=True)
    one, two = (load_file(run / "model" / "model.safetensors") for run in (tmp_path / "whole", killed))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def _steps(log):
    return [int(found) for found in re.findall(r'"step": (\d+)', log.read_text())]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_one_training_step_and_one_edit_on_the_gpu_equal_the_cpu(trained):
    from mlpswap.benchmark.base import the_task
    from mlpswap.editing import HostAdapter, statistics_of
    from mlpswap.model import MlpSwapForCausalLM
    from mlpswap.registry import EDITORS, get
    from mlpswap.training.config import OptimiserOptions
    from mlpswap.training.loop import make_optimizer
    from mlpswap.training.objective import StepSource, TrainingObjective

    found = {}
    for device in ("cpu", "cuda"):
        model = MlpSwapForCausalLM.from_pretrained(trained / "model").to(device)
        task, options = the_task(model), OptimiserOptions(batch_size=32)
        adapter = HostAdapter(model)
        books = model.facts.keys[:4]
        requests = [adapter.request("The writer of {book} is", book, model.facts.values[9]) for book in books]
        kept = [
            adapter.request("The writer of {book} is", b, model.facts.value_of(b))
            for b in model.facts.keys[4:]
        ]
        editor = get(EDITORS, "memit")
        statistics = statistics_of(adapter, adapter.prompts(kept))
        patch = editor.edit(adapter, requests, editor.Config(), statistics=statistics).patch
        edited = patch.changes[0].new["down.weight"].cpu()
        optimizer = make_optimizer(model, options)
        loss, _ = TrainingObjective(model, task, options)(StepSource(task, options, 0).step(0).to(device))
        loss.backward()
        optimizer.step()
        weights = {name: tensor.detach().cpu() for name, tensor in model.named_parameters()}
        found[device] = (loss.item(), edited, weights)
    assert found["cpu"][0] == pytest.approx(found["cuda"][0], rel=1e-4)
    torch.testing.assert_close(found["cpu"][1], found["cuda"][1], rtol=1e-4, atol=1e-4)
    for name, tensor in found["cpu"][2].items():
        torch.testing.assert_close(tensor, found["cuda"][2][name], rtol=1e-4, atol=1e-4)
