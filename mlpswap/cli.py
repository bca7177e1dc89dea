"""The command line: one verb for each thing a user does. Options are keys of a typed configuration.

    mlpswap VERB --config FILE.yaml key=value ...

Exit codes: 0 done, 2 the user's input is wrong (one sentence says where), 130 interrupted, 143 terminated, 141 nobody reads on.
"""

import argparse
import errno
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mlpswap.config import keys_of, load_config, to_plain
from mlpswap.errors import MlpSwapError, RunFolderError


@dataclass(frozen=True)
class Verb:
    """`schema` and `run` are "module:name", imported only when the verb is used.

    main: the key that a bare word on the command line is for; it is text, not YAML.
    """

    help: str
    schema: str
    run: str
    flags: tuple[str, ...] = ()
    main: str = ""

    @property
    def usage(self) -> str:
        flags = [f"[--{flag}]" for flag in (*self.flags, "debug")]
        return " ".join(
            [*([f"[{self.main.upper()}]"] if self.main else []), "[--config FILE]", *flags, "[key=value ...]"]
        )


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
    "edit": Verb(
        "change facts of a trained host with any editor",
        "mlpswap.commands.config:EditConfig", "mlpswap.commands.edit:edit", ("overwrite",)),
    "apply": Verb(
        "put a saved patch into a trained host",
        "mlpswap.commands.config:PatchConfig", "mlpswap.commands.patches:apply", ("overwrite",)),
    "undo": Verb(
        "take a saved patch off a trained host again",
        "mlpswap.commands.config:PatchConfig", "mlpswap.commands.patches:undo", ("overwrite",)),
    "ask": Verb(
        "complete one prompt",
        "mlpswap.commands.config:AskConfig", "mlpswap.commands.ask:ask", main="prompt"),
    "benchmark": Verb(
        "edit a trained host with every editor and score them",
        "mlpswap.benchmark.config:BenchmarkConfig", "mlpswap.benchmark.run:benchmark", ("resume", "overwrite")),
    "sequential": Verb(
        "edit a trained host batch after batch and see what remains",
        "mlpswap.benchmark.config:SequentialConfig", "mlpswap.commands.sequential:sequential", ("resume", "overwrite")),
    "cost": Verb(
        "find how many parameters each construction needs",
        "mlpswap.cost.config:CostConfig", "mlpswap.cost.run:cost", ("resume", "overwrite")),
    "stores": Verb(
        "fill associative stores with memories and measure how they interfere",
        "mlpswap.commands.config:StoresConfig", "mlpswap.commands.stores:stores", ("overwrite",)),
    "sequences": Verb(
        "find how many (token, token) -> label facts one hidden layer stores by each method",
        "mlpswap.sequences.board.config:SequencesConfig", "mlpswap.commands.sequences:sequences", ("resume", "overwrite")),
    "report": Verb(
        "write report.html of a run folder again",
        "mlpswap.commands.config:ReportConfig", "mlpswap.commands.report:report", main="run"),
    "list": Verb(
        "list constructions, editors, methods, presets or metrics, or the options of one",
        "mlpswap.commands.config:ListConfig", "mlpswap.commands.list:list_things", main="what"),
    "validate": Verb(
        "check a configuration file without running it",
        "mlpswap.commands.config:ValidateConfig", "mlpswap.commands.validate:validate", main="file"),
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
        sub = verbs.add_parser(
            name,
            help=verb.help,
            description=verb.help + ".",
            usage=f"mlpswap {name} {verb.usage}",
            add_help=False,
        )
        sub.add_argument("-h", "--help", action=_Help, verb=verb, nargs=0, help="show the keys of this verb")
        sub.add_argument("--config", metavar="FILE", help="YAML file, or the name of a packaged preset")
        for flag in verb.flags:
            sub.add_argument(f"--{flag}", action="store_true", help=FLAGS[flag])
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        short = f"; {verb.main.upper()} alone is short for {verb.main}=..." if verb.main else ""
        sub.add_argument(
            "words", nargs="*", metavar="key=value", help=f"overrides of the configuration{short}"
        )
    return top


class _Help(argparse.Action):
    """Lists every key with its default; the schema is imported for this verb only."""

    def __init__(self, *args: Any, verb: Verb, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.verb = verb

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.print_help()
        print("\nkeys (with defaults):")
        for line in keys_of(load(self.verb.schema)):
            print(line)
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    try:
        try:
            return _main(argv)
        finally:
            print(end="", flush=True)  # not at exit, where a closed pipe could no longer be caught
    except BrokenPipeError:
        try:
            print(flush=True)  # is it standard output that is closed?
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        raise


def _main(argv: Sequence[str] | None) -> int:
    top = parser()
    # Overrides may stand before, between and after the flags, which argparse alone does not allow.
    arguments, later = top.parse_known_args(argv)
    if strange := [word for word in later if word.startswith("-")]:
        top.error(f"unknown flag {strange[0]}")
    words = [*arguments.words, *later]
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # our own bar is enough
    verb = VERBS[arguments.verb]
    source = arguments.config
    if arguments.verb == "validate" and source is not None:  # the file is what is validated, not how
        words, source = [f"{verb.main}={source}", *words], None
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Once())
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    for noisy in ("httpx", "urllib3", "filelock", "fsspec", "datasets", "wandb"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    config = None
    try:
        if source is None and getattr(arguments, "resume", False):
            source = _own_config(words)
        overrides, texts = _sorted(verb, words)
        config = load_config(load(verb.schema), source, overrides, texts)
        run: Callable[..., Any] = load(verb.run)
        flags = {flag: getattr(arguments, flag) for flag in verb.flags}
        with _terminable():
            run(config, config_name=source, **flags)
    except (MlpSwapError, MemoryError, RuntimeError) as error:
        if not isinstance(error, MlpSwapError) and not _out_of_memory(error):
            raise
        if arguments.debug:
            traceback.print_exc()
        text = str(error) if isinstance(error, MlpSwapError) else f"not enough memory{_largest(config)}"
        print(f"mlpswap: {_safe(text)}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a lack of rights, too long a name
        if isinstance(error, BrokenPipeError) or error.filename is None and error.errno != errno.ENOSPC:
            raise
        if arguments.debug:
            traceback.print_exc()
        what = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
        print(f"mlpswap: {_safe(what)} cannot be used: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        hint = "; a run that had begun goes on with --resume" if "resume" in verb.flags else ""
        print(f"mlpswap: interrupted{hint}", file=sys.stderr)
        return 143 if isinstance(error, Terminated) else 130
    return 0


class Terminated(KeyboardInterrupt):
    """Another process, such as a cluster's scheduler, ends this one: what is half done is cleaned up as after Ctrl-C."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Within it SIGTERM raises `Terminated`."""
    if threading.current_thread() is not threading.main_thread():  # where no handler can be set
        yield
        return

    def terminated(*_: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _own_config(words: Sequence[str]) -> str | None:
    """The configuration that the run in output_dir was started with: `--resume output_dir=FOLDER` needs no other."""
    given = [word.partition("=")[2].strip("\"'") for word in words if word.startswith("output_dir=")]
    path = Path(given[-1]) / "config.yaml" if given else None
    if path is not None and not path.is_file() and len(given) == len(words):
        raise RunFolderError(f"output_dir {given[-1]} holds no run to resume: there is no {path}")
    return str(path) if path is not None and path.is_file() else None


def _sorted(verb: Verb, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(overrides, texts): the verb's main key, bare or with its name, is text; one bare word can be meant for it."""
    overrides, texts = [], {}
    for word in words:
        bare = re.match(r"[A-Za-z_][\w.]*=", word) is None and verb.main not in texts
        if verb.main and (bare or word.startswith(f"{verb.main}=")):
            texts[verb.main] = word if bare else word.partition("=")[2]
        else:
            overrides.append(word)
    return overrides, texts


def _out_of_memory(error: Exception) -> bool:
    """On the CPU torch raises a plain RuntimeError."""
    signs = ("allocate memory", "out of memory", "Storage size calculation overflowed", "invalid memory size")
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)


def _largest(config: Any) -> str:
    """The settings that are most likely to be too large."""
    numbers = sorted(_numbers(to_plain(config)), reverse=True)[:2]
    return "; the largest settings are " + ", ".join(f"{key} = {n}" for n, key in numbers) if numbers else ""


def _numbers(content: Any, key: str = "") -> Iterator[tuple[int, str]]:
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _numbers(value, f"{key}.{name}" if key else str(name))
    elif isinstance(content, int) and not isinstance(content, bool) and key != "seed":
        yield content, key


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


def _safe(text: str) -> str:
    """One line: what is quoted may hold line breaks, and control characters, which a terminal must not obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


if __name__ == "__main__":
    sys.exit(main())
