"""What a run leaves behind: the run folder, atomic files, and the environment that the results were made in."""

import csv
import io
import json
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mlpswap.errors import CheckpointError, MlpSwapError, RunFolderError

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
SCHEMA = 1
_EARLY = {"checkpoints", "base"}  # what a run may have written before its config.yaml
_LEFT_OVER = re.compile(
    r"\.(probe-\d+|.+\.\d+\.tmp)"
)  # of a kill in the middle of a write: nothing else has such names
_VERSIONS = ("mlpswap", "torch", "transformers", "accelerate", "datasets", "safetensors", "numpy")


def default_folder(config_name: str | None, verb: str) -> Path:
    """Where a run goes whose `output_dir` is null."""
    return Path("runs") / (Path(config_name).stem if config_name else verb)


_held: dict[
    tuple[int, int], int
] = {}  # folders, by device and inode: an open descriptor, which holds the lock


def alone(run: Callable[P, T]) -> Callable[P, T]:
    """Decorator of a run: the folders that it opens are closed to other processes until it returns, or its process ends."""

    @wraps(run)
    def holding(*args: P.args, **kwargs: P.kwargs) -> T:
        before = set(_held)
        try:
            return run(*args, **kwargs)
        finally:
            for folder in set(_held) - before:
                os.close(_held.pop(folder))

    return holding


def _hold(folder: Path) -> None:
    """Raise `RunFolderError` if another process is at work in the folder, and keep others out from now on."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    descriptor = os.open(folder, os.O_RDONLY)
    about = os.fstat(descriptor)
    if (about.st_dev, about.st_ino) in _held:
        os.close(descriptor)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunFolderError(
            f"output_dir {folder} is in use by another process; wait for its end, or choose another folder"
        ) from error
    except OSError:  # a file system without locks
        os.close(descriptor)
        return
    _held[about.st_dev, about.st_ino] = descriptor


@contextmanager
def run_folder(
    path: str | Path,
    *,
    resume: bool | None = None,
    overwrite: bool = False,
    inputs: tuple[str | Path | None, ...] = (),
) -> Iterator[Path]:
    """Create the folder of a run, or take it up again, and yield it while the run gets ready.

    With `overwrite` an earlier run is moved aside, to `.NAME.replaced`; it comes back if the block fails, and is deleted when
    the block is left. After a kill it stays there until another block is left, and comes back where the killed run has no
    `config.yaml` yet. A new folder goes, too, if the block fails before it has written one. `inputs` are files or folders
    that the new run reads, which must lie elsewhere. `resume` is None for a run that cannot be resumed.

    Raises `RunFolderError` in the first second, rather than at the end, if the folder cannot be written, if it holds a finished
    run and neither `resume` nor `overwrite` is set, or if it holds an unfinished run that would be mixed up with a new one.
    """
    folder = Path(path)
    whole = Path(os.path.abspath(folder))
    aside = whole.parent / f".{whole.name}.replaced"
    if resume and overwrite:
        raise RunFolderError("--resume and --overwrite exclude each other")
    with _usable(folder):
        if folder.exists() and not folder.is_dir():
            raise RunFolderError(f"output_dir {folder} is a file; expected a folder")
        for place in (folder, aside):
            if place.is_dir():
                _hold(place)
        if aside.is_dir() and not (folder / "config.yaml").is_file():  # killed before the new run had begun
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(aside, folder)
        moved = overwrite and folder.exists()
        fresh = not folder.exists()
        if moved:
            _require_replaceable(folder, inputs)
            if aside.is_dir():  # the earlier run; what a killed one has left in its place is no loss
                shutil.rmtree(folder)
            else:
                os.rename(folder, aside)
    try:
        with _usable(folder):
            _open(folder, resume)
        yield folder
    except BaseException:
        if moved or (fresh and not (folder / "config.yaml").exists()):  # else there is a run to go on with
            shutil.rmtree(folder, ignore_errors=True)
        if moved:
            os.rename(aside, folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Say of which folder it is that the system complains: too long a name, a read-only disk, no permission."""
    try:
        yield
    except MlpSwapError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"output_dir {folder} cannot be written: {reason}") from error


def _require_replaceable(folder: Path, inputs: tuple[str | Path | None, ...]) -> None:
    if any(folder.iterdir()) and not (folder / "config.yaml").is_file():
        raise RunFolderError(
            f"output_dir {folder} holds no run (no config.yaml): --overwrite would delete other files"
        )
    for given in inputs:
        if given is not None and Path(given).resolve().is_relative_to(folder.resolve()):
            raise RunFolderError(
                f"{given} lies in output_dir {folder}, which --overwrite replaces; choose another folder"
            )


def _open(folder: Path, resume: bool | None) -> None:
    begun = (folder / "config.yaml").exists()
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    foreign = [name for name in names if name not in _EARLY and not _LEFT_OVER.fullmatch(name)]
    if foreign and not begun:
        raise RunFolderError(
            f"output_dir {folder} holds other files, such as {foreign[0]}; choose an empty folder"
        )
    if not resume:
        if (folder / "results.json").exists():
            raise RunFolderError(
                f"output_dir {folder} holds a finished run; choose another, or pass --overwrite"
            )
        if begun:
            way = "--overwrite" if resume is None else "--resume to go on or --overwrite"
            raise RunFolderError(f"output_dir {folder} holds an unfinished run; pass {way} to start again")
    for path in list(folder.rglob(".*")):
        if _LEFT_OVER.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    _hold(folder)
    probe = folder / f".probe-{os.getpid()}"
    probe.write_text("")
    probe.unlink()


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
