"""Second moments of the keys at every token of a text, the original protocols' C0, and a file that knows what
they are of.

Any token ids will do: a few thousand sentences of one's own in place of a download. Nothing is recomputed behind
the user's back: a file of another model or other tokens is refused.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from mlpswap.editing.causal_lm import CausalLMAdapter
from mlpswap.editing.moments import SecondMoment
from mlpswap.errors import CheckpointError, ConfigError
from mlpswap.model.saving import parameters_sha256, tensor_sha256
from mlpswap.runs import write_tensors

logger = logging.getLogger(__name__)


class TokenStatistics(Mapping[int, SecondMoment]):
    """`Statistics` with the SHA-256 of the model's weights and of the token ids that they were measured on."""

    def __init__(self, moments: Mapping[int, SecondMoment], *, model: str, tokens: str):
        self.moments, self.model, self.tokens = dict(moments), model, tokens

    def __getitem__(self, site: int) -> SecondMoment:
        return self.moments[site]

    def __iter__(self) -> Iterator[int]:
        return iter(self.moments)

    def __len__(self) -> int:
        return len(self.moments)

    def save(self, path: str | Path) -> None:
        """Write as safetensors: one sum per site, and in the metadata all else."""
        counts = {str(site): moment.count for site, moment in self.items()}
        hashes = {str(site): tensor_sha256(moment.sum) for site, moment in self.items()}
        about = {"model": self.model, "tokens": self.tokens, "counts": json.dumps(counts)}
        about["sums"] = json.dumps(hashes)
        write_tensors(path, {str(site): moment.sum for site, moment in self.items()}, about)

    @classmethod
    def load(
        cls, path: str | Path, adapter: CausalLMAdapter, tokens: Iterable[Sequence[int]] | None = None
    ) -> "TokenStatistics":
        """The inverse of `save`, for the same model and, if they are given, the same token ids.

        Raises `CheckpointError` for other ones, and for a file that holds no such statistics.
        """
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                hashes = json.loads(about["sums"])
                moments = {
                    int(site): SecondMoment.checked(path, file.get_tensor(site), count, hashes[site])
                    for site, count in json.loads(about["counts"]).items()
                }
            found = cls(moments, model=about["model"], tokens=about["tokens"])
        except (SafetensorError, OSError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} holds no statistics of keys: {error}") from error
        wanted = {"model": parameters_sha256(adapter.model)}
        if tokens is not None:
            wanted["tokens"] = tokens_sha256(tokens)
        for what, sha256 in wanted.items():
            if getattr(found, what) != sha256:
                raise CheckpointError(
                    f"{path} holds statistics of other {what}: expected SHA-256 {sha256[:12]}, found "
                    f"{getattr(found, what)[:12]}; measure anew with token_statistics"
                )
        return found


def tokens_sha256(token_ids: Iterable[Sequence[int]]) -> str:
    """One hash over all sequences, their ends included."""
    digest = hashlib.sha256()
    for ids in token_ids:
        _take_in(digest, ids)
    return digest.hexdigest()


def _take_in(digest: "hashlib._Hash", ids: Sequence[int]) -> None:
    digest.update(torch.tensor([len(ids), *ids]).numpy().tobytes())


def token_statistics(
    adapter: CausalLMAdapter, token_ids: Iterable[Sequence[int]], sites: Sequence[int] | None = None
) -> TokenStatistics:
    """Moments of the keys at every token of any number of texts, read once, summed in float64.

    sites: by default all, each of which takes h^2 * 8 bytes. Texts longer than the model's context are cut into
    windows. Raises `ConfigError` if there is no token, or one that the model does not know.
    """
    sites = adapter.sites() if sites is None else list(sites)
    if not sites:
        raise ConfigError(f"sites is empty: expected some of the layers {adapter.sites()}")
    widths = [adapter.weight(site).shape[1] for site in sites]
    size = sum(8 * h * h for h in widths) / 2**20
    logger.info("second moments of %d layers of width %s: %.0f MiB", len(sites), max(widths), size)
    digest = hashlib.sha256()
    moments: dict[int, SecondMoment] = {}
    windows = _windows(adapter, token_ids, digest)
    while part := list(islice(windows, adapter.chunk)):
        for site, keys in adapter.token_keys(part, sites).items():
            moment = SecondMoment.from_keys(keys)
            moments[site] = moments[site] + moment if site in moments else moment
    if not moments:
        raise ConfigError("second moments need at least one token: the token ids are empty")
    return TokenStatistics(moments, model=parameters_sha256(adapter.model), tokens=digest.hexdigest())


def _windows(
    adapter: CausalLMAdapter, token_ids: Iterable[Sequence[int]], digest: "hashlib._Hash"
) -> Iterator[tuple[int, ...]]:
    """No longer than the context; `digest` takes in what has been read."""
    for number, ids in enumerate(token_ids):
        ids = tuple(map(int, ids))
        strange = [token for token in ids if not 0 <= token < adapter.size]
        if strange:
            raise ConfigError(f"text {number} holds the token {strange[0]}, which the model does not know")
        _take_in(digest, ids)
        for start in range(0, len(ids), adapter.longest):
            yield ids[start : start + adapter.longest]
