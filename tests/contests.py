"""Short benchmarks and sequences of edits on the host of the fixture `trained`."""

import json

from mlpswap.benchmark.config import BenchmarkConfig, SequentialConfig
from mlpswap.benchmark.progress import line_of
from mlpswap.benchmark.run import benchmark
from mlpswap.commands.sequential import sequential
from mlpswap.config import load_config

STRONG = {"steps": 100, "lr": 0.5, "clip": None, "lam": 1e-2}
EVERY = [
    {"name": "rome", "steps": 50, "lr": 0.5}, {"name": "memit", **STRONG}, {"name": "memit", "cache": True, **STRONG},
    {"name": "alphaedit", "steps": 50, "lr": 0.5, "clip": None, "null_threshold": None, "null_energy": 0.2, "l2": 0.1},
    {"name": "ft", "lr": 1e-2, "clamp": None}, {"name": "swap", "construction": "hebbian"},
]  # fmt: skip


def run_benchmark(folder, trained, *overrides, **flags):
    words = [f"model={trained}", f"output_dir={folder}", "report=false", *overrides]
    return benchmark(load_config(BenchmarkConfig, None, words), **flags)


def run_sequence(folder, trained, *words, **flags):
    given = [f"model={trained}", f"output_dir={folder}", "derange=true", "batches=2", "size=4", *words]
    return sequential(load_config(SequentialConfig, None, given), **flags)


def with_seconds(lines, **seconds):
    """The text of `metrics.jsonl` with other times."""
    contents = [json.loads(line) for line in lines]
    return "".join(
        line_of({name: each[name] for name in each if name != "sha256"} | seconds) for each in contents
    )


def untimed(rows, editor=None):
    """All but the times, of one editor or all."""
    return [row | {"seconds": None} for row in rows if editor in (None, row["editor"])]
