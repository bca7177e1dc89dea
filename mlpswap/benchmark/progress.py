"""What is done of a benchmark, in `metrics.jsonl`: a line for each setting, then one for the editor on its split."""

import json
import logging
from pathlib import Path
from typing import Any

from mlpswap.errors import CheckpointError
from mlpswap.model.saving import json_sha256
from mlpswap.runs import finite_or_null, write_text

logger = logging.getLogger(__name__)


def _read(path: Path) -> list[dict[str, Any]]:
    """The lines that are as they were written; a kill may have cut the last one short."""
    found = [_content(line) for line in (path.read_bytes().splitlines() if path.is_file() else ())]
    lines = [line for line in found if line is not None]
    if lost := len(found) - len(lines):
        logger.warning("%s: %d damaged lines are dropped, and what they told is done again", path, lost)
    return lines


def _content(line: bytes) -> dict[str, Any] | None:
    """What a line tells, None if that is not what was written."""
    try:
        content = json.loads(line)
        if isinstance(content, dict) and content.pop("sha256", None) == json_sha256(content):
            return content
    except (ValueError, RecursionError):
        pass
    return None


class Progress:
    """The finished editors and settings in the order in which they came; a run that is resumed goes on after them.

    Lines that a kill cut short, or of a failure are dropped: those editors and settings run again. Raises `CheckpointError`
    for those of another base.
    """

    def __init__(self, folder: Path, model: str):
        self.path, self.model = folder / "metrics.jsonl", model
        lines = _read(self.path)
        if any(line["model"] != model for line in lines):
            raise CheckpointError(
                f"{self.path} holds results of another model than the one at hand; put that one back, or use another "
                "output_dir"
            )
        self.lines = [line for line in lines if not any(row["error"] for row in line["rows"])]
        self._write()

    def find(self, split: str, editor: str) -> dict[str, Any] | None:
        """The line of an editor on a split, both by their labels."""
        return next((line for line in self._of(split, editor) if line["event"] == "editor"), None)

    def add(self, split: str, editor: str, **content: Any) -> None:
        """Write the line of an editor, whose rows take the place of the lines of its settings."""
        self._drop(split, editor)
        self.lines.append(self._line("editor", split, editor, content))
        self._write()

    def forget(self, split: str, editor: str) -> None:
        """Drop what an editor has done on a split, also from the file."""
        self._drop(split, editor)
        self._write()

    def settings(self, split: str, editor: str) -> list[dict[str, Any]]:
        """The lines of the settings that an unfinished editor has done."""
        return [line for line in self._of(split, editor) if line["event"] == "setting"]

    def spent(self, split: str, editor: str) -> float:
        """Seconds that went into those settings, scoring included."""
        return sum(line.get("took", 0.0) for line in self.settings(split, editor))

    def add_setting(self, split: str, editor: str, **content: Any) -> None:
        """Write the line of a setting."""
        self.lines.append(self._line("setting", split, editor, content))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(self.lines[-1]))

    def _drop(self, split: str, editor: str) -> None:
        mine = self._of(split, editor)
        self.lines = [line for line in self.lines if line not in mine]

    def _of(self, split: str, editor: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if (line["split"], line["editor"]) == (split, editor)]

    def _line(self, event: str, split: str, editor: str, content: dict[str, Any]) -> dict[str, Any]:
        return finite_or_null(
            {"event": event, "model": self.model, "split": split, "editor": editor} | content
        )

    def _write(self) -> None:
        write_text(self.path, "".join(map(line_of, self.lines)))


def line_of(content: dict[str, Any]) -> str:
    """A line of the file, with a hash of what it tells."""
    return json.dumps(content | {"sha256": json_sha256(content)}, ensure_ascii=False) + "\n"
