"""Checkpoints without pickle: weights and moments as safetensors, the rest as JSON, written aside and renamed.

There are no generator states to keep: all chance in training is a function of (seed, step).
"""

import logging
import re
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from mlpswap.errors import CheckpointError, RunFolderError
from mlpswap.runs import read_json, replacing, write_json, write_tensors

logger = logging.getLogger(__name__)

_PREFIX = "step_"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class Progress:
    """How far a run has come. `step` updates are done; `wandb_id` continues the same W&B run."""

    step: int
    processes: int
    wandb_id: str | None


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, *, keep: int
) -> Path:
    """Write `folder/step_N` completely or not at all, then delete all but the newest `keep`.

    Raises `RunFolderError` with the path if the disk is full or read-only; earlier checkpoints stay intact.
    """
    target = folder / f"{_PREFIX}{progress.step:08d}"
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    moments = {
        f"{name}.{moment}": optimizer.state[p][moment].cpu()
        for name, p in trained.items()
        for moment in _MOMENTS
        if p in optimizer.state
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            temporary.mkdir()
            write_tensors(temporary / "weights.safetensors", {name: p.cpu() for name, p in trained.items()})
            write_tensors(temporary / "moments.safetensors", moments)
            write_json(temporary / "progress.json", asdict(progress))
    except OSError as error:
        raise RunFolderError(f"checkpoint {target} cannot be written: {error}") from error
    for old in _checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def _checkpoints(folder: Path) -> list[Path]:
    """The folders of checkpoints, the newest last; whatever else lies there is left alone."""
    found = {path: re.fullmatch(rf"{_PREFIX}(\d{{8,}})", path.name) for path in folder.glob(f"{_PREFIX}*")}
    return sorted(
        (path for path, match in found.items() if match and path.is_dir()), key=lambda path: _step(path)
    )


def _step(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def latest(folder: Path) -> tuple[Path, Progress] | None:
    """The newest checkpoint in `folder`, None if there is none. Raises `CheckpointError` if it is damaged."""
    found = _checkpoints(folder)
    if not found:
        return None
    path = found[-1] / "progress.json"
    try:
        content = read_json(path, step=int, processes=int, wandb_id=str | None)
        if content["step"] != _step(found[-1]) or set(content) != {field.name for field in fields(Progress)}:
            raise CheckpointError(f"{path} does not belong to {found[-1].name}: found {content}")
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_older(found)}") from error
    return found[-1], Progress(**content)


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put weights and moments back, in place. Raises `CheckpointError` naming the file and the tensor."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights = _read(path / "weights.safetensors", {name: p.shape for name, p in trained.items()})
    shapes = {
        f"{name}.{moment}": torch.Size() if moment == "step" else p.shape
        for name, p in trained.items()
        for moment in _MOMENTS
    }
    moments = _read(path / "moments.safetensors", shapes)
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(weights[name])
            optimizer.state[p] = {
                moment: moments[f"{name}.{moment}"].to("cpu" if moment == "step" else p.device)
                for moment in _MOMENTS
            }


def _read(path: Path, shapes: dict[str, torch.Size]) -> dict[str, torch.Tensor]:
    hint = _older(_checkpoints(path.parent.parent))
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}{hint}") from error
    for name, shape in shapes.items():
        if name not in tensors or tensors[name].shape != shape:
            found = tuple(tensors[name].shape) if name in tensors else "nothing"
            raise CheckpointError(f"{path}: tensor '{name}' should be {tuple(shape)}, found {found}{hint}")
    extra = sorted(set(tensors) - set(shapes))
    if extra:
        raise CheckpointError(f"{path}: unexpected tensor '{extra[0]}'{hint}")
    return tensors


def _older(found: list[Path]) -> str:
    return f"; delete the folder to go on from {found[-2].name}" if len(found) > 1 else ""
