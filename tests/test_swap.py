"""Swapping fact sets: the fact MLP is rebuilt for the host, and nothing else moves."""

import inspect

import pytest
import torch

from mlpswap import FactSet, build_fact_mlp, registry, swap_fact_mlp
from mlpswap.commands.changes import compare
from mlpswap.config import load_config
from mlpswap.constructions.base import margins
from mlpswap.errors import ConfigError, FactsError, InfeasibleConstructionError, RegistryError
from mlpswap.model import MlpSwapConfig, Vocabulary, build_for_host, build_host
from mlpswap.model.swap import _check_names
from mlpswap.training.config import TrainConfig
from mlpswap.training.setup import make_host, make_swap_target, make_task, read_facts
from tests.hosts import FACTS, WORDS, random_mlp, small_host

ALTERED = FACTS.alter({"Emma": "James Joyce", "The Waves": "Stephen King"})


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def stored(model, facts):
    """Share of the facts that the model's MLP tells from every token, given the key alone."""
    keys = model.norm_input(model.key_rows())
    rows = torch.cat([model.value_rows(), model.other_rows()])
    return float((margins(model.fact_mlp, keys, rows, facts.targets()) > 0).double().mean())


@pytest.mark.parametrize("construction", ["gd", "hebbian"])
def test_a_swap_stores_the_new_facts_and_moves_nothing_else(construction):
    model = small_host()
    others = {name: p.clone() for name, p in model.named_parameters() if ".mlp." not in name}
    before = model.state_sha256()
    patch = swap_fact_mlp(model, ALTERED, construction=construction)
    assert stored(model, ALTERED) == 1.0
    assert model.facts == ALTERED
    assert model.fact_mlp.report.construction == construction
    assert [key for key, _, _ in patch.altered] == ["Emma", "The Waves"]
    for name, parameter in others.items():
        assert torch.equal(model.get_parameter(name), parameter)
    patch.undo(model)
    assert model.state_sha256() == before
    assert model.facts == FACTS


def test_a_host_without_sentences_is_swapped_too():
    """SSFR has no templates to ask with: the command must not stumble over that once it has saved."""
    facts = FactSet.synthetic(6, generator())
    vocabulary = Vocabulary.ssfr(facts)
    table = torch.randn(len(vocabulary), 16, generator=generator())
    mlp = random_mlp()
    model = build_host(vocabulary, MlpSwapConfig(n_embd=16), facts, mlp, table, generator=generator())
    altered = facts.permute(generator(1))
    patch = swap_fact_mlp(model, altered, "hebbian", inplace=False)
    assert compare(model, patch.apply) == ([], {})
    assert model.facts == altered


@pytest.mark.parametrize("options", [{"competitors": None}, {"keys": 1}, {"h": "wide"}])
def test_an_option_that_the_construction_lacks_is_named(options):
    """Also where `build_fact_mlp` has an argument of that name."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        swap_fact_mlp(small_host(), ALTERED, "hebbian", **options)


def test_a_swap_takes_a_fact_set_and_nothing_else():
    with pytest.raises(FactsError, match=r"must be a FactSet: found dict; make it with model\.facts\.alter"):
        inspect.unwrap(_check_names)(small_host(), {"Emma": "James Joyce"})  # past the tests' type checker


def test_a_swap_that_must_store_everything_says_so():
    model = small_host()
    before = model.state_sha256()
    with pytest.raises(InfeasibleConstructionError, match="not all"):
        swap_fact_mlp(model, ALTERED, "hebbian", h=1, strict=True)
    assert model.state_sha256() == before


def test_a_swap_not_in_place_leaves_the_model_alone():
    model = small_host()
    before = model.state_sha256(), model.facts, model.history, model.config.own_fields()
    patch = swap_fact_mlp(model, ALTERED, "hebbian", inplace=False)
    assert (model.state_sha256(), model.facts, model.history, model.config.own_fields()) == before
    patch.apply(model)
    assert stored(model, ALTERED) == 1.0


def test_kind_and_width_default_to_the_mlp_in_place():
    """A construction of one kind makes that kind; an option given wins."""
    for kind, construction, wanted in (
        ("swiglu", None, ("swiglu", "gd")),
        ("relu", None, ("relu", "gd")),
        ("bilinear", None, ("bilinear", "hebbian")),
        ("bilinear", "gd", ("bilinear", "gd")),
        ("gelu", "hebbian", ("bilinear", "hebbian")),
    ):
        mlp = build_for_host(small_host(kind=kind, h=20), ALTERED, construction, generator=generator())
        assert (mlp.config.kind, mlp.report.construction) == wanted
        assert mlp.config.h == 20
    options = {"h": 30, "kind": "gelu"}
    mlp = build_for_host(small_host(), ALTERED, "gd", options, generator=generator())
    assert (mlp.config.kind, mlp.config.h) == ("gelu", 30)


def test_outputs_have_the_length_that_the_mixture_is_used_to():
    """Else the swap would shift the effective gate (specification, section 8 item 8)."""
    model = small_host()
    for construction in ("gd", "hebbian"):
        mlp = build_for_host(model, ALTERED, construction, generator=generator())
        assert mlp(model.key_rows()).norm(dim=1).mean().item() == pytest.approx(1.0, abs=1e-4)


def test_the_seed_decides():
    model = small_host()
    first, again, other = (
        swap_fact_mlp(model, ALTERED, "hebbian", inplace=False, seed=seed) for seed in (0, 0, 1)
    )
    same, different = (
        torch.equal(first.changes[0].new["down.weight"], patch.changes[0].new["down.weight"])
        for patch in (again, other)
    )
    assert same
    assert not different


def test_a_swap_to_the_same_facts_alters_none():
    patch = swap_fact_mlp(small_host(), FACTS, "hebbian")
    assert patch.altered == ()
    assert patch.facts_before == patch.facts_after


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (FACTS.take(3), "keys must be those of the model, 5 in its order: found 3; they are fewer"),
        (FactSet.from_pairs([*FACTS.pairs(), ("Dune", "Jane Austen")]), "found 6; 'Dune' is new"),
        (FactSet.from_pairs([*FACTS.pairs()][::-1]), "in another order"),
        (
            FactSet(FACTS.keys, (*FACTS.values[:3], "X\nY"), FACTS.mapping),
            r"values must be .*'X\\x0aY' is new",
        ),
    ],
)
def test_facts_with_other_names_are_refused(facts, message):
    model = small_host()
    before = model.state_sha256()
    with pytest.raises(FactsError, match=message):
        swap_fact_mlp(model, facts)
    assert model.state_sha256() == before


def test_keys_of_uneven_length_are_refused():
    """The frozen norm makes them even; a learned one may not (specification, section 8 item 10)."""
    model = small_host(norm="learned")
    build_for_host(model, ALTERED, "hebbian", generator=generator())
    with torch.no_grad():
        model.transformer.h[0].ln_2.weight[:3] *= 10
    with pytest.raises(
        InfeasibleConstructionError, match=r"must differ by less than 20% of their mean: found \d+%"
    ):
        build_for_host(model, ALTERED, "hebbian", generator=generator())


def test_mistakes_in_name_or_options_are_refused():
    model = small_host()
    with pytest.raises(RegistryError, match="'hebian'.*did you mean 'hebbian'"):
        swap_fact_mlp(model, ALTERED, "hebian")
    with pytest.raises(ConfigError, match="hebbian"):
        swap_fact_mlp(model, ALTERED, "hebbian", width=3)


@pytest.mark.parametrize(
    "facts",
    [
        FactSet.from_pairs([("Emma", "Jane Austen")]),
        FactSet(("Emma", "It"), ("Jane Austen",), (0, 0)),
        FactSet(("Emma", "It"), ("Jane Austen", "Stephen King"), (0, 0)),
    ],
)
@pytest.mark.parametrize("construction", ["gd", "hebbian"])
def test_one_fact_and_one_value_work(facts, construction):
    """From the first build to the answer after a swap."""
    vocabulary = Vocabulary.books(facts, WORDS)
    table = torch.nn.functional.normalize(torch.randn(len(vocabulary), 16, generator=generator()), dim=1)
    rows = [table[list(ids)] for ids in (vocabulary.key_ids, vocabulary.value_ids)]
    mlp = build_fact_mlp(*rows, facts.targets(), construction, generator=generator(), h=16)
    config = MlpSwapConfig(n_embd=16, mixture=False)
    model = build_host(vocabulary, config, facts, mlp, table, generator=generator())
    assert model.history[0]["by"] == construction
    swapped = facts.permute(generator(3))
    swap_fact_mlp(model, swapped, construction)
    ids = torch.tensor(list(vocabulary.key_ids))[:, None]
    answers = [vocabulary.entries[i][1] for i in model(ids).logits[:, -1].argmax(dim=1).tolist()]
    assert answers == [value for _, value in swapped.pairs()]


def test_a_construction_without_the_usual_options_trains_and_swaps(plugged):
    """h, kind, noise and match_output_norm are defaults for those who have them; a plug-in may have none."""
    plugged(registry.CONSTRUCTIONS, plain="Plain")
    words = ["facts.count=32", "host.n_embd=64", "mlp={construction: plain}"]
    config = load_config(
        TrainConfig, None, [*words, "swap.constructions=[{construction: plain}, {construction: plain}]"]
    )
    model = make_host(config, make_task("books", read_facts(config.facts, "books", 0), 0))
    assert model.fact_mlp.config.h == 96
    assert list(make_swap_target(config, model, "swap").mlps) == ["plain", "plain-2"]
