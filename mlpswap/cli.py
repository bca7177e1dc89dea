"""The command line: one verb for each thing a user does. Options are keys of a typed configuration.

    mlpswap VERB --config FILE.yaml key=value ...

Exit codes: 0 done, 2 the user's input is wrong (one sentence says where), 130 interrupted.
"""

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mlpswap.config import describe, load_config
from mlpswap.errors import MlpSwapError


@dataclass(frozen=True)
class Verb:
    """`schema` and `run` are "module:name", imported only when the verb is used."""

    help: str
    schema: str
    run: str
    flags: tuple[str, ...] = ()


VERBS: dict[str, Verb] = {
    "facts": Verb(
        "read a fact file, count what is kept and dropped, show prompts",
        "mlpswap.commands.config:FactsConfig", "mlpswap.commands.facts:show_facts"),
    "build": Verb(
        "build a fact MLP on random embeddings and report what it stores",
        "mlpswap.commands.config:BuildConfig", "mlpswap.commands.build:build"),
    "train": Verb(
        "train a host around a fact MLP, swap the MLP, measure both",
        "mlpswap.training.config:TrainConfig", "mlpswap.train:train", ("resume", "overwrite")),
    "swap": Verb(
        "put a fact MLP for changed facts into a trained host",
        "mlpswap.commands.config:SwapConfig", "mlpswap.commands.swap:swap", ("overwrite",)),
    "ask": Verb(
        "complete one prompt",
        "mlpswap.commands.config:AskConfig", "mlpswap.commands.ask:ask"),
    "benchmark": Verb(
        "edit a trained host with every editor and score them",
        "mlpswap.benchmark.config:BenchmarkConfig", "mlpswap.benchmark.run:benchmark", ("resume", "overwrite")),
    "report": Verb(
        "write report.html of a run folder again",
        "mlpswap.commands.config:ReportConfig", "mlpswap.commands.report:report"),
    "list": Verb(
        "list constructions, editors, presets or metrics",
        "mlpswap.commands.config:ListConfig", "mlpswap.commands.list:list_things"),
    "validate": Verb(
        "check a configuration file without running it",
        "mlpswap.commands.config:ValidateConfig", "mlpswap.commands.validate:validate"),
}  # fmt: skip

FLAGS = {
    "resume": "go on with the run in output_dir; without --config, under the settings that it has",
    "overwrite": "delete what is in the output first",
}


def load(path: str) -> Any:
    """The object that "module:name" points at."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="mlpswap", description="Facts that live in an MLP: build, train, swap, edit, measure."
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        sub = verbs.add_parser(name, help=verb.help, description=verb.help + ".", add_help=False)
        sub.add_argument("-h", "--help", action=_Help, verb=verb, nargs=0, help="show the keys of this verb")
        sub.add_argument("--config", metavar="FILE", help="YAML file, or the name of a packaged preset")
        for flag in verb.flags:
            sub.add_argument(f"--{flag}", action="store_true", help=FLAGS[flag])
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        sub.add_argument("words", nargs="*", metavar="key=value", help="overrides of the configuration")
    return top


class _Help(argparse.Action):
    """Lists every key with its default; the schema is imported for this verb only."""

    def __init__(self, *args: Any, verb: Verb, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.verb = verb

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.print_help()
        print("\nkeys (with defaults):")
        for key, kind, default, text in describe(load(self.verb.schema)):
            print(f"  {key}={'null' if default is None else default}  ({kind})\n      {text}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    top = parser()
    # Overrides may stand before, between and after the flags, which argparse alone does not allow.
    arguments, later = top.parse_known_args(argv)
    if strange := [word for word in later if word.startswith("-")]:
        top.error(f"unknown flag {strange[0]}")
    words = [*arguments.words, *later]
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # our own bar is enough
    verb = VERBS[arguments.verb]
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Once())
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    for noisy in ("httpx", "urllib3", "filelock", "fsspec", "datasets", "wandb"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        source = arguments.config or (_own_config(words) if getattr(arguments, "resume", False) else None)
        config = load_config(load(verb.schema), source, _keys(arguments.verb, words))
        run: Callable[..., Any] = load(verb.run)
        flags = {flag: getattr(arguments, flag) for flag in verb.flags}
        run(config, config_name=arguments.config, **flags)
    except MlpSwapError as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"mlpswap: {_safe(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mlpswap: interrupted", file=sys.stderr)
        return 130
    return 0


def _own_config(words: Sequence[str]) -> str | None:
    """The configuration that the run in output_dir was started with: `--resume output_dir=FOLDER` needs no other."""
    given = [word.partition("=")[2].strip("\"'") for word in words if word.startswith("output_dir=")]
    return (
        str(Path(given[-1]) / "config.yaml") if given and (Path(given[-1]) / "config.yaml").exists() else None
    )


def _keys(verb: str, words: Sequence[str]) -> list[str]:
    """`mlpswap list editors`, `mlpswap report FOLDER` and `mlpswap ask "..."`: a first bare word is the verb's main key."""
    main_key = {"list": "what", "report": "run", "validate": "file", "ask": "prompt"}.get(verb)
    if main_key and words and "=" not in words[0]:
        return [f"{main_key}={_quoted(words[0])}", *words[1:]]
    return list(words)


class _Once(logging.Filter):
    """Lets each message through once: a grid of settings meets the same warning many times."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        first = text not in self.seen
        self.seen.add(text)
        return first


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _safe(text: str) -> str:
    """Facts may hold control characters; a terminal must not obey them."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


if __name__ == "__main__":
    sys.exit(main())
