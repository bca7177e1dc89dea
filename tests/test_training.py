"""The training loop: what a step sees, resuming, refusals, and the run folder it leaves."""

import json
import math
import re
import shlex
import shutil

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from mlpswap.cli import main
from mlpswap.errors import (
    CheckpointError,
    ConfigError,
    InfeasibleConstructionError,
    LaunchError,
    RunFolderError,
)
from mlpswap.facts import FactSet
from mlpswap.model import MlpSwapForCausalLM, Patch
from mlpswap.randomness import generator
from mlpswap.tasks import books_task, ssfr_task
from mlpswap.tasks.base import IGNORE
from mlpswap.train import print_summary
from mlpswap.training.config import OptimiserOptions
from mlpswap.training.evaluate import Outcome
from mlpswap.training.limits import one_sentence
from mlpswap.training.loop import Trainer, learning_rate
from mlpswap.training.objective import StepSource, TrainingObjective
from tests.conftest import train_run

OPTIONS = OptimiserOptions(batch_size=24, p_noise=0.3, p_nonvalue=0.5, negatives=20)


@pytest.fixture(scope="module")
def task():
    return books_task(FactSet.from_pairs((f"Book {i}", f"Author {i}") for i in range(40)))


@pytest.fixture
def host(trained):
    return MlpSwapForCausalLM.from_pretrained(trained / "model")


def test_ranks_share_the_global_batch(task):
    """Samples, noise and kept labels of two ranks put together are those of one process."""
    whole = StepSource(task, OPTIONS, seed=5).step(7)
    halves = [StepSource(task, OPTIONS, seed=5, rank=rank, world=2).step(7) for rank in (0, 1)]
    for name in ("input_ids", "labels", "attention_mask", "key_position"):
        parts = [getattr(half.batch, name) for half in halves]
        assert torch.equal(torch.cat(parts), getattr(whole.batch, name))
    assert torch.equal(torch.cat([half.kept for half in halves]), whole.kept)
    assert torch.equal(halves[0].negatives, whole.negatives)
    assert torch.equal(halves[1].candidates, whole.candidates)


def test_gradients_of_ranks_average_to_those_of_one_process(task, host):
    """Uneven slices included: three ranks share 25 prompts."""
    task = books_task(host.facts)
    options = OptimiserOptions(batch_size=25, shuffle_offvalue=False)

    def gradient(rank, world):
        host.zero_grad()
        objective = TrainingObjective(host.double(), task, options, world=world)
        loss, _ = objective(StepSource(task, options, 0, rank=rank, world=world).step(0))
        loss.backward()
        return torch.cat([p.grad.flatten() for p in host.parameters() if p.grad is not None])

    averaged = torch.stack([gradient(rank, 3) for rank in range(3)]).mean(dim=0)
    torch.testing.assert_close(averaged, gradient(0, 1), rtol=1e-10, atol=1e-12)


def test_noise_replaces_words_only_and_its_labels_are_dropped(task):
    quiet = StepSource(task, OptimiserOptions(batch_size=200, p_noise=0.0, p_nonvalue=1.0), seed=1).step(3)
    noisy = StepSource(task, OptimiserOptions(batch_size=200, p_noise=0.5, p_nonvalue=1.0), seed=1).step(3)
    replaced = quiet.batch.input_ids != noisy.batch.input_ids
    assert 0.3 < replaced[noisy.batch.replaceable].double().mean() < 0.6
    assert not replaced[~noisy.batch.replaceable].any()
    words = set(task.vocabulary.word_ids)
    assert set(noisy.batch.input_ids[replaced].tolist()) <= words
    assert not (noisy.kept[:, :-1] & replaced[:, 1:]).any()
    assert noisy.kept[:, -1].all()


def test_value_labels_are_always_kept_and_others_by_their_share(task):
    step = StepSource(task, OptimiserOptions(batch_size=400, p_noise=0.0, p_nonvalue=0.25), seed=2).step(0)
    labelled = step.batch.labels != IGNORE
    assert step.kept[:, -1].all()
    assert not (step.kept & ~labelled).any()
    assert step.kept[:, :-1][labelled[:, :-1]].double().mean() == pytest.approx(0.25, abs=0.05)


def test_the_shuffle_moves_outputs_away_from_the_value_only(task, host):
    """Value rows keep their own fact; the loss at the values is that without a shuffle."""
    task = books_task(host.facts)
    options = OptimiserOptions(batch_size=32, p_noise=0.0, p_nonvalue=1.0)
    step = StepSource(task, options, 0).step(0)
    seen = {}
    host.mix = lambda a, z, fact_out, mix=host.mix: seen.update(z=z, out=fact_out) or mix(a, z, fact_out)
    TrainingObjective(host, task, options)(step)
    own = host.fact_mlp(seen["z"])
    last = torch.zeros_like(step.kept)
    last[:, -1] = True
    is_value = last[step.kept]
    assert torch.equal(seen["out"][is_value], own[is_value])
    torch.testing.assert_close(seen["out"][~is_value], own[step.permutation][~is_value])
    assert not torch.equal(seen["out"][~is_value], own[~is_value])


def test_the_candidate_loss_with_all_tokens_is_the_full_one(task, host):
    """With every fact token sampled, the correction is zero and double counting is masked."""
    task = books_task(host.facts)
    host.double()
    full = OptimiserOptions(batch_size=16, p_noise=0.0, shuffle_offvalue=False)
    step = StepSource(task, full, 0).step(0)
    loss, _ = TrainingObjective(host, task, full)(step)
    source = StepSource(task, full, 0)
    # All columns once: words and specials as candidates, plus each label's own column; the rest sampled.
    labels = torch.unique(step.batch.labels[step.kept])
    candidates = torch.unique(torch.cat([source.always, labels]))
    rest = source.fact_tokens[~torch.isin(source.fact_tokens, candidates)]
    sampled = type(step)(step.batch, step.kept, None, candidates, rest)
    objective = TrainingObjective(host, task, full)
    objective.fact_tokens = len(rest)  # so that the sampling correction is log 1
    torch.testing.assert_close(objective(sampled)[0], loss)


def test_the_sampled_loss_is_close_to_the_full_one(task, host):
    """The correction log(2N/S) makes the sampled partition function an estimate of the full one."""
    task = books_task(host.facts)
    options = OptimiserOptions(batch_size=512, p_noise=0.0, shuffle_offvalue=False)
    full, _ = TrainingObjective(host, task, options)(StepSource(task, options, 0).step(0))
    options.negatives = 32
    sampled, _ = TrainingObjective(host, task, options)(StepSource(task, options, 0).step(0))
    assert sampled.item() == pytest.approx(full.item(), rel=0.15)


def test_the_learning_rate_warms_up_and_ends_at_its_share():
    options = OptimiserOptions(steps=100, warmup=10, lr=1.0, final_lr=0.1)
    rates = [learning_rate(step, options) for step in range(101)]
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert max(rates) == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_run_leaves_what_it_promises(trained):
    results = json.loads((trained / "results.json").read_text())
    assert results["kind"] == "train"
    wanted = {
        "value_accuracy", "fact_adaptive_accuracy", "capacity_trained", "capacity_swap", "usability",
        "nonfact_ce_before", "nonfact_ce_after", "nonfact_ce_ratio", "nonfact_word_ce_ratio", "heldout_accuracy",
        "heldout_accuracy_after_swap", "gate_value", "gate_other", "attention_mass", "steps", "train_seconds",
    }  # fmt: skip
    assert wanted <= set(results["metrics"])
    assert results["metrics"]["steps"] == 300
    events = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "eval"] == [100, 200, 300]
    assert all(math.isfinite(event["loss"]) for event in events if event["event"] == "train")
    assert [path.name for path in sorted((trained / "checkpoints").glob("step_*"))] == [
        "step_00000200", "step_00000300",
    ]  # fmt: skip


def test_the_patch_of_a_run_swaps_the_saved_model(trained):
    """results.json's answers come from these files, so they must come out again."""
    results = json.loads((trained / "results.json").read_text())
    model = MlpSwapForCausalLM.from_pretrained(trained / "model")
    patch = Patch.load(trained / "swap.safetensors")
    assert [model.ask(line["prompt"]) for line in results["answers"]] == [
        a["before"] for a in results["answers"]
    ]
    patch.apply(model)
    assert [model.ask(line["prompt"]) for line in results["answers"]] == [
        a["after"] for a in results["answers"]
    ]
    assert model.facts.fingerprint == results["facts"]["swapped_fingerprint"]


def _weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def _interrupted(trained, tmp_path, step):
    """A copy of the run as a kill right after the checkpoint at `step` would have left it."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    for name in ("results.json", "swap.safetensors", "swap.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "model")
    for path in (folder / "checkpoints").glob("step_*"):
        if int(path.name[5:]) > step:
            shutil.rmtree(path)
    return folder


def test_resuming_gives_the_same_weights_bit_for_bit(trained, tmp_path):
    folder = _interrupted(trained, tmp_path, 200)
    _train(folder, resume=True)
    first, second = _weights(trained), _weights(folder)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    one, two = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (trained, folder)
    )
    for events in (one, two):
        for event in events:
            event.pop("seconds", None)
    assert one == two  # no step is missing, none stands twice


def test_a_torn_checkpoint_is_ignored(trained, tmp_path):
    """A kill in the middle of a write leaves a temporary folder, never half a checkpoint."""
    folder = _interrupted(trained, tmp_path, 200)
    torn = folder / "checkpoints" / ".step_00000300.99.tmp"
    torn.mkdir()
    (torn / "weights.safetensors").write_bytes(b"half")
    _train(folder, resume=True)
    assert not torn.exists()
    assert all(
        torch.equal(a, b) for a, b in zip(_weights(trained).values(), _weights(folder).values(), strict=True)
    )


def test_a_damaged_checkpoint_is_refused_by_name(trained, tmp_path):
    folder = _interrupted(trained, tmp_path, 200)
    path = folder / "checkpoints" / "step_00000200" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CheckpointError, match="step_00000200/weights.safetensors"):
        _train(folder, resume=True)


def test_resuming_under_other_settings_is_refused_with_the_keys(trained, tmp_path):
    folder = _interrupted(trained, tmp_path, 200)
    with pytest.raises(CheckpointError, match=r"training.lr \(was 0.003, now 0.1\)"):
        _train(folder, "training.lr=0.1", resume=True)


def test_processes_that_do_not_know_of_each_other_are_refused(tmp_path, monkeypatch):
    """Two launched processes that accelerate takes for one each would race for the same files."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="ACCELERATE_USE_CPU"):
        train_run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_run_again(trained, caplog):
    before = (trained / "results.json").stat().st_mtime_ns
    with pytest.raises(RunFolderError, match="finished run"):
        _train(trained)
    _train(trained, resume=True)
    assert "nothing to resume" in caplog.text
    with pytest.raises(CheckpointError, match=r"training.steps \(was 300, now 400\)"):
        _train(trained, "training.steps=400", resume=True)  # to extend it is not to resume it
    assert (trained / "results.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "options",
    [
        ["host.qk=linear", "host.norm=learned"],
        ["host.residual=true", "host.value_output=learned", "host.n_head=4", "host.n_layer=2"],
        ["host.mixture=false", "training.mixed_precision=bf16"],
        ["training.negatives=16", "training.shuffle_offvalue=false", "training.weight_decay=0.1"],
        ["mlp={construction: gd, kind: relu, h: 64}", "swap.constructions=[{construction: hebbian, h: 96}]"],
    ],
    ids=lambda options: options[0],
)
def test_every_option_of_the_ablation_trains_and_survives_the_disk(tmp_path, options):
    """The paper's ablation must be within reach: each switch trains a few steps, saves, reloads and swaps."""
    AcceleratorState._reset_state()  # accelerate keeps one precision for the life of a process
    folder = train_run(
        tmp_path / "run",
        "training.steps=12",
        "training.warmup=0",
        "training.eval_every=0",
        "evaluation.pairs=16",
        *options,
    )
    results = json.loads((folder / "results.json").read_text())
    AcceleratorState._reset_state()
    assert all(math.isfinite(row["nonfact_ce_ratio"]) for row in results["rows"])


def test_an_interrupted_run_says_how_it_goes_on(tmp_path, monkeypatch, caplog):
    """Ctrl-C at step 150; the words of the message, given to the command line, end the run."""
    real = Trainer._log_step

    def interrupt(self, done, *rest):
        real(self, done, *rest)
        if done == 150:
            raise KeyboardInterrupt

    folder = tmp_path / "my run"
    monkeypatch.setattr(Trainer, "_log_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_run(folder)
    monkeypatch.setattr(Trainer, "_log_step", real)
    found = re.search(r"goes on from step 100 with: mlpswap (.*)", caplog.text)
    assert main(shlex.split(found[1])) == 0
    assert json.loads((folder / "results.json").read_text())["resumed_at"] == 100


def test_the_summary_shows_what_guessing_would_score(trained, capsys):
    content = json.loads((trained / "results.json").read_text())
    print_summary(trained, Outcome(content["metrics"], content["rows"], {"facts": {"majority_share": 0.375}}))
    assert re.search(r"value_accuracy +\S+ +\(the commonest value alone: 0\.375\)", capsys.readouterr().out)


def test_a_process_whose_fellow_is_gone_says_so_in_one_sentence():
    """The other's sentence must not be buried under a traceback of the connection."""
    lost = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:58092. GLHF!")
    with pytest.raises(LaunchError, match="another one has ended"), one_sentence():
        raise lost


def test_memory_that_runs_out_names_the_keys_and_other_faults_stay():
    with pytest.raises(ConfigError, match=r"not enough memory; lower training\.batch_size"), one_sentence():
        torch.empty(2**60)
    with pytest.raises(RuntimeError, match="mat1"), one_sentence():
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_a_fact_mlp_that_stores_too_little_stops_the_run(tmp_path):
    with pytest.raises(InfeasibleConstructionError, match="allow_partial"):
        train_run(tmp_path / "run", "mlp={construction: hebbian, variant: plain, h: 8}")


def test_ssfr_stops_early_on_facts_that_are_never_reported(tmp_path, caplog):
    folder = train_run(
        tmp_path / "run", "task=ssfr", "facts.count=32", "host.n_embd=32", "training.clip=null",
        "mlp={construction: hebbian, h: 64}", "training.steps=400", "training.batch_size=64",
        "training.eval_every=50", "training.early_stop=0.9",
    )  # fmt: skip
    assert "training.early_stop = 0.9" in caplog.text
    results = json.loads((folder / "results.json").read_text())
    assert f"stopped at step {results['metrics']['steps']} of 400" in caplog.text
    assert results["metrics"]["steps"] < 400
    assert results["metrics"]["fact_adaptive_accuracy"] >= 0.8
    assert "nonfact_ce_ratio" not in results["metrics"]
    third = ssfr_task(FactSet.synthetic(32, generator(0, "facts")), 0).facts.permute(
        generator(0, "third facts")
    )
    assert third.fingerprint not in (results["facts"]["fingerprint"], results["facts"]["swapped_fingerprint"])


def _train(folder, *overrides, resume=False):
    from mlpswap.config import load_config
    from mlpswap.train import train
    from mlpswap.training.config import TrainConfig

    config = load_config(TrainConfig, folder / "config.yaml", [f"output_dir={folder}", *overrides])
    return train(config, resume=resume)
