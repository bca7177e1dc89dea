"""Who is examined: what `--editor` and `--construction` name, or everything registered."""

from pathlib import Path

import pytest

from mlpswap import registry
from mlpswap.errors import RegistryError
from mlpswap.testing.hosts import Bench

GROUPS = {"construction": registry.CONSTRUCTIONS, "editor": registry.EDITORS}


def examined(config: pytest.Config) -> dict[str, list[registry.Entry]]:
    """Entries by kind. What was asked for by name and cannot be had is told in one sentence."""
    asked = {kind: config.getoption(f"mlpswap_{kind}", default=[]) for kind in GROUPS}
    entries = {kind: list(registry.entries(group)) for kind, group in GROUPS.items()}
    if not any(asked.values()):
        return entries
    try:
        for kind, names in asked.items():
            for name in names:
                registry.get(GROUPS[kind], name)
    except RegistryError as error:
        raise pytest.Collector.CollectError(str(error)) from error
    return {kind: [entry for entry in entries[kind] if entry.name in asked[kind]] for kind in GROUPS}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where the names of one kind are given, the exam of the other one is left out."""
    kind = collection_path.stem.removeprefix("test_").removesuffix("s")
    return True if kind in GROUPS and not examined(config)[kind] else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`editor` and `construction` are names; `entry` is also given for what cannot be loaded."""
    found = examined(metafunc.config)
    for kind, entries in found.items():
        if kind in metafunc.fixturenames:
            metafunc.parametrize(kind, [entry.name for entry in entries if entry.problem() is None])
    if "entry" in metafunc.fixturenames:
        pairs = [(kind, entry) for kind, entries in found.items() for entry in entries]
        metafunc.parametrize("entry", [entry for _, entry in pairs], ids=[f"{k}-{e.name}" for k, e in pairs])


@pytest.fixture
def bench() -> Bench:
    return Bench()
