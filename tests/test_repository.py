"""The shape of the code: one-way flow, rooms of a readable size, and what must not stand in it."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted([*(ROOT / "mlpswap").rglob("*.py"), *(ROOT / "baselines").rglob("*.py")])

# Each stage may import from the ones before it. Entry points stand outside.
FLOW = [
    "errors", "randomness", "config", "runs", "run_folder", "progress_bar", "registry", "facts", "readers", "embeddings",
    "whitening", "min_norm", "geometry", "affine", "constructions", "stores", "cost", "sequences", "model", "tasks", "metrics",
    "training", "editing", "benchmark", "report", "testing",
]  # fmt: skip
ENTRIES = {"__init__", "cli", "train", "commands"}


def _stage(path: Path) -> str:
    return path.relative_to(ROOT / "mlpswap").parts[0].removesuffix(".py")


def _imported(path: Path):
    """Modules that a file imports at its top level."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_data_flows_one_way(path):
    if path.is_relative_to(ROOT / "baselines"):
        allowed = {"config", "constructions", "editing", "errors", "registry"}
    elif _stage(path) in ENTRIES:
        return
    else:
        allowed = set(FLOW[: FLOW.index(_stage(path)) + 1])
    for module in _imported(path):
        if module.startswith("mlpswap_"):
            pytest.fail(f"{path} imports {module}")
        if module.startswith("mlpswap."):
            assert module.split(".")[1] in allowed, module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_one_room(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    for pattern in (
        r"\.cuda\(",
        r"torch\.(load|save)\(",
        r"\bpickle\b(?!s)",
        r"^torch\.manual_seed",
        r"manual_seed_all",
    ):
        found = re.search(pattern, re.sub(r'""".*?"""|#.*', "", text, flags=re.DOTALL), flags=re.MULTILINE)
        assert found is None, found
    if not text.startswith('"""') and text.strip():
        pytest.fail("no docstring says what the file is for")


def test_only_commands_print():
    printing = {
        str(path.relative_to(ROOT / "mlpswap"))
        for path in SOURCES
        if path.is_relative_to(ROOT / "mlpswap")
        and re.search(r"^\s*print\(", path.read_text(), flags=re.MULTILINE)
    }
    assert {p for p in printing if not p.startswith("commands/")} <= {
        "cli.py", "train.py", "benchmark/run.py", "benchmark/show.py", "cost/run.py",
    }  # fmt: skip


def test_the_top_level_is_what_it_should_be():
    import subprocess

    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    top = {name.split("/")[0] for name in done.stdout.split()}
    assert {name for name in top if not name.startswith(".")} <= {
        "LICENSE", "Makefile", "README.md", "baselines", "configs", "data", "mlpswap", "pyproject.toml", "tests",
    }  # fmt: skip


def test_the_wheel_has_every_package():
    """`packages` is a list by hand, since three of them lie elsewhere in the tree."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for path in (ROOT / "mlpswap").rglob("__init__.py")
    }
    assert there == {name for name in listed if not name.startswith("mlpswap_")}


def test_the_changelog_and_the_version_go_together():
    text = (ROOT / "mlpswap" / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in text or "## [0.1.0]" in text
