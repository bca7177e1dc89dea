"""What a run leaves behind: atomic files, its settings and results, and the environment that they were made in."""

import csv
import io
import json
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlpswap.errors import CheckpointError, RunFolderError

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 1
_VERSIONS = ("mlpswap", "torch", "transformers", "accelerate", "datasets", "safetensors", "numpy")


def finished(folder: Path, kind: str) -> bool:
    """Whether `folder` holds the results of a run of this kind. Raises `CheckpointError` if they are damaged."""
    path = folder / "results.json"
    if not path.exists():
        return False
    hint = "; delete it to go on from the last checkpoint, or pass --overwrite"
    try:
        found = read_json(path, kind=str)["kind"]
    except CheckpointError as error:
        raise CheckpointError(f"{error}{hint}") from error
    if found != kind:
        raise CheckpointError(f"{path} should be of kind '{kind}', found '{found}'{hint}")
    return True


def require_same_config(folder: Path, config: dict[str, Any], *, free: tuple[str, ...] = ()) -> None:
    """Refuse to resume a run under other settings; keys that start with one of `free` may differ.

    A folder without `config.yaml` holds nothing to go on from, and passes. Raises `CheckpointError` naming the keys.
    """
    import yaml

    path = folder / "config.yaml"
    if not path.exists():
        return
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        old = dict(_flat(tree))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} should hold the settings of a run, found {type(tree).__name__}")
    new = dict(_flat(config))
    changed = [
        f"{key} (was {old.get(key)}, now {new.get(key)})"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not key.startswith(free)
    ]
    if changed:
        raise CheckpointError(
            f"{path}: the run cannot be resumed under other settings: {', '.join(changed)}; use another output_dir"
        )


def _flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _flat(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1], tree


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling to write to; it takes the place of `path` at the end, and goes if anything fails."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if temporary.is_dir():
            if path.exists():
                shutil.rmtree(path)
            os.rename(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically. Raises `RunFolderError` when the disk is full or read-only."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}") from error


def write_tensors(
    path: str | Path, tensors: "dict[str, Tensor]", about: dict[str, str] | None = None
) -> None:
    """Write a safetensors file atomically, with `about` as its metadata, for the same readers as any other file.

    Raises `RunFolderError` when it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with replacing(path) as temporary:
            temporary.touch()
            mode = temporary.stat().st_mode
            save_file(
                {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, temporary, about
            )
            temporary.chmod(mode)  # safetensors lets the owner alone read it
    except (OSError, SafetensorError) as error:
        raise RunFolderError(
            f"{path} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from error


def write_json(path: str | Path, content: Any) -> None:
    """Write strict JSON atomically; NaN and infinity become null, since JSON has no word for them."""
    write_text(
        path, json.dumps(finite_or_null(content), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    )


def read_json(path: str | Path, **fields: Any) -> Any:
    """The content of a JSON file; with `fields`, an object that has each of these fields, of the type given.

    Raises `CheckpointError` with the path, and the field if one is wrong.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        # Another run's results may have to hold it.
        json.dumps(finite_or_null(content), ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if fields and not isinstance(content, dict):
        raise CheckpointError(f"{path} should be an object with {', '.join(fields)}, found {content!r:.40}")
    for name, kind in fields.items():
        if name not in content or not isinstance(content[name], kind):
            found = f"found {content[name]!r:.40}" if name in content else "which is missing"
            expected = getattr(kind, "__name__", kind)
            raise CheckpointError(f"{path} is damaged: expected {expected} for '{name}', {found}")
    return content


def read_lines(path: str | Path) -> list[Any]:
    """The content of a JSON Lines file. Raises `CheckpointError` with the path."""
    try:
        return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def write_csv(path: str | Path, rows: list[dict[str, Any]]) -> None:
    """Write rows with a heading, atomically; columns in order of first appearance."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def finite_or_null(content: Any) -> Any:
    """The same nested containers with every NaN and infinity replaced by None."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {str(key): finite_or_null(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite_or_null(value) for value in content]
    return content


def results(kind: str, config: dict, metrics: dict, rows: list[dict], seconds: float, **more: Any) -> dict:
    """The content of `results.json`, in the shape that every kind of run shares."""
    return {
        "schema": SCHEMA,
        "kind": kind,
        "config": config,
        "environment": environment() | {"seconds": seconds},
        "metrics": metrics,
        "rows": rows,
        **more,
    }


def environment() -> dict[str, Any]:
    """Versions, commit, threads, machine and time: what another person needs to judge a number."""
    import torch

    return {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _VERSIONS},
        "commit": _commit(),
        "threads": torch.get_num_threads(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree, None for an installed copy."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or None
