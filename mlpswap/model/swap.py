"""Put another fact set into a host by swapping its fact MLP (arXiv 2512.00207, section 5)."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from mlpswap import registry
from mlpswap.config import build_options
from mlpswap.constructions import build_fact_mlp
from mlpswap.constructions.base import KINDS, FactMLP
from mlpswap.errors import FactsError, InfeasibleConstructionError
from mlpswap.facts import FactSet, printable
from mlpswap.model.modeling import MlpSwapForCausalLM
from mlpswap.model.patch import Patch
from mlpswap.randomness import generator as stream

MAX_SPREAD = 0.2  # of the lengths of the keys, relative to their mean (specification, section 8 item 10)


def swap_fact_mlp(
    model: MlpSwapForCausalLM,
    facts: FactSet,
    construction: str | None = None,
    *,
    inplace: bool = True,
    strict: bool = False,
    seed: int = 0,
    **options: Any,
) -> Patch:
    """Build a fact MLP that stores `facts`, put it into the model, and return the patch that did so.

    inplace=False leaves the model as it is; the patch can be applied later. strict: raise
    `InfeasibleConstructionError` if the MLP stores less than all facts. The other arguments and the errors are
    those of `build_for_host`.
    """
    mlp = build_for_host(model, facts, construction, options, generator=stream(seed, "swap"), strict=strict)
    patch = Patch.between_mlps(model, mlp, editor="swap", facts=facts)
    if inplace:
        patch.apply(model)
        model.fact_mlp.report = mlp.report
    return patch


@torch.no_grad()
def build_for_host(
    model: MlpSwapForCausalLM,
    facts: FactSet,
    construction: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    generator: torch.Generator,
    strict: bool = False,
) -> FactMLP:
    """A fact MLP for `facts` on the model's own embeddings, with lengths that its mixture is used to.

    construction: by default "hebbian" where a bilinear MLP is in place, else "gd". `options` default to the
    width h of the MLP in place and, where the construction offers several kinds, to its kind; a construction
    that makes one kind only, such as hebbian, makes that. Raises `FactsError` unless keys and values are
    those of the model, in its order, and `InfeasibleConstructionError` for keys whose lengths differ by 20 %
    or more of their mean.
    """
    _check_names(model, facts)
    in_place = model.fact_mlp.config
    construction = construction or ("hebbian" if in_place.kind == "bilinear" else "gd")
    # Attention is never on the key alone, so the MLP must bear noise. Accuracy after the swap in a host of 256 books with
    # h = 40, mean of four fact sets: noise 0 .971, 0.5 .987, 1 .992, 1.5 .997, 2 .996.
    defaults: dict[str, Any] = {"h": in_place.h, "match_output_norm": True, "noise": 1.5}
    if in_place.kind in KINDS:
        defaults["kind"] = in_place.kind
    chosen = with_defaults(construction, options or {}, defaults)
    keys = model.norm_input(model.key_rows())  # what the fact MLP reads when attention is on the key alone
    lengths = keys.norm(dim=1)
    spread = float((lengths.max() - lengths.min()) / lengths.mean())
    if not spread < MAX_SPREAD:
        raise InfeasibleConstructionError(
            f"the lengths of the keys must differ by less than {MAX_SPREAD:.0%} of their mean: "
            f"found {spread:.0%}"
        )
    return build_fact_mlp(
        keys,
        model.value_rows(),
        facts.targets().to(keys.device),
        construction,
        competitors=model.other_rows(),
        generator=generator,
        strict=strict,
        **chosen,
    )


def with_defaults(
    construction: str, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """`options`, and those of `defaults` that are options of the construction; a plug-in may have none of them.

    Raises `ConfigError` for options that the construction lacks, also for those named like an argument of
    `build_fact_mlp`.
    """
    schema = registry.get(registry.CONSTRUCTIONS, construction).Config
    build_options(schema, options, f"construction '{construction}'")
    names = {field.name for field in fields(schema)}
    return {name: value for name, value in defaults.items() if name in names} | dict(options)


def _check_names(model: MlpSwapForCausalLM, facts: FactSet) -> None:
    known = model.known_facts()
    if not isinstance(facts, FactSet):
        raise FactsError(
            f"facts must be a FactSet: found {type(facts).__name__}; make it with model.facts.alter"
        )
    for noun, found, wanted in (("key", facts.keys, known.keys), ("value", facts.values, known.values)):
        if found == wanted:
            continue
        strange = [name for name in found if name not in set(wanted)]
        detail = f"'{printable(strange[0])}' is new" if strange else "they are fewer, or in another order"
        raise FactsError(
            f"the {noun}s must be those of the model, {len(wanted)} in its order: found {len(found)}; {detail}; "
            "make the fact set with model.facts.alter or model.facts.permute"
        )
