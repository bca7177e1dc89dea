"""What can be set about the ablation of toy models. Light to import: `--help` needs nothing else."""

from dataclasses import dataclass

from mlpswap.config import option
from mlpswap.errors import ConfigError


@dataclass
class AblationConfig:
    table: int | None = option(
        16, "width d of the table of all architectures, with V = 2d and C = d; null: no table"
    )
    scaling: list[int] = option(
        factory=lambda: [16, 32, 64, 128], help="widths d at which FULL and SIMPLE are compared"
    )
    repeats: int = option(4, "searches for each architecture, with trials of their own")
    epochs: int = option(
        50_000, "most epochs in a stage; twice as many in the scaling at d = 32, four times at 64, ..."
    )
    patience: int = option(5_000, "epochs without a new best accuracy that end a stage")
    precision: int | None = option(None, "facts at which a search ends; null: d^2 / 32, as published")

    def __post_init__(self) -> None:
        if self.table is None and not self.scaling:
            raise ConfigError("ablation: neither a table nor a scaling is asked for")
        for key, value in (("table", self.table), *(("scaling", d) for d in self.scaling)):
            if value is not None and value < 2:
                raise ConfigError(f"ablation.{key} = {value}: expected widths of at least 2")
        if len(set(self.scaling)) < len(self.scaling):
            raise ConfigError(f"ablation.scaling names a width twice: {self.scaling}")
        for key in ("repeats", "epochs", "patience", "precision"):
            if (value := getattr(self, key)) is not None and value < 1:
                raise ConfigError(f"ablation.{key} = {value}: expected at least 1")
