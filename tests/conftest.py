"""Shared by all tests: one thread each, shapes checked at run time, and small hosts that several files use."""

import os

os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxtyping import install_import_hook

import tests.shapes  # noqa: F401  the hook finds it by name

# Annotations like Float[Tensor, "F d"] are checked on every call here, and cost nothing in production.
install_import_hook(
    [
        "mlpswap.embeddings",
        "mlpswap.whitening",
        "mlpswap.min_norm",
        "mlpswap.geometry",
        "mlpswap.affine",
        "mlpswap.stores",
        "mlpswap.constructions",
        "mlpswap.sequences.methods.allocation",
        "mlpswap.sequences.methods.exact",
        "mlpswap.sequences.facts",
        "mlpswap.sequences.methods.gated",
        "mlpswap.sequences.methods.hand_coded",
        "mlpswap.sequences.network",
        "mlpswap.metrics",
        "mlpswap.editing.moments",
        "mlpswap_baselines",
        "mlpswap.model.modeling",
        "mlpswap.model.lookup",
        "mlpswap.model.build",
        "mlpswap.model.swap",
        "mlpswap.model.patch",
    ],  # fmt: skip
    "tests.shapes.check",
)

import jaxtyping  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture
def plugged(monkeypatch):
    """Let classes of tests/plug_ins.py be installed beside what is built in: plugged(group, name="Class")."""
    from importlib.metadata import EntryPoint
    from types import SimpleNamespace

    from mlpswap import registry

    def install(group, **classes):
        real = registry.entry_points
        own = [
            EntryPoint(name, f"tests.plug_ins:{cls}", group)._for(SimpleNamespace(name="other", version="9"))
            for name, cls in classes.items()
        ]
        monkeypatch.setattr(
            registry,
            "entry_points",
            lambda group: [*real(group=group), *(p for p in own if p.group == group)],
        )
        registry._entries.cache_clear()

    yield install
    registry._entries.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Two threads that wait for a busy core are slower than one, by up to eight times."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread_again():
    """Whatever a test has set."""
    yield
    torch.set_num_threads(1)


@pytest.fixture
def unchecked():
    """Annotations unchecked, as users run the package: what reaches it is what they passed."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def train_run(folder, *overrides):
    """Train a small host of books into `folder` and return the folder."""
    from mlpswap.config import load_config
    from mlpswap.train import train
    from mlpswap.training.config import TrainConfig

    small = [
        "facts.count=32", "host.n_embd=64", "mlp={construction: hebbian, h: 96}", "training.steps=300",
        "training.batch_size=32", "training.eval_every=100", "training.eval_pairs=64", "evaluation.pairs=128",
        "training.checkpoint_every=100", "wandb.mode=disabled", "report=false", f"output_dir={folder}",
    ]  # fmt: skip
    return train(load_config(TrainConfig, None, [*small, *overrides]))


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The run folder of a small trained host, which no test may change."""
    return train_run(tmp_path_factory.mktemp("trained") / "run")
