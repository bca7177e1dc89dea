"""What a run needs of its machine: refused before anything is allocated, or told in one sentence when it fails."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlpswap.errors import ConfigError, LaunchError, MlpSwapError
from mlpswap.training.config import TrainConfig

_TOO_LARGE = ("allocate memory", "not enough memory", "out of memory", "size calculation overflowed")
_PARTED = ("closed by peer", "reset by peer", "Broken pipe", "NCCL")
_ACTIVATIONS = 8  # at least so many vectors of width d are kept for each sequence of a batch


def check_memory(config: TrainConfig) -> None:
    """Raise `ConfigError` naming the key if one alone asks for more memory than the machine has.

    A lower bound, in numbers of four bytes: many systems promise any amount and kill the process once it uses it.
    """
    host, d = config.host, config.host.n_embd
    numbers: dict[str, tuple[Any, int]] = {
        "host.n_embd": (d, d * d),
        "host.n_layer": (host.n_layer, host.n_layer * d * d),
        "host.language_rank": (host.language_rank, host.language_rank * d),
        "host.router_hidden": (host.router_hidden, host.router_hidden * d),
        "facts.count": (config.facts.count, (config.facts.count or 0) * d),
        "training.batch_size": (config.training.batch_size, config.training.batch_size * d * _ACTIVATIONS),
    }
    for place, mlp in config.mlps():
        if isinstance(h := mlp.get("h"), int):
            numbers[f"{place}.h"] = (h, 2 * h * d)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for key, (value, count) in numbers.items():
        if 4 * count > memory:
            raise ConfigError(
                f"{key} = {value}: this takes at least {4 * count / 1e9:.4g} GB of memory, the machine has "
                f"{memory / 1e9:.4g} GB"
            )


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn what the machine has to say into an error for the user: too little memory, or another process that is gone."""
    try:
        yield
    except MlpSwapError:
        raise
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, MemoryError) or any(words in text for words in _TOO_LARGE):
            raise ConfigError(
                "there is not enough memory; lower training.batch_size, facts.count, host.n_embd or mlp.h"
            ) from error
        if any(words in text for words in _PARTED):
            rank = os.environ.get("RANK", "0")
            raise LaunchError(f"process {rank} stops since another one has ended; see its message") from error
        raise
