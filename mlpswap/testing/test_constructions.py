"""The exam of constructions."""

import copy
import json

import pytest
import torch
from torch import Tensor

from mlpswap import registry
from mlpswap.config import to_plain
from mlpswap.constructions import BuildReport, FactMLP, FactMLPConfig
from mlpswap.constructions.base import margins
from mlpswap.embeddings import spherical
from mlpswap.errors import ConfigError, DegenerateKeysError, InfeasibleConstructionError
from mlpswap.model import swap_fact_mlp
from mlpswap.testing.facts import Example, facts, generator


@pytest.fixture
def example(construction: str) -> Example:
    return Example(construction)


def stored_by_loops(mlp: FactMLP, keys: Tensor, rows: Tensor, mapping: Tensor) -> list[bool]:
    """Which facts are stored, decided fact by fact and row by row."""
    stored = []
    for key, wanted in zip(keys, mapping.tolist(), strict=True):
        output = mlp(key)
        scores = [float(output @ row) for row in rows]
        stored.append(all(score < scores[wanted] for j, score in enumerate(scores) if j != wanted))
    return stored


def test_example_stores_everything(example):
    """A construction knows a size at which it works."""
    report = example.build().report
    assert report.accuracy == 1.0
    assert report.wrong == ()
    assert report.margin > 0


def test_arguments_and_global_randomness_are_left_alone(construction):
    """Pure: a build changes neither its arguments nor torch's global generator."""
    maker = registry.get(registry.CONSTRUCTIONS, construction)
    arguments = maker.example(generator())
    arguments["competitors"] = spherical(40, arguments["keys"].shape[1], generator(5))
    before, state = copy.deepcopy(arguments), torch.get_rng_state()
    maker.build(**arguments, generator=generator(1))
    assert torch.equal(torch.get_rng_state(), state)
    for argument, value in before.items():
        same = torch.equal if isinstance(value, Tensor) else lambda a, b: to_plain(a) == to_plain(b)
        assert same(arguments[argument], value), argument


def test_equal_generators_give_equal_weights(example):
    """All chance comes from the generator."""
    first, second = (example.build(seed=3) for _ in range(2))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_report_is_what_the_module_does(example):
    """Accuracy, margin and wrong facts are those of the returned module, on an MLP too narrow for everything if it
    can be made narrow."""
    keys, values, mapping = facts(150, 12, values=120)
    competitors = spherical(80, 12, generator(9))
    narrow = example.offered(h=8)
    mlp = example.attempt(keys=keys, values=values, mapping=mapping, competitors=competitors, **narrow)
    report, stored = mlp.report, stored_by_loops(mlp, keys, values, mapping)
    if narrow:
        assert 0 < sum(stored) < 150
    assert report.wrong == tuple(i for i, right in enumerate(stored) if not right)
    assert report.accuracy == pytest.approx(sum(stored) / 150)
    everything = stored_by_loops(mlp, keys, torch.cat([values, competitors]), mapping)
    assert report.accuracy_vocabulary == report.capacity == pytest.approx(sum(everything) / 150)
    assert report.margin == pytest.approx(float(margins(mlp, keys, values, mapping).min()), rel=1e-4)
    assert report.parameters == sum(parameter.numel() for parameter in mlp.parameters())
    assert (report.construction, report.facts) == (example.name, 150)
    assert BuildReport.from_dict(json.loads(json.dumps(report.to_dict()))).to_dict() == report.to_dict()


@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_units_of_the_keys_do_not_matter(example, scale):
    """Keys a million times longer or shorter are recalled as well, by an MLP made for them."""
    mlp = example.attempt(keys=example.keys * scale)
    assert mlp.report.accuracy == 1.0
    assert all(parameter.isfinite().all() for parameter in mlp.parameters())


def test_many_keys_may_share_a_value(example):
    """An author with most of the books is no obstacle, nor is a value that nobody has."""
    mapping = torch.randint(7, example.mapping.shape, generator=generator())
    mapping[: len(mapping) // 2] = 3 % len(example.values[:8])
    mapping %= len(example.values[:8])
    assert example.attempt(values=example.values[:8], mapping=mapping).report.accuracy == 1.0


@pytest.mark.parametrize(("count", "values"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_smallest_fact_sets(example, count, values):
    """One fact and one value are fact sets too."""
    mapping = torch.arange(count) % values
    mlp = example.attempt(keys=example.keys[:count], values=example.values[:values], mapping=mapping)
    assert mlp.report.accuracy == 1.0
    assert (mlp.report.margin == float("inf")) == (values == 1)


def test_keys_that_cannot_be_told_apart_are_named(example):
    """Zero keys, and equal keys with different values, are refused with their indices."""
    keys, (first, second) = example.keys.clone(), example.different()
    keys[second] = keys[first]
    with pytest.raises(DegenerateKeysError, match=f"{first}, {second}") as caught:
        example.build(keys=keys)
    assert caught.value.indices == (first, second)
    keys[second] = 0
    with pytest.raises(DegenerateKeysError, match=str(second)) as caught:
        example.build(keys=keys)
    assert caught.value.indices == (second,)


def test_the_same_fact_twice_is_harmless(example):
    """Equal keys with one value are no contradiction."""
    keys, mapping, (first, second) = example.keys.clone(), example.mapping.clone(), example.different()
    keys[second], mapping[second] = keys[first], mapping[first]
    assert example.attempt(keys=keys, mapping=mapping).report.accuracy == 1.0


def test_beyond_capacity_there_is_still_an_answer(example):
    """5,000 facts at d = 8, h = 16: finite weights, and a report that says how little is stored."""
    keys, values, mapping = facts(5000, 8)
    narrow = example.offered(h=16)
    fewer = example.offered(steps=50)  # training longer changes nothing here
    mlp = example.attempt(keys=keys, values=values, mapping=mapping, **narrow, **fewer)
    assert all(parameter.isfinite().all() for parameter in mlp.parameters())
    assert len(mlp.report.wrong) == round((1 - mlp.report.accuracy) * 5000)
    if narrow:
        assert mlp.report.accuracy < 0.5
        assert mlp.report.margin <= 0


def test_weights_go_through_a_state_dict(example):
    """Shape and numbers are all there is to an MLP: another one made from both is the same function."""
    mlp = example.build()
    copied = FactMLP(FactMLPConfig(**json.loads(json.dumps(mlp.config.to_dict()))))
    copied.load_state_dict(mlp.state_dict())
    assert torch.equal(copied(example.keys), mlp(example.keys))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_module_is_of_the_dtype_of_the_keys_and_frozen(example, dtype):
    """Deployed where its keys live, whatever it was computed in; a host never trains it."""
    mlp = example.build(keys=example.keys.to(dtype), values=example.values.to(dtype))
    assert {parameter.dtype for parameter in mlp.parameters()} == {dtype}
    assert not any(parameter.requires_grad for parameter in mlp.parameters())
    assert mlp.report.accuracy == 1.0


def test_output_norm_can_be_matched(example):
    """`match_output_norm` gives outputs the mean length of the values and leaves every decision as it was."""
    if not example.offered(match_output_norm=True):
        pytest.skip("it has no match_output_norm: a host keeps the lengths of its outputs")
    mlp = example.build(values=3 * example.values, match_output_norm=True)
    wanted = float(3 * example.values.norm(dim=1).mean())
    assert float(mlp(example.keys).norm(dim=1).mean()) == pytest.approx(wanted, rel=1e-4)
    assert mlp.report.accuracy == 1.0


def test_builds_where_gradients_are_off(example):
    """Hosts build their MLPs under `no_grad`."""
    with torch.no_grad():
        inside = example.build()
    assert torch.equal(inside.down.weight, example.build().down.weight)


def test_a_width_that_cannot_be_is_refused(example):
    if not example.offered(h=0):
        pytest.skip("it has no option h: a swap leaves its width alone")
    with pytest.raises(ConfigError, match="h must be positive"):
        example.build(h=0)


def test_swaps_into_a_host(example, bench):
    """As `mlpswap swap` and the editor of that name do; the host's answers are those of the MLP, and undo restores
    every bit."""
    before, altered = bench.model.state_sha256(), bench.facts.alter(bench.wanted)
    try:
        patch = swap_fact_mlp(
            bench.model, altered, example.name, **example.offered(h=example.options.get("h"))
        )
    except InfeasibleConstructionError as error:
        pytest.skip(str(error))
    stored = bench.model.fact_mlp.report.capacity
    right = [bench.answers([key]) == [value] for key, value in altered.pairs()]
    assert sum(right) / len(right) == pytest.approx(stored)
    assert bench.model.facts == altered
    patch.undo(bench.model)
    assert bench.model.state_sha256() == before
