"""Batched residual optimisation against published numbers and against one run per prompt through the whole model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from mlpswap.editing import HostAdapter, Objective, ResidualOptions, optimise_residuals
from mlpswap.errors import ConfigError
from mlpswap.metrics import TokenNll
from mlpswap.randomness import generator
from tests.reference import books_host, residuals_one_by_one

GOLDEN = Path(__file__).parent / "golden"
PROMPTS = ("The writer of {book} is", "Who wrote {book} ? Surely", "The book {book} comes from")

OPTIONS = [
    ResidualOptions(3, 0.5),
    ResidualOptions(20, 0.5),
    ResidualOptions(20, 0.5, early_stop=1.0),
    ResidualOptions(6, 0.5, early_stop=0.2),
    ResidualOptions(20, 0.05, weight_decay=1e-2, early_stop=2.0),
]


def requests_of(adapter, count=5):
    """Prompts of different lengths, each asking for another fact's value."""
    facts = adapter.facts
    return [
        adapter.request(PROMPTS[i % 3], facts.keys[i], facts.value_of(facts.keys[(i + 3) % len(facts)]))
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def golden():
    """The published runs, and the objective they minimise."""
    tensors = load_file(GOLDEN / "residual_opt.safetensors")
    runs = json.loads((GOLDEN / "residual_opt.json").read_text())["runs"]

    def direction(x):
        return x / (x.square().mean(dim=-1, keepdim=True) + 1e-30).sqrt() * tensors["ln_f_weight"]

    gate, output = tensors["gate"], tensors["fact_out"]
    rest = tensors["block_out"] - gate[:, None] * output
    return tensors, runs, Objective(gate, rest, output, tensors["targets"], direction, tensors["unembedding"])


@pytest.mark.parametrize("block", [1, 7, 4096])
def test_the_loss_in_blocks_is_the_loss(block, monkeypatch):
    """Against torch's own, with its gradient, for logits from tiny to huge."""
    monkeypatch.setattr("mlpswap.metrics.VOCABULARY_BLOCK", block)
    source = generator(0, "blocks")
    table = torch.randn(30, 5, generator=source, dtype=torch.float64)
    targets = torch.randint(30, (8,), generator=source)
    for scale in (1e-3, 1.0, 300.0):
        direction = scale * torch.randn(8, 5, generator=source, dtype=torch.float64)
        direction.requires_grad_()
        found = TokenNll.apply(direction, table, targets)
        wanted = F.cross_entropy(direction @ table.T, targets, reduction="none")
        torch.testing.assert_close(found, wanted)
        weights = torch.rand(8, generator=source, dtype=torch.float64)
        gradients = [torch.autograd.grad((each * weights).sum(), direction)[0] for each in (found, wanted)]
        torch.testing.assert_close(*gradients)


def test_published_runs(golden):
    """All nine at once, so that they share trajectories, in chunks that do not divide the prompts."""
    tensors, runs, objective = golden
    options = [ResidualOptions(run["num_steps"], run["lr"], run["wd"], run["early_stopping"]) for run in runs]
    for run, found in zip(runs, optimise_residuals(objective, options, rows=3), strict=True):
        wanted = tensors[run["tag"]]
        assert (found.residuals - wanted).norm() <= 1e-6 * wanted.norm(), run["tag"]
        print(f"relative error of {run['tag']}: {(found.residuals - wanted).norm() / wanted.norm():.1e}")


def test_reported_losses(golden):
    """They belong to the residuals that come with them, and to zero."""
    tensors, _, objective = golden
    (run,) = optimise_residuals(objective, [ResidualOptions(25, 0.5)])
    zero = torch.zeros_like(objective.output)
    torch.testing.assert_close(run.losses, objective.nll(run.residuals))
    torch.testing.assert_close(run.first_losses, objective.nll(zero))
    torch.testing.assert_close(run.first_gradients, objective.nll_and_gradient(zero)[1].norm(dim=1))
    wanted = -tensors["logits"].log_softmax(dim=1).gather(1, tensors["targets"][:, None])[:, 0]
    torch.testing.assert_close(run.first_losses, wanted)


def test_the_loss_is_differentiable(golden):
    """By finite differences, for editors that bring their own parameters."""
    _, _, objective = golden
    r = torch.randn(7, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(objective.nll, (r,))


@pytest.mark.parametrize(
    "host", [{}, {"mixture": False}, {"residual": True}, {"n_layer": 2, "n_head": 2}], ids=str
)
def test_batched_equals_one_by_one_through_the_model(host):
    """Every option and every prompt, whatever stands around the fact MLP."""
    _, model = books_host(**host)
    adapter = HostAdapter(model)
    requests = requests_of(adapter)
    for option, run in zip(OPTIONS, adapter.residuals(requests, adapter.sites()[0], OPTIONS), strict=True):
        wanted = residuals_one_by_one(model, requests, option)
        torch.testing.assert_close(run.residuals, wanted, rtol=1e-12, atol=1e-12)


def test_early_stops_differ_between_rows():
    """Else the options above would not test the freezing of single rows."""
    _, model = books_host()
    adapter = HostAdapter(model)
    stopped, free = adapter.residuals(requests_of(adapter), 0, [OPTIONS[2], OPTIONS[1]])
    earlier = (stopped.residuals != free.residuals).any(dim=1)
    assert earlier.all()
    assert len(stopped.losses.unique()) == 5
    assert (stopped.losses < 1.0).all()
    assert (free.losses < stopped.losses).all()


def test_shared_runs_equal_single_runs(golden):
    """Sharing trajectories, the order of options and the size of chunks change not one bit."""
    _, _, objective = golden
    together = optimise_residuals(objective, OPTIONS[::-1], rows=4)[::-1]
    for option, found in zip(OPTIONS, together, strict=True):
        (alone,) = optimise_residuals(objective, [option], rows=4)
        assert torch.equal(found.residuals, alone.residuals)
    (whole,) = optimise_residuals(objective, [OPTIONS[1]])
    torch.testing.assert_close(whole.residuals, together[1].residuals, rtol=1e-12, atol=1e-14)


def test_float32_is_close_to_float64(golden):
    """The default precision of hosts; the first step of Adam is +-lr whatever the gradient, so that compares signs."""
    _, _, objective = golden
    single = Objective(
        *(getattr(objective, name).float() for name in ("gate", "rest", "output")),
        objective.targets,
        lambda y: objective.direction(y.double()).float(),
        objective.table.float(),
    )
    option = ResidualOptions(25, 0.05)
    (double,), (found,) = optimise_residuals(objective, [option]), optimise_residuals(single, [option])
    assert found.residuals.dtype == torch.float32
    assert (found.residuals - double.residuals).norm() < 1e-4 * double.residuals.norm()


def test_runs_are_remembered_until_the_model_changes():
    """Editors that ask for the same share the work; a changed weight is never answered from memory."""
    _, model = books_host()
    adapter = HostAdapter(model)
    requests = requests_of(adapter)
    first, second = OPTIONS[:2]
    (run,) = adapter.residuals(requests, 0, [first])
    again, other = adapter.residuals(requests, 0, [first, second])
    assert again is run
    with torch.no_grad():
        model.fact_mlp.down.weight.mul_(2)
    fresh_run, _ = adapter.residuals(requests, 0, [first, second])
    assert not torch.equal(fresh_run.residuals, run.residuals)
    assert not torch.equal(other.residuals, run.residuals)


def test_the_model_is_left_as_it_was():
    """No gradient arrives at its parameters, and flags and modes stay."""
    _, model = books_host()
    model.train()
    model.fact_mlp.eval()
    flags = [parameter.requires_grad for parameter in model.parameters()]
    assert any(flags)
    adapter = HostAdapter(model)
    adapter.residuals(requests_of(adapter), 0, OPTIONS[:1])
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert not model.fact_mlp.training


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0, "lr": 1.0},
        {"steps": 1, "lr": 0.0},
        {"steps": 1, "lr": 1.0, "weight_decay": -1.0},
        {"steps": 1, "lr": 1.0, "early_stop": 0.0},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        ResidualOptions(**options)
