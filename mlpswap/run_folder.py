"""The folder of a run: opened by one process at a time, and never lost, whatever ends the run."""

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from mlpswap.errors import MlpSwapError, RunFolderError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
_EARLY = {"checkpoints", "base"}  # what a run that can be resumed may have written before its config.yaml
_UNFINISHED = _EARLY | {"model", "patch.safetensors", "patch.json"}  # and any other
# What a kill in the middle of a write leaves: nothing else has such names.
_LEFT_OVER = re.compile(r"\.(probe-\d+|.+\.\d+\.tmp)")
# The folders that this process holds, by device and inode: the open descriptors that have the locks.
_held: dict[tuple[int, int], int] = {}


def default_folder(config_name: str | None, verb: str) -> Path:
    """Where a run goes whose `output_dir` is null."""
    return Path("runs") / (Path(config_name).stem if config_name else verb)


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


def _hold(place: Path, folder: Path) -> None:
    """Keep other processes out of a place of the run folder. Raises `RunFolderError` if one is at work there."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    descriptor = os.open(place, os.O_RDONLY)
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
    except OSError as error:  # a file system without locks, or with none for folders, as NFS
        os.close(descriptor)
        logger.info("%s cannot be locked (%s): run one process at a time in it", folder, error.strerror)
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
    if resume and overwrite:
        raise RunFolderError("--resume and --overwrite exclude each other")
    with _usable(folder):
        whole = folder.resolve()  # behind a link lies the folder itself
        aside = whole.parent / f".{whole.name}.replaced"
        if whole.exists() and not whole.is_dir():
            raise RunFolderError(f"output_dir {folder} is a file; expected a folder")
        for place in (whole, aside):
            if place.is_dir():
                _hold(place, folder)
        if aside.is_dir() and not (whole / "config.yaml").is_file():
            _bring_back(folder, whole, aside)
        moved = overwrite and whole.is_dir()
        if moved:
            _require_replaceable(folder, inputs)
            if (whole / "results.json").exists():
                _drop(aside)
            if aside.is_dir():  # the earlier run; what a killed one has left in its place is no loss
                shutil.rmtree(whole)
            else:
                os.rename(whole, aside)
        whole.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mkdir(whole)
            fresh = True
        except FileExistsError:
            fresh = False
        _hold(whole, folder)
    try:
        with _usable(folder):
            _open(folder, resume)
        yield folder
    except BaseException as error:
        begun = (whole / "config.yaml").exists()
        if begun and isinstance(error, KeyboardInterrupt):
            raise  # there is a run to go on with
        if moved or (fresh and not begun):
            shutil.rmtree(whole, ignore_errors=True)
        if moved:
            os.rename(aside, whole)
        raise
    _drop(aside)


def _bring_back(folder: Path, whole: Path, aside: Path) -> None:
    """The run that a killed --overwrite had set aside before the new one had begun."""
    if whole.is_dir():
        if foreign := _foreign(whole, _UNFINISHED):
            raise RunFolderError(
                f"output_dir {folder} holds other files, such as {foreign}, and {aside} the run that an interrupted "
                "--overwrite has set aside: move one of them away"
            )
        shutil.rmtree(whole)
    os.rename(aside, whole)


def _foreign(folder: Path, own: set[str]) -> str | None:
    """The first name in a folder that is neither one of a run's `own` nor what a kill leaves."""
    names = sorted(path.name for path in folder.iterdir())
    return next((name for name in names if name not in own and not _LEFT_OVER.fullmatch(name)), None)


def _drop(aside: Path) -> None:
    """Delete what was set aside, first taking the name away under which it would come back."""
    if not aside.is_dir():
        return
    waste = aside.with_name(f"{aside.name}.{os.getpid()}.tmp")
    os.rename(aside, waste)
    shutil.rmtree(waste, ignore_errors=True)
    if waste.exists():
        logger.warning("%s cannot be deleted: it holds what --overwrite has replaced", waste)


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
    if not begun and (foreign := _foreign(folder, _EARLY)):
        raise RunFolderError(
            f"output_dir {folder} holds other files, such as {foreign}; choose an empty folder"
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
    probe = folder / f".probe-{os.getpid()}"
    probe.write_text("")
    probe.unlink()
