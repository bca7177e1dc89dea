"""What can be set about a benchmark. Light to import: `--help` needs nothing else."""

from dataclasses import dataclass
from typing import Any

from mlpswap.config import option
from mlpswap.errors import ConfigError

MODES = ("independent", "batch", "sequential")


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
        help="editors by name with their options; a benchmark also takes `grid: released` for every published setting",
    )
    report: bool = option(True, "write report.html at the end")

    def __post_init__(self) -> None:
        if not self.editors:
            raise ConfigError("editors is empty: give at least one, as in editors=[{name: swap}]")
        for number, editor in enumerate(self.editors):
            if "name" not in editor:
                raise ConfigError(f"editors[{number}]: key 'name' is missing")
            extra = set(editor) - {"name", "grid"}
            if "grid" in editor and extra:
                raise ConfigError(
                    f"editors[{number}]: a grid sets all options itself; found {', '.join(sorted(extra))} besides"
                )
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads = {self.threads}: expected at least 1")


@dataclass
class BenchmarkConfig(ContestConfig):
    splits: list[dict[str, Any]] = option(
        factory=list,
        help="facts to alter and to preserve, as [{altered: 26}, ...]; preserved: null is all others",
    )
    predictions: int = option(10, "altered and preserved prompts whose top five answers are kept, per split")

    def __post_init__(self) -> None:
        super().__post_init__()
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
