"""How far an editor has come with its batches, so that a run that was stopped goes on at the next one."""

import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from mlpswap.benchmark.contest import Row
from mlpswap.benchmark.progress import Progress
from mlpswap.editing import EditorState
from mlpswap.errors import CheckpointError
from mlpswap.model import Patch
from mlpswap.runs import write_tensors

logger = logging.getLogger(__name__)


@dataclass
class Halfway:
    """The rows so far in `progress`, and in `folder` what the next batch builds on, until the editor is through."""

    progress: Progress
    mode: str
    label: str
    folder: Path

    def __post_init__(self) -> None:
        lines = self.progress.settings(self.mode, self.label)
        if lines and lines[-1].get("state") and not self._state(len(lines)).is_file():
            logger.warning(
                "%s: the state after batch %d is lost; the editor begins anew", self.folder, len(lines)
            )
            self.progress.forget(self.mode, self.label)

    def rows(self) -> list[Row]:
        return [line["rows"][0] for line in self.progress.settings(self.mode, self.label)]

    def patches(self) -> Iterator[Patch]:
        """The patches of all batches so far, in order. Raises `CheckpointError` for damaged files."""
        for number in range(1, len(self.rows()) + 1):
            yield Patch.load(self._patch(number))

    def state(self) -> EditorState | None:
        """The state after the latest batch. Raises `CheckpointError` for a damaged file."""
        path = self._state(len(self.rows()))
        if not path.exists():
            return None
        try:
            return EditorState({int(site): cache for site, cache in load_file(path).items()})
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path} is no saved state of an editor: {error}") from error

    def add(self, row: Row, patch: Patch | None, state: EditorState | None, took: float) -> None:
        """Keep a batch that took so many seconds; without a patch, the next one builds on nothing. The row comes last, when
        all else is there.

        Nothing is kept of an editor whose state is of a kind of its own.
        """
        number = row["batch"]
        if number != len(self.rows()) + 1 or type(state) not in (EditorState, type(None)):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if patch is not None:
            patch.save(self._patch(number))
        if state is not None:
            write_tensors(self._state(number), {str(site): cache for site, cache in state.caches.items()})
        self.progress.add_setting(self.mode, self.label, rows=[row], state=state is not None, took=took)
        self._state(number - 2).unlink(missing_ok=True)  # a kill may cost the latest line

    def clear(self) -> None:
        """The editor is through: its own line stands in `progress`."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _patch(self, number: int) -> Path:
        return self.folder / f"batch_{number:04}.safetensors"

    def _state(self, number: int) -> Path:
        return self.folder / f"state_{number:04}.safetensors"
