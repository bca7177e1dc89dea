"""A plug-in for mlpswap: an editor and a construction. Copy it to begin with."""

import time
from dataclasses import dataclass

import torch

from mlpswap.config import option
from mlpswap.constructions import FactMLP, FactMLPConfig
from mlpswap.constructions.base import finish
from mlpswap.constructions.checks import check_inputs
from mlpswap.editing import ClippedConfig, ClosedFormEditor, Writer
from mlpswap.embeddings import spherical
from mlpswap.errors import ConfigError


class Nudge(ClosedFormEditor):
    """Writes each wanted output R at its own key, with no regard for other facts."""

    name, Config, writer_fields = "nudge", ClippedConfig, ()

    def writer(self, keys, statistics, site, config, cache):
        X = keys / keys.square().sum(dim=0).clamp(min=1e-12)  # (h, N); the change of the weight is R X^T
        return Writer(X, refused=torch.zeros(len(X.T), dtype=torch.bool))

    def example(self, generator):
        return {"steps": 100, "lr": 0.5, "clip": None}  # with which it carries out each of a few edits


@dataclass(frozen=True)
class RandomFeaturesConfig:
    """Options of the construction."""

    h: int = option(256, "ReLU features, >= 1")

    def __post_init__(self):
        if self.h < 1:
            raise ConfigError(f"h must be positive: found {self.h}")


class RandomFeatures:
    """Random ReLU features and a least-squares read-out."""

    name, Config = "random_features", RandomFeaturesConfig

    @torch.no_grad()
    def build(self, keys, values, mapping, config, *, competitors=None, generator):
        started = time.perf_counter()
        check_inputs(keys, values, mapping, competitors)
        mlp = FactMLP(FactMLPConfig.of_kind("relu", keys.shape[1], config.h), dtype=torch.float64)
        mlp.up.weight.normal_(generator=generator).div_(keys.double().norm(dim=1).mean())
        readout = torch.linalg.pinv(mlp.hidden(keys.double())) @ values[mapping].double()  # (h, d)
        mlp.down.weight.copy_(readout.T)
        return finish(
            self.name,
            mlp,
            keys,
            values,
            mapping,
            started=started,
            norm_matched=False,
            competitors=competitors,
        )

    def example(self, generator):
        keys = spherical(64, 16, generator)
        mapping = torch.randperm(64, generator=generator)
        return {"keys": keys, "values": keys, "mapping": mapping, "config": RandomFeaturesConfig()}
