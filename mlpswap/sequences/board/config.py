"""What can be set about a leader board. Light to import: `--help` needs nothing else."""

from dataclasses import dataclass
from typing import Any

from mlpswap.config import option
from mlpswap.errors import ConfigError
from mlpswap.sequences.ablation.config import AblationConfig

SEARCHES = ("full", "around")
SERIES = ("hand-coded", "hybrid", "trained", "random embedding")


@dataclass
class SequenceEntry:
    """One method, with the options that are swept for the best of them."""

    method: str = option("", "a method, as `mlpswap list methods` has them (required)")
    label: str = option("", "name in tables and pictures; empty: the method")
    options: dict[str, Any] = option(factory=dict, help="its options")
    grid: dict[str, Any] = option(
        factory=dict, help="lists of values of further options; the best cell counts"
    )
    keep: int | None = option(
        None, "cells of the grid that are built in full, chosen in closed form; null: all"
    )
    d: list[int] | None = option(
        None, "the sizes that it is run at; null: all. The others are marked as not run"
    )
    trials: int | None = option(
        None, "trials, where they differ from those of the others; marked in the table"
    )
    search: str = option(
        "full", "full: over all numbers of facts | around: bracket about the published law, then widen it"
    )
    beside: str = option(
        "", "published figures to print beside: " + " | ".join(SERIES) + "; empty: its column"
    )

    def __post_init__(self) -> None:
        if not self.method:
            raise ConfigError("methods: an entry has no key 'method'")
        if not self.name.isprintable() or not self.name.strip():
            raise ConfigError(
                f"methods: the label {self.name!r} is blank, or holds a line break or a control character"
            )
        for key, values in self.grid.items():
            if not isinstance(values, list) or not values:
                raise ConfigError(
                    f"{self.name}: grid.{key} = {values!r}: expected a list of values, as in [1, 2]"
                )
            if key in self.options:
                raise ConfigError(
                    f"{self.name}: '{key}' is in the grid, so it cannot stand among the options"
                )
        for name in ("keep", "trials"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{self.name}: {name} = {value}: expected at least 1")
        if self.search not in SEARCHES:
            raise ConfigError(f"{self.name}: search = {self.search}: expected one of {', '.join(SEARCHES)}")
        if self.beside and self.beside not in SERIES:
            raise ConfigError(f"{self.name}: beside = {self.beside}: expected one of {', '.join(SERIES)}")

    @property
    def name(self) -> str:
        return self.label or self.method


@dataclass
class Size:
    """One size of network and vocabulary."""

    d: int = option(16, "width: neurons of the hidden layer")
    tokens: int | None = option(None, "vocabulary V; null: 2d, as published")
    labels: int | None = option(None, "labels C; null: d, as published")

    def __post_init__(self) -> None:
        for name in ("d", "tokens", "labels"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"sizes: {name} = {value}: expected at least 1")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(d, V, C)."""
        return self.d, self.tokens or 2 * self.d, self.labels or self.d


@dataclass
class SequencesConfig:
    methods: list[SequenceEntry] = option(
        factory=list,
        help="what is compared (required), as [{method: gated, label: .., options: {..}, grid: {..}, d: [..], trials: ..}]; "
        "`mlpswap list methods`",
    )
    ablation: AblationConfig | None = option(
        None, "instead of methods: toy models with switches, which use trials and what follows"
    )
    d: list[int] = option(factory=lambda: [8, 16, 32], help="widths d, with V = 2d tokens and C = d labels")
    large: bool = option(False, "d = 64 and 128 as well: hours")
    sizes: list[Size] = option(
        factory=list, help="further sizes, with V and C of their own, as {d, tokens, labels}"
    )
    thresholds: list[float] = option(factory=lambda: [1.0, 0.9], help="accuracies that count as stored")
    trials: int = option(11, "networks for each number of facts, of which Any, Most or All must succeed")
    seed: int = option(0, "of the trials")
    facts_seed: int = option(42, "of the facts")
    precision: float = option(0.02, "a search ends when its bracket is this share of the facts, or one wide")
    probe_seconds: float = option(
        600.0, "longest time for all trials of one number of facts; beyond, it is given up"
    )
    workers: int | None = option(None, "processes that build at once, on one thread each; null: one per CPU")
    output_dir: str | None = option(None, "run folder; null: runs/<config name>")

    def __post_init__(self) -> None:
        if not self.methods and self.ablation is None:
            raise ConfigError("methods is empty: expected at least one, or an ablation")
        if self.methods and self.ablation is not None:
            raise ConfigError(
                "methods and ablation exclude each other: one run compares the ones or the others"
            )
        if not self.d and not self.sizes:
            raise ConfigError("d and sizes are empty: expected at least one size")
        if not self.thresholds or not all(0 < each <= 1 for each in self.thresholds):
            raise ConfigError(f"thresholds = {self.thresholds}: expected accuracies above 0, up to 1")
        for name in ("d", "thresholds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} names a value twice: {values}")
        if min(self.d, default=2) < 2:
            raise ConfigError(f"d = {self.d}: expected widths of at least 2")
        if not 0 < self.precision < 1 or self.probe_seconds <= 0:
            raise ConfigError("precision must be between 0 and 1, probe_seconds positive")
        if self.trials < 1 or (self.workers is not None and self.workers < 1):
            raise ConfigError("trials and workers must be at least 1")
        shapes = [size.shape for size in self.all_sizes()]
        if again := next((shape for shape in shapes if shapes.count(shape) > 1), None):
            raise ConfigError(
                "d and sizes name a size twice: d = {}, V = {}, C = {}; leave one out".format(*again)
            )
        if self.methods and not any(
            entry.d is None or size.d in entry.d for entry in self.methods for size in self.all_sizes()
        ):
            raise ConfigError(
                f"no method is run at d = {', '.join(str(d) for d, *_ in shapes)}: "
                "expected one of these among the d of an entry"
            )
        for size in self.all_sizes():
            names = [entry.name for entry in self.methods if entry.d is None or size.d in entry.d]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ConfigError(
                    f"methods: two entries at d = {size.d} are called '{twice}'; give one a label"
                )

    def all_sizes(self) -> list[Size]:
        widths = [*self.d, *(d for d in (64, 128) if self.large and d not in self.d)]
        return [*map(Size, widths), *self.sizes]
