"""What can be set about a benchmark. Light to import: `--help` needs nothing else."""

from dataclasses import dataclass
from typing import Any

from mlpswap.config import option
from mlpswap.errors import ConfigError


@dataclass
class BenchmarkConfig:
    model: str | None = option(None, "run folder or saved host to edit; null: train `base` first")
    base: str = option("books_edit_tiny", "preset or file of the host that is trained where `model` is null")
    seed: int = option(0, "seeds the base's training, the choice of facts, the templates and the editors")
    output_dir: str | None = option(None, "run folder; null: runs/<config name>")
    threads: int | None = option(None, "CPU threads; null: as torch chooses")
    splits: list[dict[str, Any]] = option(
        factory=list,
        help="facts to alter and to preserve, as [{altered: 26}, ...]; preserved: null is all others",
    )
    derange: bool = option(False, "every altered fact gets another value; false: a few keep theirs by chance")
    editors: list[dict[str, Any]] = option(
        factory=lambda: [{"name": "swap"}],
        help="editors by name with their options, or with `grid: released` for every published setting",
    )
    predictions: int = option(10, "altered and preserved prompts whose top five answers are kept, per split")
    report: bool = option(True, "write report.html at the end")

    def __post_init__(self) -> None:
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
        if self.predictions < 0:
            raise ConfigError(f"predictions = {self.predictions}: expected at least 0")
