"""Keys of the small verbs."""

from dataclasses import dataclass
from typing import Any

from mlpswap.config import check_threads, option
from mlpswap.errors import ConfigError
from mlpswap.training.config import FactsOptions


@dataclass
class FactsConfig:
    facts: FactsOptions = option(factory=FactsOptions)
    show: int = option(5, "how many facts and prompts to print")


@dataclass
class BuildConfig:
    facts: FactsOptions = option(factory=FactsOptions)
    n_embd: int = option(128, "width d of the random spherical embeddings")
    mlp: dict[str, Any] = option(
        factory=lambda: {"construction": "hebbian"}, help="construction and its options"
    )
    seed: int = option(0, "seed of embeddings and construction")

    def __post_init__(self) -> None:
        if "construction" not in self.mlp:
            raise ConfigError("mlp: key 'construction' is missing, as in mlp.construction=hebbian")
        if self.n_embd < 1:
            raise ConfigError(f"n_embd = {self.n_embd}: expected at least 1")


@dataclass
class StoresConfig:
    n_embd: int = option(64, "width d of the random keys")
    stores: list[dict[str, Any]] = option(
        factory=lambda: [
            {"name": "outer_product"},
            {"name": "least_squares"},
            {"name": "mlp", "activation": "relu", "power": 2},
            {"name": "attention"},
        ],
        help="stores to fill, by name (outer_product, least_squares, mlp, attention) with their options: "
        "activation, power and shift of mlp, beta of attention",
    )
    memories: list[int] | None = option(
        None, "counts at which to measure, for all stores alike; null: around each store's capacity"
    )
    points: int = option(9, "how many counts to choose for each store where memories is null")
    max_memories: int = option(2_000_000, "largest count chosen where memories is null")
    queries: int = option(64, "memories that are asked for; the ratio is the root mean square over them")
    seed: int = option(0, "seed of the keys")
    threads: int | None = option(None, "CPU threads; null: as torch chooses")
    output_dir: str | None = option(None, "run folder; null: runs/<config name>")

    def __post_init__(self) -> None:
        for key, least in (("n_embd", 2), ("points", 2), ("max_memories", 16), ("queries", 1)):
            if getattr(self, key) < least:
                raise ConfigError(f"{key} = {getattr(self, key)}: expected at least {least}")
        check_threads(self.threads)
        if not self.stores:
            raise ConfigError("stores is empty: give at least one, as in stores=[{name: attention}]")
        if self.memories is not None and (not self.memories or min(self.memories) < 2):
            raise ConfigError(f"memories = {self.memories}: expected counts of at least 2, or null")


@dataclass
class ChangesConfig:
    """Which facts of which host are to change."""

    model: str | None = option(None, "folder of a trained host (required)")
    changes: dict[str, str] = option(
        factory=dict, help='altered facts, as in changes={"Emma": "Mary Shelley"}'
    )
    file: str | None = option(None, "CSV file of altered facts, instead of or besides changes")
    key: str = option("book", "column of the keys in that file")
    value: str = option("author", "column of the values in that file")
    seed: int = option(0, "seed of the construction or the editor")
    output_dir: str | None = option(
        None, "folder for the changed model and its patch; null: runs/<config name>"
    )

    def __post_init__(self) -> None:
        _required(self, "model")
        if not self.changes and self.file is None:
            raise ConfigError("nothing to change: give changes={KEY: VALUE} or file=FILE.csv")


@dataclass
class SwapConfig(ChangesConfig):
    construction: str | None = option(
        None, "how to build the new fact MLP; null: hebbian for a bilinear one in place, else gd"
    )
    options: dict[str, Any] = option(factory=dict, help="options of the construction")
    allow_partial: bool = option(False, "go on with a fact MLP that does not store everything")


@dataclass
class EditConfig(ChangesConfig):
    editor: dict[str, Any] = option(
        factory=dict, help="the editor and its options, as in editor.name=rome editor.steps=100 (required)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "name" not in self.editor:
            raise ConfigError("editor: key 'name' is missing, as in editor.name=rome")
        if own := {"grid", "label"} & set(self.editor):
            raise ConfigError(
                f"editor: a {own.pop()} is for the benchmark; give the editor's options themselves"
            )


@dataclass
class PatchConfig:
    patch: str | None = option(None, "file of a saved patch, which ends in .safetensors (required)")
    model: str | None = option(None, "folder of a trained host (required)")
    output_dir: str | None = option(None, "folder for the changed model; null: runs/<config name>")

    def __post_init__(self) -> None:
        _required(self, "patch", "model")


@dataclass
class AskConfig:
    model: str | None = option(None, "folder of a trained host (required)")
    prompt: str | None = option(None, "the prompt (required), as in prompt='The writer of Emma is'")
    top: int = option(1, "how many answers to print")
    strict: bool = option(False, "refuse words that the tokenizer does not know")

    def __post_init__(self) -> None:
        _required(self, "model", "prompt")
        if not str(self.prompt).strip():
            raise ConfigError("prompt is empty; expected words, as in prompt='The writer of Emma is'")
        if self.top < 1:
            raise ConfigError(f"top = {self.top}: expected at least 1")


@dataclass
class ReportConfig:
    run: str | None = option(None, "run folder (required)")

    def __post_init__(self) -> None:
        _required(self, "run")


LISTS = ("constructions", "editors", "methods", "presets", "metrics")


@dataclass
class ListConfig:
    what: str = option(
        "constructions",
        f"{', '.join(LISTS)} (methods: of sequences); or the name of a construction, an editor or a method, for its options",
    )


@dataclass
class ValidateConfig:
    file: str | None = option(None, "configuration file or preset (required)")

    def __post_init__(self) -> None:
        _required(self, "file")


def _required(config: Any, *keys: str) -> None:
    for key in keys:
        if getattr(config, key) is None:
            raise ConfigError(f"{key} is missing; pass {key}=...")
