"""Named random streams: each use of chance has its own generator, so that none shifts another."""

import hashlib

import torch

from mlpswap.errors import ConfigError


def generator(seed: int, *stream: str | int) -> torch.Generator:
    """A CPU generator for one purpose, such as `generator(seed, "noise", step)`.

    Streams of neighbouring seeds share nothing, which offsets of the seed (s + 1, s + 2, ...) would not give.
    """
    text = "/".join(map(str, (seed, *stream)))
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1)


def require_generator(found: object) -> None:
    """Raise `ConfigError` unless `found` is a generator: chance comes from nowhere else."""
    if not isinstance(found, torch.Generator):
        raise ConfigError(
            f"generator must be a torch.Generator, such as torch.Generator().manual_seed(0): found {type(found).__name__}"
        )
