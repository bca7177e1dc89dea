"""The networks of a leader board whose weights its report shows: kept in one file of the run folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from mlpswap.config import build_options
from mlpswap.errors import CheckpointError, ConfigError
from mlpswap.runs import write_tensors
from mlpswap.sequences.base import trial_generator
from mlpswap.sequences.board.config import SequencesConfig
from mlpswap.sequences.board.tables import is_standard
from mlpswap.sequences.facts import PairFacts, draw_pair_facts
from mlpswap.sequences.methods import get_method
from mlpswap.sequences.network import PairNetwork

FILE = "networks.safetensors"
KINDS = ("hand_coded", "permuted_knots", "trained")
WIDTH = 16  # where the board has it, otherwise the nearest width
_PARTS = ("first", "second", "unembedding")
_FACTS = ("first", "second", "label")


@dataclass(frozen=True)
class Pictured:
    """A network, by the name of its row, and the facts that it stores."""

    name: str
    network: PairNetwork
    facts: PairFacts


def pictured_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At one width and the highest threshold, the entry of each of `KINDS` with the most facts."""
    standard = [row for row in rows if row.get("any") and is_standard(row)]
    if not standard:
        return []
    width = min({row["d"] for row in standard}, key=lambda d: (abs(d - WIDTH), d))
    threshold = max(row["threshold"] for row in standard)
    found = []
    for kind in KINDS:
        own = [
            row for row in standard if (row["kind"], row["d"], row["threshold"]) == (kind, width, threshold)
        ]
        found += sorted(own, key=lambda row: -row["any"])[:1]
    return found


def build_pictured(config: SequencesConfig, row: Mapping[str, Any]) -> Pictured:
    """The best of the trials that a row of the board stands for, built again."""
    entry = next(
        each
        for each in config.methods
        if each.name == row["method"] and (each.d is None or row["d"] in each.d)
    )
    method = get_method(entry.method)
    options: Any = build_options(method.Config, entry.options | row["any_options"], entry.name)
    facts = draw_pair_facts(row["any"], row["tokens"], row["labels"], seed=config.facts_seed)
    draws = [trial_generator(method.name, trial, config.seed) for trial in range(row["trials"])]
    built = method.build(facts, row["d"], options, draws, threshold=row["threshold"])
    best = max(built, key=lambda network: network.accuracy(facts))
    return Pictured(row["method"], best, facts)


def save_pictured(path: Path, pictured: Sequence[Pictured]) -> None:
    """Write them atomically. Raises `RunFolderError` when the disk is full or read-only."""
    tensors: dict[str, Tensor] = {}
    for number, each in enumerate(pictured):
        for part in _PARTS:
            tensors[f"{number}.{part}"] = getattr(each.network, part).clone()
        for part in _FACTS:
            tensors[f"{number}.facts.{part}"] = getattr(each.facts, part).clone()
    about = [
        {"name": each.name, "tokens": each.facts.tokens, "labels": each.facts.labels} for each in pictured
    ]
    write_tensors(path, tensors, {"networks": json.dumps(about)})


def load_pictured(path: Path) -> list[Pictured]:
    """What `save_pictured` wrote; none if there is no such file. Raises `CheckpointError` if it is damaged."""
    if not path.exists():
        return []
    try:
        with safe_open(path, framework="pt") as file:
            found = []
            for number, about in enumerate(json.loads(file.metadata()["networks"])):
                tokens, labels = int(about["tokens"]), int(about["labels"])
                parts = [file.get_tensor(f"{number}.{part}") for part in _PARTS]
                width = parts[0].shape[-1]
                shapes = [(tokens, width), (tokens, width), (labels, width)]
                if [part.shape for part in parts] != shapes or not all(
                    part.isfinite().all() for part in parts
                ):
                    raise ValueError(f"network {number} is no set of finite matrices of its size")
                stored = {part: file.get_tensor(f"{number}.facts.{part}") for part in _FACTS}
                facts = PairFacts(**stored, tokens=tokens, labels=labels)
                found.append(Pictured(str(about["name"]), PairNetwork(*parts), facts))
            return found
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, ConfigError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
