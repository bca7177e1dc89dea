"""What can be set about a training run. Light to import: `--help` needs nothing else."""

from dataclasses import dataclass
from typing import Any

from mlpswap.config import check_threads, option, packaged_books
from mlpswap.errors import ConfigError


@dataclass
class FactsOptions:
    path: str | None = option(None, "CSV file of facts; null is the packaged data/books.csv")
    key: str = option("book", "column that holds the keys")
    value: str = option("author", "column that holds the values")
    count: int | None = option(None, "use the first so many facts; null is all (SSFR: must be given)")
    one_per_value: bool = option(
        True, "keep the first key of each value only, so that a swap is a true permutation"
    )
    policy: str = option("error", "what to do with a bad row: error or skip (counted in the log)")
    on_conflict: str = option("error", "a key with two values: error, or first")

    def reading(self) -> dict[str, Any]:
        """Arguments of `mlpswap.readers.read_csv`."""
        source = self.path if self.path is not None else packaged_books()
        rest = ("key", "value", "count", "one_per_value", "policy", "on_conflict")
        return {"path": source} | {name: getattr(self, name) for name in rest}


@dataclass
class HostOptions:
    n_embd: int = option(128, "model width d")
    n_layer: int = option(1, "layers; the fact MLP sits in the last one")
    n_head: int = option(1, "attention heads; d must be divisible by it")
    embeddings: str | None = option(
        None, "spherical or gaussian; null: spherical for books, gaussian for ssfr"
    )
    qk: str = option("mlp", "queries and keys by mlp or linear maps")
    value_output: str = option("identity", "value and output projections: identity (frozen) or learned")
    residual: bool = option(False, "residual connections")
    norm: str = option("frozen", "RMSNorm scales: frozen or learned")
    mixture: bool | None = option(None, "mix a language expert in; null: true for books, false for ssfr")
    language_rank: int = option(16, "rank r of the language expert")
    router_hidden: int = option(64, "hidden width of the router")
    logit_scale: float | None = option(
        None, "s of the head at the start; null: 16 for books, a top logit of sqrt(d) for ssfr"
    )
    train_logit_scale: bool | None = option(None, "train s; null: true for books, false for ssfr")
    rope_theta: float = option(10000.0, "base of the rotary frequencies")


@dataclass
class SwapOptions:
    constructions: list[dict[str, Any]] = option(
        factory=list, help="fact MLPs to swap in and score, like `mlp`; empty: as trained with"
    )


@dataclass
class OptimiserOptions:
    steps: int = option(400, "updates")
    batch_size: int = option(64, "sequences per update over all processes")
    lr: float = option(3e-3, "peak learning rate of AdamW (betas 0.9, 0.99)")
    weight_decay: float = option(0.0, "weight decay of AdamW")
    warmup: int = option(50, "linear warm-up steps")
    final_lr: float = option(0.02, "share of lr at the end of the cosine")
    clip: float | None = option(1.0, "largest norm of the gradient; null: no clipping")
    negatives: int | None = option(
        None, "random fact tokens in the candidate softmax; null: the full vocabulary"
    )
    p_nonvalue: float = option(0.5, "share of the labels other than the value that is kept (reweighted)")
    p_noise: float = option(0.05, "chance that a template word is replaced by another")
    shuffle_offvalue: bool = option(
        True, "away from the value, feed the fact expert's output of another position"
    )
    early_stop: float | None = option(
        None, "stop at this accuracy on a third fact set that is never reported; null: run all steps"
    )
    eval_every: int = option(100, "steps between the accuracies in the log; 0: none")
    eval_pairs: int = option(512, "prompts for those")
    log_every: int = option(10, "steps between lines of metrics.jsonl")
    checkpoint_every: int = option(100, "steps between checkpoints; 0: none")
    keep_checkpoints: int = option(2, "newest checkpoints kept")
    mixed_precision: str = option("no", "no, fp16 or bf16, passed on to accelerate")


@dataclass
class EvaluationOptions:
    pairs: int = option(2048, "sampled prompts (fact, template) for the final figures; 0: every one")


@dataclass
class WandbOptions:
    mode: str = option(
        "offline",
        "offline (in the run folder, for `wandb sync`), online or disabled; online stops at once, before anything is "
        "built, if no key is set up or the server does not answer",
    )
    project: str = option("mlpswap", "W&B project")
    entity: str | None = option(None, "W&B user or team")
    name: str | None = option(None, "name of the run; null: that of the run folder")


@dataclass
class TrainConfig:
    task: str = option("books", "books or ssfr")
    seed: int = option(0, "seeds embeddings, facts, training and edits")
    output_dir: str | None = option(None, "run folder; null: runs/<config name>")
    threads: int | None = option(None, "CPU threads per process; null: as torch chooses")
    allow_partial: bool = option(False, "train even if the fact MLP stores less than 99.5 % of the facts")
    allow_nonfinite: bool = option(False, "save weights that hold NaN or infinity")
    report: bool = option(True, "write report.html at the end")
    facts: FactsOptions = option(factory=FactsOptions)
    host: HostOptions = option(factory=HostOptions)
    mlp: dict[str, Any] = option(
        factory=lambda: {"construction": "hebbian"},
        help="fact MLP: `construction` and its options (mlpswap list constructions)",
    )
    swap: SwapOptions = option(factory=SwapOptions)
    training: OptimiserOptions = option(factory=OptimiserOptions)
    evaluation: EvaluationOptions = option(factory=EvaluationOptions)
    wandb: WandbOptions = option(factory=WandbOptions)

    def __post_init__(self) -> None:
        _choice("task", self.task, "books", "ssfr")
        _choice("facts.policy", self.facts.policy, "error", "skip")
        _choice("facts.on_conflict", self.facts.on_conflict, "error", "first")
        _choice("host.embeddings", self.host.embeddings, None, "spherical", "gaussian")
        _choice("training.mixed_precision", self.training.mixed_precision, "no", "fp16", "bf16")
        _choice("wandb.mode", self.wandb.mode, "offline", "online", "disabled")
        for name, least in (("steps", 1), ("batch_size", 1), ("warmup", 0), ("log_every", 1),
                            ("eval_every", 0), ("eval_pairs", 1), ("checkpoint_every", 0),
                            ("keep_checkpoints", 1)):  # fmt: skip
            _least(f"training.{name}", getattr(self.training, name), least)
        _least("evaluation.pairs", self.evaluation.pairs, 0)
        for name in ("facts.count", "training.negatives"):
            section, _, leaf = name.partition(".")
            value = getattr(getattr(self, section), leaf)
            if value is not None:
                _least(name, value, 1)
        for name in ("p_nonvalue", "p_noise"):
            value = getattr(self.training, name)
            if not 0 <= value <= 1 or (name == "p_nonvalue" and value == 0):
                raise ConfigError(f"training.{name} = {value}: expected a share between 0 and 1")
        if not 0 <= self.training.final_lr <= 1:
            raise ConfigError(
                f"training.final_lr = {self.training.final_lr}: expected a share between 0 and 1"
            )
        if self.training.clip is not None and self.training.clip <= 0:
            raise ConfigError(f"training.clip = {self.training.clip}: expected a positive norm, or null")
        if self.training.weight_decay < 0:
            raise ConfigError(f"training.weight_decay = {self.training.weight_decay}: expected at least 0")
        if self.training.early_stop is not None and not 0 < self.training.early_stop <= 1:
            raise ConfigError(
                f"training.early_stop = {self.training.early_stop}: expected an accuracy, or null"
            )
        check_threads(self.threads)
        if self.training.warmup > self.training.steps:
            raise ConfigError(
                f"training.warmup = {self.training.warmup}: expected at most training.steps = {self.training.steps}, else "
                "the learning rate never comes to training.lr"
            )
        for name, least in (
            ("n_embd", 2),
            ("n_layer", 1),
            ("n_head", 1),
            ("language_rank", 1),
            ("router_hidden", 1),
        ):
            _least(f"host.{name}", getattr(self.host, name), least)
        if self.host.logit_scale is not None and self.host.logit_scale <= 0:
            raise ConfigError(
                f"host.logit_scale = {self.host.logit_scale}: expected a positive number, or null"
            )
        if self.facts.path == "":
            raise ConfigError("facts.path is empty: expected a file, or null for the packaged books")
        if self.training.lr <= 0:
            raise ConfigError(f"training.lr = {self.training.lr}: expected a positive rate")
        if self.task == "ssfr" and self.facts.count is None:
            raise ConfigError("facts.count is missing: SSFR makes its own facts and needs their number")
        for place, mlp in self.mlps():
            if "construction" not in mlp:
                raise ConfigError(f"{place}: key 'construction' is missing, as in {{construction: hebbian}}")

    def mlps(self) -> list[tuple[str, dict[str, Any]]]:
        """The key and the content of every description of a fact MLP."""
        swapped = [(f"swap.constructions[{i}]", mlp) for i, mlp in enumerate(self.swap.constructions)]
        return [("mlp", self.mlp), *swapped]


def construction_and_options(mlp: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The two parts of a mapping such as {construction: gd, h: 40}."""
    return str(mlp["construction"]), {key: value for key, value in mlp.items() if key != "construction"}


def _choice(key: str, value: Any, *allowed: Any) -> None:
    if value not in allowed:
        names = ", ".join("null" if name is None else str(name) for name in allowed)
        raise ConfigError(f"{key} = {value}: expected one of {names}")


def _least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{key} = {value}: expected at least {least}")
