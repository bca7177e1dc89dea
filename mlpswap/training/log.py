"""Where a run's numbers go while it runs: always to `metrics.jsonl`, and to Weights & Biases unless disabled."""

import json
import logging
import netrc
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from mlpswap.errors import ConfigError, RunFolderError
from mlpswap.runs import finite_or_null, write_text
from mlpswap.training.config import WandbOptions

logger = logging.getLogger(__name__)


class RunLog:
    """One line of JSON per event; the same numbers to W&B on its own step axis.

    After an interruption, lines past the checkpoint are dropped first, so that no step stands there twice.
    """

    def __init__(self, folder: Path, *, from_step: int = 0):
        self.path = folder / "metrics.jsonl"
        try:
            lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
            steps = [_step(line) for line in lines]
            if None in steps:
                logger.warning("%s: %d unreadable lines are dropped", self.path, steps.count(None))
            kept = [
                line
                for line, step in zip(lines, steps, strict=True)
                if step is not None and step <= from_step
            ]
            write_text(self.path, b"".join(kept).decode())
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be written: {error.strerror}") from error
        self._run: Any = None

    def start_wandb(
        self, options: WandbOptions, folder: Path, config: dict[str, Any], wandb_id: str | None
    ) -> str | None:
        """Begin or continue a W&B run inside the run folder and return its id; never asks for a key.

        Raises `ConfigError` before any training if `online` is wanted without a key.
        """
        if options.mode == "disabled":
            return None
        try:
            import wandb
        except ImportError:
            if options.mode == "online":
                raise ConfigError(
                    "wandb.mode = online, but the package wandb is not installed; pip install wandb"
                ) from None
            logger.warning("the package wandb is not installed: metrics go to %s only", self.path)
            return None
        settings = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
        if options.mode == "online" and not _has_key(settings.base_url):
            raise ConfigError(
                "wandb.mode = online, but no API key is set up; run `wandb login` or set WANDB_API_KEY, "
                "or use wandb.mode=offline and `wandb sync` later"
            )
        self._run = wandb.init(
            mode=options.mode,  # type: ignore[arg-type]
            dir=str(folder),
            project=options.project,
            entity=options.entity,
            name=options.name or folder.name,
            id=wandb_id,
            resume="allow" if wandb_id else None,
            config=config,
            settings=settings,
        )
        for pattern in ("train/*", "eval/*"):
            self._run.define_metric(pattern, step_metric="step")
        return self._run.id

    def event(self, kind: str, step: int, **numbers: Any) -> None:
        """Append one event; its numbers appear in W&B as kind/name."""
        line = finite_or_null({"event": kind, "step": step} | numbers)
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
        if self._run is not None:
            self._run.log({"step": step} | {f"{kind}/{name}": value for name, value in numbers.items()})

    def summarise(self, metrics: dict[str, Any], figures: dict[str, Path] | None = None) -> None:
        """Give W&B the summary, a table of it and the figures as images."""
        if self._run is not None:
            import wandb

            self._run.summary.update(metrics)
            table = wandb.Table(
                columns=["metric", "value"], data=[[k, _number(v)] for k, v in metrics.items()]
            )
            images = {f"figures/{name}": wandb.Image(str(path)) for name, path in (figures or {}).items()}
            self._run.log({"summary": table, **images})

    def close(self) -> None:
        """End the file and the W&B run; may be called after a failure."""
        self._file.close()
        if self._run is not None:
            self._run.finish()
            self._run = None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _step(line: bytes) -> int | None:
    """The step of a whole line of the log, None for anything else, such as the half line that a kill leaves."""
    try:
        step = json.loads(line.decode())["step"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return step if isinstance(step, int) and line.endswith(b"\n") else None


def _has_key(base_url: str) -> bool:
    """Whether W&B would find a key, since it asks for one at the terminal if not."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(base_url).hostname or ""
    names = [os.environ["NETRC"]] if "NETRC" in os.environ else ["~/.netrc", "~/_netrc"]
    for name in names:
        path = Path(name).expanduser()
        if path.is_file():
            try:
                return netrc.netrc(path).authenticators(host) is not None
            except (netrc.NetrcParseError, OSError):
                return False
    return False
