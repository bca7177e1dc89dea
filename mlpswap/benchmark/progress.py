"""What is done of a benchmark: a line of `metrics.jsonl` for each editor on each split, so that no row is lost."""

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
    """The finished editors in the order in which they came; a run that is resumed goes on after them.

    Lines that a kill cut short, of another base, or of an editor that failed are dropped: those editors run again.
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
        return next((line for line in self.lines if (line["split"], line["editor"]) == (split, editor)), None)

    def add(self, split: str, editor: str, **content: Any) -> None:
        """Write one more line."""
        line = {"event": "editor", "model": self.model, "split": split, "editor": editor} | content
        self.lines.append(finite_or_null(line))
        self._write()

    def _write(self) -> None:
        write_text(self.path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self.lines))
