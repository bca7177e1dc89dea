"""Encoder-decoder MLPs (arXiv 2512.00207, section 4): keys to short codes, codes to outputs, merged into one MLP.

    g(x) = D code(x),   code(x) = E (act(G x) * (A x)),   so that B = D E

The encoder puts out the code of the right value, exactly (`bin`) or nearly (`gd`), or some other code that is decoded to it
(`margin`); the decoder D makes that code score its value highest. The code width m is a property of the values: see
decoders.py. Encoders: encoders.py, gadgets.py.

Parameters, as deployed (`dense`): 3 d h gated with h = m h~ and h~ = 1.1 F / d for `bin`, that is about 3.3 m F, or
3.3 F log2(n) for `margin`, which 2.4 suffice for; twice the neurons and 2 matrices without gate. Chosen numbers
(`factored`, E only adds up neurons): 2 d h + m d for `bin` and `margin`, 2 d h + m h + m d for `gd`. Both stand in the
report's details.

Assumes keys in general position, and an activation that is no polynomial for `bin` (a polynomial of degree p caps the
rank of its features and so F). `bin` with decoder `orthonormal` is closed-form and exact; decoder `gd` cuts m, and with
it everything, fourfold for half a minute of training; encoder `gd` halves that again. Encoder `margin` solves a convex
problem by projections, without training: a quarter of the parameters of `bin` with decoder `orthonormal`, two thirds with
`gd`. They are tight: noise on the keys costs facts sooner than with `hebbian`.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.config import option
from mlpswap.constructions.base import ACTIVATIONS, FactMLP, FactMLPConfig, finish
from mlpswap.constructions.checks import check_inputs
from mlpswap.constructions.decoders import DECODERS, Decoder, Decoding, make_decoder
from mlpswap.constructions.encoders import (
    GD_STEPS,
    BinOptions,
    Encoder,
    bin_encoder,
    bin_width,
    gd_encoder,
    gd_width,
    margin_width,
    require_unknowns,
)
from mlpswap.constructions.gadgets import baum_encoder, two_hot_encoder
from mlpswap.constructions.margin import MarginSets
from mlpswap.constructions.outputs import OUTPUTS_HELP, check_outputs, distinct, output_rows
from mlpswap.embeddings import spherical
from mlpswap.errors import ConfigError, InfeasibleConstructionError

ENCODERS = ("bin", "margin", "gd", "two_hot", "baum")


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """Options of the construction `encoder_decoder`."""

    h: int | None = option(
        None, "hidden width at most, split evenly over the code coordinates; null: as the encoder needs"
    )
    encoder: str = option(
        "bin",
        "bin: closed form, exact | margin: convex, a quarter as wide | gd: trained, narrower | "
        "two_hot, baum: for study (gadgets.py)",
    )
    decoder: str = option("orthonormal", "jl | orthonormal: random | gd: trained, far fewer code coordinates")
    code_width: int | None = option(None, "m, coordinates of a code; null: the fewest that decode")
    width_multiplier: float = option(
        1.1,
        "bin, margin with h = null: times the fewest neurons that allow exactness, or a weight of A for each bit",
    )
    activation: str = option("silu", "of bin, margin and gd: " + " | ".join(ACTIVATIONS))
    gated: bool = option(
        True, "false: without gate, by the derivative limit (bin, margin), with twice the neurons"
    )
    bias: bool = option(False, "bin, margin: biases on the hidden neurons and on the output")
    exact: bool = option(True, "bin: refuse what cannot be solved exactly; false: least squares")
    gamma: float = option(0.3, "margin: the margin, in units of the mean right score")
    epsilon: float | None = option(
        None, "bin, margin, not gated: step of the derivative limit; null: 0.01, or what is exact for relu"
    )
    steps: int = option(GD_STEPS, "gd encoder: training steps")
    outputs: str = option("auto", OUTPUTS_HELP)
    match_output_norm: bool = option(False, "scale B: mean output norm on the keys = mean norm of the values")

    def __post_init__(self) -> None:
        choices = (("encoder", ENCODERS), ("decoder", DECODERS), ("activation", tuple(ACTIVATIONS)))
        for name, known in choices:
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"encoder_decoder: unknown {name} '{getattr(self, name)}': expected one of {', '.join(known)}"
                )
        for name in ("h", "code_width", "width_multiplier", "gamma", "epsilon", "steps"):
            found = getattr(self, name)
            null = "" if name in ("width_multiplier", "gamma", "steps") else " or null"
            if found is not None and not found > 0:
                raise ConfigError(f"encoder_decoder: {name} must be positive{null}, found {found}")
        if self.encoder == "gd" and not self.gated:
            raise ConfigError(
                "encoder_decoder: encoder gd is gated; gated = false goes with bin, margin and two_hot"
            )
        check_outputs("encoder_decoder", self.outputs)


class EncoderDecoder:
    """Keys to short codes, codes to outputs (arXiv 2512.00207, section 4). Parameters 3 d h, or 2 d h + m d before
    merging; h = 1.1 m F / d with the exact encoder, m about log(F) / rho^2. Keys: in general position; values: decodable.
    Use it for exactness with a proof, and to see what a code costs; it bears little noise.

    Float64 until the last cast, trained parts float32.
    """

    name = "encoder_decoder"
    Config = EncoderDecoderConfig

    @torch.no_grad()
    def build(
        self,
        keys: Float[Tensor, "F d"],
        values: Float[Tensor, "n_v d"],
        mapping: Int[Tensor, " F"],
        config: EncoderDecoderConfig,
        *,
        competitors: Float[Tensor, "n_c d"] | None = None,
        generator: torch.Generator,
    ) -> FactMLP:
        """See `Construction.build`. Competitors must lose against every decoded value.

        Raises `InfeasibleConstructionError` with the violated number, `NotDecodableError` for values in the
        convex hull of the others. With a code width that is too small, some facts are wrong.
        """
        started = time.perf_counter()
        check_inputs(keys, values, mapping, competitors)
        first = distinct(keys)
        if config.encoder == "bin" and config.exact and config.h is not None:  # known before any search
            require_unknowns(len(first), keys.shape[1], config.h // (1 if config.gated else 2), config.bias)
        scale = keys.double().norm(dim=1).mean()
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        outputs = output_rows(values, mapping, config.outputs)
        rows = values if competitors is None else torch.cat([values, competitors])
        decoding = Decoding(outputs.rows, rows.double(), mapping.unique())
        decoder = make_decoder(config.decoder, decoding, config.code_width, seed)
        x, codes = keys[first].double() / scale, decoder.codes[mapping[first]]
        sets = None
        if config.encoder == "margin":
            table = rows.double() @ decoder.weight
            sets = MarginSets(table[: len(values)], mapping[first], table[len(values) :], gamma=config.gamma)
        encoder = make_encoder(x, codes, config, generator, sets)
        mlp = merge(encoder, decoder, float(scale))
        m = codes.shape[1]
        factored = mlp.parameters_count - mlp.down.weight.numel() + encoder.free + decoder.weight.numel()
        details = {
            "outputs": outputs.kind,
            "code_width": m,
            "decoder_complete": decoder.complete,
            "code_error": float((encoder(x) - codes).norm() / codes.norm()),
            "dense": mlp.parameters_count,
            "factored": factored,
            **encoder.details,
        }
        return finish(
            self.name, mlp, keys, values, mapping, started=started, norm_matched=config.match_output_norm,
            competitors=competitors, details=details,
        )  # fmt: skip

    def example(self, generator: torch.Generator) -> dict[str, Any]:
        keys = spherical(128, 32, generator)
        mapping = torch.randperm(len(keys), generator=generator)
        return {"keys": keys, "values": keys, "mapping": mapping, "config": EncoderDecoderConfig()}


def make_encoder(
    keys: Float[Tensor, "F d"],
    codes: Float[Tensor, "F m"],
    config: EncoderDecoderConfig,
    generator: torch.Generator,
    sets: MarginSets | None = None,
) -> Encoder:
    """The encoder that `config` asks for, for keys of mean length one; `margin` needs the sets of its codes."""
    (facts, d), m = keys.shape, codes.shape[1]
    if config.encoder == "gd":
        return gd_encoder(
            keys, codes, config.h or gd_width(facts, d, m), config.activation, config.steps, generator
        )
    if config.encoder in ("bin", "margin"):
        halves = 1 if config.gated else 2
        enough = bin_width(facts, d, config.width_multiplier, config.bias)
        width = enough
        if sets is not None:
            width = margin_width(facts, d, m, len(sets.table), config.width_multiplier)
        if config.h is not None:
            width = config.h // (m * halves)
            if width == 0:
                raise InfeasibleConstructionError(
                    f"the encoder needs a neuron for each of {m * halves} gadgets, one per code coordinate"
                    f"{'' if config.gated else ', two without gate'}: found h = {config.h}"
                )
        if sets is not None:
            width = min(width, enough)
        chosen = BinOptions(config.activation, config.gated, config.bias, config.exact, config.epsilon)
        return bin_encoder(keys, codes, width, chosen, generator, sets)
    two_hot = config.encoder == "two_hot"
    made = two_hot_encoder(keys, codes, gated=config.gated) if two_hot else baum_encoder(keys, codes)
    if config.h is not None and config.h < len(made.up):
        raise InfeasibleConstructionError(
            f"encoder {config.encoder} needs h = {len(made.up)}: found h = {config.h}"
        )
    return made


def merge(encoder: Encoder, decoder: Decoder, scale: float) -> FactMLP:
    """One MLP with B = D E, for keys `scale` times as long as the encoder's."""
    h, d = encoder.up.shape
    shape = FactMLPConfig(
        d,
        h,
        encoder.activation,
        encoder.gate is not None,
        encoder.bias is not None,
        encoder.shift is not None,
    )
    mlp = FactMLP(shape, dtype=torch.float64).to(encoder.up.device)
    if mlp.gate is not None:
        assert encoder.gate is not None
        mlp.gate.weight.copy_(encoder.gate / scale)
    mlp.up.weight.copy_(encoder.up / scale)
    mlp.down.weight.copy_(decoder.weight @ encoder.read)
    if encoder.bias is not None:
        mlp.up.bias.copy_(encoder.bias)
    if encoder.shift is not None:
        mlp.down.bias.copy_(decoder.weight @ encoder.shift)
    return mlp
