"""What is done of a benchmark, in `metrics.jsonl`: a line for each setting, then one for the editor on its split."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlpswap.runs import finite_or_null, write_text


def _read(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").split("\n") if path.is_file() else ():
        try:
            yield json.loads(line)
        except ValueError:  # cut short
            continue


class Progress:
    """The finished editors and settings in the order in which they came; a run that is resumed goes on after them.

    Lines that a kill cut short, of another base, or of a failure are dropped: those editors and settings run again.
    """

    def __init__(self, folder: Path, model: str):
        self.path, self.model = folder / "metrics.jsonl", model
        self.lines = [
            line
            for line in _read(self.path)
            if line["model"] == model and not any(row["error"] for row in line["rows"])
        ]
        self._write()

    def find(self, split: str, editor: str) -> dict[str, Any] | None:
        """The line of an editor on a split, both by their labels."""
        return next((line for line in self._of(split, editor) if line["event"] == "editor"), None)

    def add(self, split: str, editor: str, **content: Any) -> None:
        """Write the line of an editor, whose rows take the place of the lines of its settings."""
        mine = self._of(split, editor)
        self.lines = [line for line in self.lines if line not in mine]
        self.lines.append(self._line("editor", split, editor, content))
        self._write()

    def settings(self, split: str, editor: str) -> list[dict[str, Any]]:
        """The lines of the settings that an unfinished editor has done."""
        return [line for line in self._of(split, editor) if line["event"] == "setting"]

    def add_setting(self, split: str, editor: str, **content: Any) -> None:
        """Write the line of a setting."""
        self.lines.append(self._line("setting", split, editor, content))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_text(self.lines[-1]))

    def _of(self, split: str, editor: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if (line["split"], line["editor"]) == (split, editor)]

    def _line(self, event: str, split: str, editor: str, content: dict[str, Any]) -> dict[str, Any]:
        return finite_or_null(
            {"event": event, "model": self.model, "split": split, "editor": editor} | content
        )

    def _write(self) -> None:
        write_text(self.path, "".join(map(_text, self.lines)))


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"
