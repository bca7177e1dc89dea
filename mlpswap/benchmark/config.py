"""What can be set about a benchmark. Light to import: `--help` needs nothing else."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlpswap.config import check_threads, option
from mlpswap.errors import ConfigError

MODES = ("independent", "batch", "sequential")
# Published shares of 16,384 facts as (altered, preserved): arXiv 2512.00207, A.3.4, and its released code.
PRESETS = {
    "paper": ((327, 1311), (819, 3277), (1638, 6554)),
    "released": ((328, 16056), (819, 15565), (1638, 14746)),
}


STAGES = ("base", "collect")  # whose seconds stand beside the editors'
ENTRY_KEYS = ("name", "label", "grid")  # of an editor's entry; the others are its options
LABEL = re.compile(r"\w[\w.+=-]{0,39}", re.ASCII)  # names files too


@dataclass
class ContestConfig:
    """Which editors edit which host."""

    model: str | None = option(None, "run folder or saved host to edit; null: train `base` first")
    base: str = option("books_edit_tiny", "preset or file of the host that is trained where `model` is null")
    seed: int = option(0, "seeds the base's training, the choice of facts, the templates and the editors")
    output_dir: str | None = option(None, "run folder; null: runs/<config name>")
    threads: int | None = option(None, "CPU threads; null: as torch chooses")
    derange: bool = option(False, "every altered fact gets another value; false: a few keep theirs by chance")
    editors: list[dict[str, Any]] = option(
        factory=lambda: [{"name": "swap"}],
        help="editors by name with their options; a benchmark also takes `grid: released` for every published setting, and "
        "`grid: {lr: [0.05, 0.5]}` for every combination of these; `label: small-h` names an entry in tables and pictures",
    )
    report: bool = option(True, "write report.html at the end")

    def __post_init__(self) -> None:
        if not self.editors:
            raise ConfigError("editors is empty: give at least one, as in editors=[{name: swap}]")
        for number, editor in enumerate(self.editors):
            if "name" not in editor:
                raise ConfigError(f"editors[{number}]: key 'name' is missing")
            check_grid(f"editors[{number}]", editor)
            check_label(f"editors[{number}]", editor)
        # In lower case, as the names of files may be.
        names = [str(editor.get("label", editor["name"])).lower() for editor in self.editors]
        if taken := next((name for name in names if name in STAGES), None):
            raise ConfigError(f"editors: {taken} is the name of a stage; label that editor otherwise")
        labels = [editor["label"].lower() for editor in self.editors if "label" in editor]
        if twice := next((label for label in labels if names.count(label) > 1), None):
            raise ConfigError(f"editors: two of them have the label {twice}, or it is another's name")
        check_threads(self.threads)


def check_label(where: str, editor: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a label that cannot name a file."""
    label = editor.get("label")
    if "label" in editor and not (isinstance(label, str) and LABEL.fullmatch(label)):
        raise ConfigError(
            f"{where}.label = {label!r}: expected up to 40 letters, digits and any of _ . + = -, as in small-h"
        )


def check_grid(where: str, editor: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a grid that leaves open which settings it has."""
    grid = editor.get("grid", "")
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if name in editor:
                raise ConfigError(f"{where}: {name} has one value, and others in the grid")
            if not isinstance(values, list) or not values:
                raise ConfigError(f"{where}.grid.{name} = {values}: expected a list of values")
        return
    if not isinstance(grid, str):
        raise ConfigError(f"{where}.grid = {grid}: expected a name or lists of values by option")
    extra = set(editor) - set(ENTRY_KEYS)
    if grid and extra:
        raise ConfigError(
            f"{where}: a grid sets all options itself; found {', '.join(sorted(extra))} besides"
        )


@dataclass
class BenchmarkConfig(ContestConfig):
    preset: str | None = option(
        None,
        f"splits of a published benchmark on 16,384 facts: {' | '.join(PRESETS)}; null: those in `splits`",
    )
    splits: list[dict[str, Any]] = option(
        factory=list,
        help="facts to alter and to preserve, as [{altered: 26}, ...]; preserved: null is all others",
    )
    screen: bool = option(
        False,
        "rank each grid on a sample of the prompts first, and score only its best settings on all of them",
    )
    predictions: int = option(10, "altered and preserved prompts whose top five answers are kept, per split")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset is not None:
            self.use_preset(self.preset)
        if not self.splits:
            raise ConfigError("splits is empty: give at least one, as in splits=[{altered: 26}]")
        for number, split in enumerate(self.splits):
            unknown = set(split) - {"altered", "preserved"}
            if unknown or "altered" not in split:
                raise ConfigError(f"splits[{number}]: expected the keys altered and preserved, found {split}")
            for name, value in split.items():
                least = 1 if name == "altered" else 0
                if not (type(value) is int and value >= least) and not (
                    name == "preserved" and value is None
                ):
                    raise ConfigError(
                        f"splits[{number}].{name} = {value}: expected an integer of at least {least}"
                    )
        if self.predictions < 0:
            raise ConfigError(f"predictions = {self.predictions}: expected at least 0")

    def use_preset(self, name: str) -> None:
        """Set `splits`; grids of the other preset of an editor become those of this one."""
        if name not in PRESETS:
            raise ConfigError(f"preset = {name}: expected one of {', '.join(PRESETS)}")
        splits = [{"altered": altered, "preserved": preserved} for altered, preserved in PRESETS[name]]
        if self.splits and self.splits != splits:
            raise ConfigError(
                f"preset = {name} has splits of its own, of 16,384 facts: found splits = {self.splits} besides; "
                "pass splits=[] to drop them"
            )
        self.splits = splits
        self.editors = [
            editor | {"grid": name} if editor.get("grid") in PRESETS else editor for editor in self.editors
        ]


@dataclass
class SequentialConfig(ContestConfig):
    """Batches of edits, one after the other."""

    batches: int = option(20, "batches of edits, T")
    size: int = option(100, "edits in a batch, B; 1 is lifelong editing, one fact at a time")
    mode: str = option(
        "sequential",
        "'sequential': each batch edits what the batches before it left; 'independent': each edits the unedited model; "
        "'batch': all T * B edits at once",
    )
    preserved: int | None = option(
        None,
        "facts that are never edited; null: all but T * B. The others are edited in turn, again and again if they are fewer",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for number, editor in enumerate(self.editors):
            if "grid" in editor:
                raise ConfigError(
                    f"editors[{number}]: a grid is for the benchmark; give the editor's options themselves"
                )
        for name, least in (("batches", 1), ("size", 1), ("preserved", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} = {value}: expected at least {least}")
        if self.mode not in MODES:
            raise ConfigError(f"mode = {self.mode}: expected one of {', '.join(MODES)}")
