"""Where a run's numbers go while it runs: always to `metrics.jsonl`, and to Weights & Biases unless disabled."""

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from mlpswap.errors import ConfigError, RunFolderError
from mlpswap.runs import finite_or_null, write_text
from mlpswap.training.config import WandbOptions

logger = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds for W&B's server to answer before the run
INIT_TIMEOUT = 20.0  # seconds for W&B to register the run
_OFFLINE = "use wandb.mode=offline and `wandb sync` later"


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
    ) -> str:
        """Begin or continue a W&B run inside the run folder and return its id; `wandb_ready` has said that it can."""
        import wandb

        home = folder / "wandb"
        try:
            home.mkdir(exist_ok=True)  # W&B would take the system's temporary folder, without a word
            self._run = wandb.init(
                mode=options.mode,  # type: ignore[arg-type]
                dir=str(folder),
                project=options.project,
                entity=options.entity,
                name=options.name or folder.name,
                id=wandb_id,
                resume="allow" if wandb_id else None,
                config=config,
                settings=wandb.Settings(
                    silent=True, console="off", disable_git=True, save_code=False, init_timeout=INIT_TIMEOUT
                ),
            )
        except OSError as error:
            raise RunFolderError(f"{home} cannot be written: {error.strerror}") from error
        except (wandb.Error, ValueError) as error:
            raise ConfigError(f"W&B does not take the run: {_one_line(error)}; {_OFFLINE}") from error
        for pattern in ("train/*", "eval/*"):
            self._run.define_metric(pattern, step_metric="step")
        return self._run.id

    def event(self, kind: str, step: int, **numbers: Any) -> None:
        """Append one event; its numbers appear in W&B as kind/name."""
        line = finite_or_null({"event": kind, "step": step} | numbers)
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be written: {error.strerror}") from error
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
        with suppress(OSError):  # on a full disk: the event that did not fit has said so
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


def wandb_ready(options: WandbOptions, folder: Path) -> bool:
    """Whether W&B is to get the numbers of the run in `folder`. Asked before anything is built; never asks for a key.

    Raises `ConfigError`, within `PATIENCE` seconds, for names that W&B does not allow, and for `online` without the
    package, without a key, with one that is refused, or with a server that does not answer.
    """
    if options.mode == "disabled":
        return False
    if "HOME" not in os.environ or not os.access(os.environ["HOME"], os.W_OK):
        # Where else its service would keep its log: it prints all of it if it finds no place.
        os.environ.setdefault("WANDB_CACHE_DIR", str(folder.absolute() / "wandb" / "cache"))
    try:
        import wandb
        from wandb.sdk.wandb_setup import singleton
    except ImportError:
        if options.mode == "online":
            raise ConfigError(
                "wandb.mode = online, but the package wandb is not installed; pip install wandb"
            ) from None
        logger.warning("the package wandb is not installed: metrics go to metrics.jsonl only")
        return False
    try:
        wandb.Settings(project=options.project, entity=options.entity, run_name=options.name)
        server = singleton().settings.base_url
    except (wandb.Error, ValueError) as error:
        raise ConfigError(f"W&B does not take its settings: {_one_line(error)}") from error
    if options.mode == "online" and (fault := _login_fault(server)):
        raise ConfigError(f"wandb.mode = online, but {fault}; {_OFFLINE}")
    return True


def _login_fault(server: str) -> str | None:
    """What keeps a run from being logged live at `server`, None if nothing does."""
    import requests
    import wandb
    from wandb.sdk.lib.wbauth import authenticate_session

    try:
        found = authenticate_session(host=server, source="mlpswap", prompt=False, update_session=False)
    except wandb.Error as error:
        return f"its API key is not one: {_one_line(error)}"
    if found is None:
        return "no API key is set up: run `wandb login` or set WANDB_API_KEY"
    key = getattr(found, "api_key", None)
    if key is None:
        return None  # an identity token, which W&B itself exchanges
    answers: list[Any] = []

    def ask() -> None:
        try:
            query = {"query": "query { viewer { id } }"}
            answer = requests.post(f"{server}/graphql", json=query, auth=("api", key), timeout=PATIENCE)
            refused = answer.status_code in (401, 403)
            answers.append(None if refused else answer.json()["data"]["viewer"])
        except (requests.RequestException, ValueError, LookupError, TypeError) as error:
            answers.append(error)

    thread = Thread(target=ask, daemon=True)  # no timeout of requests covers the look-up of the server's name
    thread.start()
    thread.join(PATIENCE)
    match answers:
        case []:
            return f"{server} has not answered within {PATIENCE:g} seconds"
        case [requests.ConnectionError() | requests.Timeout()]:
            return f"{server} cannot be reached"
        case [Exception()]:
            return f"{server} does not answer like a W&B server"
        case [None]:
            return f"{server} does not accept the API key"
    return None


def _one_line(error: Exception) -> str:
    """The gist of an error that may spread over lines and end with the address of its explanation."""
    return " ".join(str(error).split(" [type=")[0].split())
