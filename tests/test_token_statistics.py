"""Second moments over any stream of token ids, and files of them that fit one model only."""

import logging

import pytest
import torch

from mlpswap.editing import TokenStatistics, token_statistics, tokens_sha256
from mlpswap.errors import CheckpointError, ConfigError
from tests.causal_lms import H, random_adapter

TEXTS = [(7, 32, 34, 36, 93), (96,), (5,) * 40, tuple(range(100, 131)), ()]


def test_every_token_counts_once(caplog):
    """Whatever the batches and windows (the context takes 32 tokens), and by one reading of the stream."""
    adapter = random_adapter("llama", chunk=2)
    caplog.set_level(logging.INFO)
    found = token_statistics(adapter, iter(TEXTS), [0, 2])
    assert "second moments of 2 layers of width 24: 0 MiB" in caplog.text
    assert list(found) == [0, 2]
    for site in found:
        total = torch.zeros(H, H, dtype=torch.float64)
        for ids in (*TEXTS[:2], TEXTS[2][:32], TEXTS[2][32:], TEXTS[3]):
            prompts = adapter.cut([(ids, at) for at in range(len(ids))])
            keys = adapter.keys(prompts, site)
            total += keys.T @ keys
        assert found[site].count == sum(map(len, TEXTS))
        torch.testing.assert_close(
            found[site].sum, total, rtol=1e-6, atol=1e-9
        )  # Llama normalises in float32
    assert found.tokens == tokens_sha256(TEXTS)
    with pytest.raises(ConfigError, match="at least one token"):
        token_statistics(adapter, [()])
    with pytest.raises(ConfigError, match="text 1 holds the token 200"):
        token_statistics(adapter, [(1,), (3, 200)])


def test_a_file_fits_its_model_and_its_tokens(tmp_path):
    adapter, path = random_adapter("gpt2"), tmp_path / "moments.safetensors"
    found = token_statistics(adapter, TEXTS)
    found.save(path)
    for tokens in (None, TEXTS):
        loaded = TokenStatistics.load(path, adapter, tokens)
        assert list(loaded) == [0, 1, 2]
        for site in loaded:
            assert torch.equal(loaded[site].sum, found[site].sum)
            assert loaded[site].count == found[site].count
    with pytest.raises(CheckpointError, match="moments.safetensors holds statistics of other tokens"):
        TokenStatistics.load(path, adapter, TEXTS[:2])
    adapter.patch(0, torch.ones_like(adapter.weight(0)), editor="test").apply(adapter.model)
    with pytest.raises(CheckpointError, match="statistics of other model.*measure anew"):
        TokenStatistics.load(path, adapter)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="holds no statistics"):
        TokenStatistics.load(path, adapter)
    with pytest.raises(CheckpointError, match="holds no statistics"):
        TokenStatistics.load(tmp_path / "absent.safetensors", adapter)
