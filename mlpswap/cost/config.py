"""What can be set about a cost search. Light to import: `--help` needs nothing else."""

from dataclasses import dataclass
from typing import Any

from mlpswap.config import option
from mlpswap.errors import ConfigError

LARGEST_KAPPA = 1e5
TABLES = ("spherical", "gaussian", "kaiming_uniform")


@dataclass
class Entry:
    """One construction, and the option that is varied to find its smallest size."""

    construction: str = option("", "a registered construction (required)")
    label: str = option("", "name in tables and pictures; empty: the construction")
    options: dict[str, Any] = option(factory=dict, help="its other options")
    varies: str | None = option("h", "the option that is the size; null: nothing is varied")
    size: int | None = option(None, "where a search starts; without a search, the size that is verified")
    published: int | None = option(None, "size of another source, verified besides on `published_seeds`")
    published_seeds: list[int] = option(factory=lambda: [0], help="seeds for which that source gives it")

    def __post_init__(self) -> None:
        if not self.construction:
            raise ConfigError("constructions: an entry has no key 'construction'")
        if self.varies is not None and self.varies in self.options:
            raise ConfigError(f"{self.name}: '{self.varies}' is varied, so it cannot stand among the options")
        if not self.name.isprintable():
            raise ConfigError(
                f"constructions: the label {self.name!r} holds a line break or a control character"
            )
        if not self.published_seeds:
            raise ConfigError(f"{self.name}: published_seeds is empty: expected at least one")
        for name in ("size", "published"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{self.name}: {name} = {value}: expected at least 1")

    @property
    def name(self) -> str:
        return self.label or self.construction


@dataclass
class CostConfig:
    constructions: list[Entry] = option(factory=list, help="what is compared (required)")
    facts: list[int] = option(factory=lambda: [1024], help="numbers F of facts")
    d: list[int] = option(factory=lambda: [64], help="widths d of the embeddings")
    embeddings: str = option("spherical", " | ".join(TABLES))
    kappa: list[float] = option(
        factory=lambda: [0.0], help="condition numbers that the values are brought to; 0: as they are drawn"
    )
    alpha: list[float] = option(
        factory=lambda: [0.0], help="strengths, 0 to 1, of whitening the values before the build"
    )
    seeds: list[int] = option(
        factory=lambda: [0, 1, 2], help="each draws embeddings, facts and weights anew; all must succeed"
    )
    error: float = option(0.0, "share of facts that may be wrong")
    search: bool = option(True, "search for the smallest size; false: verify `size` and the next smaller one")
    precision: float = option(0.02, "a search ends when its bracket is this share of the size, or one wide")
    largest: int = option(65536, "a search gives up beyond this size")
    probe_seconds: float = option(600.0, "longest time for one build; beyond, it is given up as capped")
    workers: int | None = option(None, "processes that build at once, on one thread each; null: one per CPU")
    output_dir: str | None = option(None, "run folder; null: runs/<config name>")

    def __post_init__(self) -> None:
        for name in ("constructions", "facts", "d", "kappa", "alpha", "seeds"):
            values = getattr(self, name)
            if not values:
                raise ConfigError(f"{name} is empty: expected at least one")
            if name != "constructions" and len(set(values)) < len(values):
                raise ConfigError(f"{name} names a value twice: {values}")
        names = [entry.name for entry in self.constructions]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"constructions: two entries are called '{twice}'; give one a label")
        for name, least in (("facts", 2), ("d", 1)):
            if min(getattr(self, name)) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected numbers of at least {least}")
        if self.embeddings not in TABLES:
            raise ConfigError(f"embeddings = {self.embeddings}: expected one of {', '.join(TABLES)}")
        if not all(kappa == 0 or 1 <= kappa <= LARGEST_KAPPA for kappa in self.kappa):
            raise ConfigError(
                f"kappa = {self.kappa}: a condition number is at least 1 (0: as drawn), and at most "
                f"{LARGEST_KAPPA:.0e} in the float32 of the finished MLP"
            )
        if not all(0 <= alpha <= 1 for alpha in self.alpha):
            raise ConfigError(f"alpha = {self.alpha}: expected strengths from 0 to 1")
        if not 0 <= self.error < 1 or not 0 < self.precision < 1:
            raise ConfigError("error must be from 0 to below 1, precision between 0 and 1")
        if self.largest < 1 or self.probe_seconds <= 0 or (self.workers is not None and self.workers < 1):
            raise ConfigError("largest and workers must be at least 1, probe_seconds positive")
        if not self.search and (
            unsized := [e.name for e in self.constructions if e.varies and e.size is None]
        ):
            raise ConfigError(f"search=false verifies sizes: '{unsized[0]}' has none")
