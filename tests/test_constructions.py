"""The exam that every registered construction takes, and the container that they all fill."""

import copy
import json
import logging
import subprocess
import sys
from dataclasses import asdict, fields

import pytest
import torch

from mlpswap import registry
from mlpswap.constructions import FactMLP, FactMLPConfig, build_fact_mlp
from mlpswap.constructions.base import KINDS, BuildReport, margins, stores_all
from mlpswap.constructions.checks import check_inputs
from mlpswap.embeddings import spherical
from mlpswap.errors import ConfigError, DegenerateKeysError, InfeasibleConstructionError, RegistryError

NAMES = [entry.name for entry in registry.entries(registry.CONSTRUCTIONS)]
every_construction = pytest.mark.parametrize("name", NAMES)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def facts(count, d, values=None, seed=0):
    """Keys, values and a mapping: a bijection, or many to one where `values` says how many there are."""
    draw = generator(seed)
    keys = spherical(count, d, draw)
    if values is None:
        return keys, keys, torch.randperm(count, generator=draw)
    return keys, spherical(values, d, draw), torch.randint(values, (count,), generator=draw)


def attempt(name, *arguments, seed=0, **options):
    """Build, or skip where the construction says clearly that it cannot exist at this size."""
    try:
        return build_fact_mlp(*arguments, name, generator=generator(seed), **options)
    except InfeasibleConstructionError as error:
        pytest.skip(str(error))


def stored_by_loops(mlp, keys, rows, mapping):
    """Which facts are stored, decided fact by fact and row by row."""
    stored = []
    for key, wanted in zip(keys, mapping.tolist(), strict=True):
        output = mlp(key)
        scores = [float(output @ row) for row in rows]
        stored.append(all(score < scores[wanted] for j, score in enumerate(scores) if j != wanted))
    return stored


@every_construction
def test_example_stores_everything(name):
    """A construction knows a size at which it works."""
    construction = registry.get(registry.CONSTRUCTIONS, name)
    mlp = construction.build(**construction.example(generator()), generator=generator(1))
    assert mlp.report.accuracy == 1.0
    assert mlp.report.wrong == ()
    assert mlp.report.margin > 0


@every_construction
def test_arguments_and_global_randomness_are_left_alone(name):
    """Pure: a build changes neither its arguments nor torch's global generator."""
    construction = registry.get(registry.CONSTRUCTIONS, name)
    arguments = construction.example(generator())
    arguments["competitors"] = spherical(40, arguments["keys"].shape[1], generator(5))
    before, state = copy.deepcopy(arguments), torch.get_rng_state()
    construction.build(**arguments, generator=generator(1))
    assert torch.equal(torch.get_rng_state(), state)
    for argument, value in before.items():
        same = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: asdict(a) == asdict(b)
        assert same(arguments[argument], value), argument


@every_construction
def test_equal_generators_give_equal_weights(name):
    """All chance comes from the generator."""
    keys, values, mapping = facts(60, 24)
    first, second = (attempt(name, keys, values, mapping, seed=3) for _ in range(2))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@every_construction
def test_report_is_what_the_module_does(name):
    """Accuracy, margin and wrong facts are those of the returned module, on an MLP that cannot hold everything."""
    keys, values, mapping = facts(150, 12, values=120)
    competitors = spherical(80, 12, generator(9))
    mlp = attempt(name, keys, values, mapping, h=8, competitors=competitors)
    report, stored = mlp.report, stored_by_loops(mlp, keys, values, mapping)
    assert 0 < sum(stored) < 150
    assert report.wrong == tuple(i for i, right in enumerate(stored) if not right)
    assert report.accuracy == pytest.approx(sum(stored) / 150)
    everything = stored_by_loops(mlp, keys, torch.cat([values, competitors]), mapping)
    assert report.accuracy_vocabulary == report.capacity == pytest.approx(sum(everything) / 150)
    assert report.margin == pytest.approx(float(margins(mlp, keys, values, mapping).min()), rel=1e-4)
    assert report.parameters == sum(parameter.numel() for parameter in mlp.parameters())
    assert (report.construction, report.facts) == (name, 150)
    assert BuildReport.from_dict(json.loads(json.dumps(report.to_dict()))).to_dict() == report.to_dict()


@every_construction
@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_units_of_the_keys_do_not_matter(name, scale):
    """Keys a million times longer or shorter are recalled as well, by an MLP made for them."""
    keys, values, mapping = facts(100, 24)
    mlp = attempt(name, keys * scale, values, mapping)
    assert mlp.report.accuracy == attempt(name, keys, values, mapping).report.accuracy == 1.0
    assert all(parameter.isfinite().all() for parameter in mlp.parameters())


@every_construction
def test_many_keys_may_share_a_value(name):
    """An author with most of the books is no obstacle, nor is a value that nobody has."""
    keys, values, mapping = facts(90, 24, values=8)
    mapping[mapping == 7] = 0
    mapping[:50] = 3
    assert attempt(name, keys, values, mapping).report.accuracy == 1.0


@every_construction
@pytest.mark.parametrize(("count", "values"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_smallest_fact_sets(name, count, values):
    """One fact and one value are fact sets too."""
    keys, table, mapping = facts(count, 16, values=values)
    mlp = attempt(name, keys, table, mapping)
    assert mlp.report.accuracy == 1.0
    assert (mlp.report.margin == float("inf")) == (values == 1)


@every_construction
def test_keys_that_cannot_be_told_apart_are_named(name):
    """Zero keys, and equal keys with different values, are refused with their indices."""
    keys, values, mapping = facts(40, 16)
    keys[11] = keys[30]
    with pytest.raises(DegenerateKeysError, match="keys 11, 30 are equal") as caught:
        build_fact_mlp(keys, values, mapping, name, generator=generator())
    assert caught.value.indices == (11, 30)
    keys[11] = 0
    with pytest.raises(DegenerateKeysError, match="keys 11 are zero") as caught:
        build_fact_mlp(keys, values, mapping, name, generator=generator())
    assert caught.value.indices == (11,)


@every_construction
def test_the_same_fact_twice_is_harmless(name):
    """Equal keys with one value are no contradiction."""
    keys, values, mapping = facts(40, 16, values=40)
    keys[11], mapping[11] = keys[30], mapping[30]
    assert attempt(name, keys, values, mapping).report.accuracy == 1.0


@every_construction
def test_beyond_capacity_there_is_still_an_answer(name, caplog):
    """5,000 facts at d = 8, h = 16: finite weights, a report that says how little is stored, and a warning."""
    keys, values, mapping = facts(5000, 8)
    offered = {field.name for field in fields(registry.get(registry.CONSTRUCTIONS, name).Config)}
    fewer = {"steps": 50} if "steps" in offered else {}  # training longer changes nothing here
    with caplog.at_level(logging.WARNING):
        mlp = attempt(name, keys, values, mapping, h=16, **fewer)
    report = mlp.report
    assert all(parameter.isfinite().all() for parameter in mlp.parameters())
    assert report.accuracy < 0.5
    assert report.margin <= 0
    assert len(report.wrong) == round((1 - report.accuracy) * 5000)
    assert report.details["bits_per_parameter"] > 100
    assert "of 5000 facts" in caplog.text


@every_construction
def test_weights_go_through_a_state_dict(name):
    """Shape and numbers are all there is to an MLP: another one made from both is the same function."""
    keys, values, mapping = facts(60, 24)
    mlp = attempt(name, keys, values, mapping)
    copied = FactMLP(FactMLPConfig(**json.loads(json.dumps(mlp.config.to_dict()))))
    copied.load_state_dict(mlp.state_dict())
    assert torch.equal(copied(keys), mlp(keys))


@every_construction
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_module_is_of_the_dtype_of_the_keys_and_frozen(name, dtype):
    """Deployed where its keys live, whatever it was computed in; a host never trains it."""
    keys, values, mapping = facts(60, 24)
    mlp = attempt(name, keys.to(dtype), values.to(dtype), mapping)
    assert {parameter.dtype for parameter in mlp.parameters()} == {dtype}
    assert not any(parameter.requires_grad for parameter in mlp.parameters())
    assert mlp.report.accuracy == 1.0


@every_construction
def test_output_norm_can_be_matched(name):
    """`match_output_norm` gives outputs the mean length of the values and leaves every decision as it was."""
    keys, values, mapping = facts(60, 24)
    plain, matched = (
        attempt(name, keys, 3 * values, mapping, match_output_norm=match) for match in (False, True)
    )
    assert float(matched(keys).norm(dim=1).mean()) == pytest.approx(3, rel=1e-4)
    assert matched.report.accuracy == plain.report.accuracy == 1.0


@every_construction
def test_builds_where_gradients_are_off(name):
    """Hosts build their MLPs under `no_grad`."""
    keys, values, mapping = facts(60, 24)
    with torch.no_grad():
        inside = attempt(name, keys, values, mapping)
    assert torch.equal(inside.down.weight, attempt(name, keys, values, mapping).down.weight)


@every_construction
def test_config_can_be_filled_by_a_swap(name):
    """Width and output norm are options of this name everywhere, every option has help, zero width is refused."""
    config = registry.get(registry.CONSTRUCTIONS, name).Config
    assert {"h", "match_output_norm"} <= {field.name for field in fields(config)}
    assert all(field.metadata["help"] for field in fields(config))
    with pytest.raises(ConfigError, match="h must be positive"):
        attempt(name, *facts(4, 8), h=0)


def test_strict_refuses_what_is_not_complete():
    """`strict` turns a shortfall into an error with its number."""
    arguments = (*facts(300, 8), "hebbian")
    assert build_fact_mlp(*arguments, generator=generator(), h=8).report.accuracy < 1
    with pytest.raises(InfeasibleConstructionError, match=r"'hebbian' with h = 8 stores .*% of 300 facts"):
        build_fact_mlp(*arguments, generator=generator(), h=8, strict=True)


def test_unknown_names_are_refused_with_a_hint():
    """A construction or an option that does not exist is named, and a near one offered."""
    with pytest.raises(RegistryError, match="no construction 'hebian'.*did you mean 'hebbian'"):
        build_fact_mlp(*facts(4, 8), "hebian", generator=generator())
    with pytest.raises(ConfigError, match="construction 'hebbian'.*varant.*variant"):
        build_fact_mlp(*facts(4, 8), varant="plain", generator=generator())


def test_importing_constructions_stays_light():
    """Neither scipy nor transformers is needed to build an MLP."""
    code = (
        "import sys, mlpswap.constructions as c; from mlpswap import registry; "
        "[entry.load() for entry in registry.entries(registry.CONSTRUCTIONS) if entry.origin == 'built-in']; "
        "print({'scipy', 'transformers', 'datasets'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_fact_mlp_is_its_formula(kind, biases):
    """g(x) = B (act(G x + b_G) * (A x + b_A)) + b_B, or B act(A x + b_A) + b_B."""
    activation, gated, _ = KINDS[kind]
    shape = FactMLPConfig(6, 9, activation, gated, hidden_bias=biases, output_bias=biases)
    mlp = FactMLP(shape, dtype=torch.float64)
    for parameter in mlp.parameters():
        parameter.normal_(generator=generator(parameter.numel()))
    act = {
        "silu": lambda z: z / (1 + torch.exp(-z)),
        "identity": lambda z: z,
        "relu": lambda z: z.clamp(min=0),
        "gelu": lambda z: z * (1 + torch.erf(z / 2**0.5)) / 2,
    }[activation]
    x = spherical(5, 6, generator(), torch.float64)

    def affine(layer, rows):
        return rows @ layer.weight.T + (layer.bias if biases else 0)

    up = affine(mlp.up, x)
    hidden = act(affine(mlp.gate, x)) * up if gated else act(up)
    assert torch.allclose(mlp(x), affine(mlp.down, hidden), rtol=1e-12)
    assert torch.allclose(mlp.hidden(x), hidden, rtol=1e-12)
    matrices = 3 if gated else 2
    assert mlp.parameters_count == matrices * 54 + biases * ((1 + gated) * 9 + 6)


def test_kinds_and_shapes_have_one_name_each():
    """`of_kind` and `kind` are inverse; unknown names and empty widths are refused."""
    for kind in KINDS:
        assert FactMLPConfig.of_kind(kind, 4, 8).kind == kind
    assert FactMLPConfig(4, 8, output_bias=True).kind == "custom"
    with pytest.raises(ConfigError, match="unknown kind of MLP 'glu': expected one of swiglu, bilinear"):
        FactMLPConfig.of_kind("glu", 4, 8)
    with pytest.raises(ConfigError, match="unknown activation 'tanh'"):
        FactMLPConfig(4, 8, "tanh")
    with pytest.raises(ConfigError, match="positive widths: found d = 4, h = 0"):
        FactMLPConfig(4, 0)


def test_a_tie_is_a_failure():
    """The right value must win strictly; a value equal to it takes the fact away."""
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    keys, mapping = torch.eye(2), torch.tensor([0, 1])
    assert margins(lambda x: x, keys, values, mapping).tolist() == [0.0, 1.0]
    assert margins(lambda x: x, keys, values[:1], torch.tensor([0, 0])).tolist() == [float("inf")] * 2
    assert not stores_all(lambda x: x, keys, values, mapping, values[:0])
    assert stores_all(lambda x: x, keys, values[:2], mapping, values[:0])
    assert not stores_all(lambda x: x, keys, values[:2], mapping, values[2:])


def test_chunks_do_not_change_margins():
    """Margins of many keys are computed in pieces."""
    keys, values, mapping = facts(50, 8)
    whole = margins(torch.sin, keys, values, mapping)
    assert torch.allclose(margins(torch.sin, keys, values, mapping, chunk=7), whole, atol=1e-6)


def test_inputs_that_do_not_fit_are_refused():
    """Each refusal says what was found."""
    keys, values, mapping = facts(20, 8)
    wrong = [
        ((keys, values[:, :5], mapping), r"share d: found \(20, 8\) and \(20, 5\)"),
        ((keys, values, mapping[:9]), r"each of 20 keys.*found shape \(9,\)"),
        ((keys[:0], values, mapping[:0]), "each of 0 keys, one at least"),
        ((keys, values[:10], mapping), r"outside the 10 values: 0\.\.19"),
        ((keys, values, mapping - 1), r"outside the 20 values: -1\.\.18"),
        ((keys, values, mapping, keys[:, :3]), r"competitors must be \(n_c, 8\): found \(20, 3\)"),
    ]
    for arguments, text in wrong:
        with pytest.raises(InfeasibleConstructionError, match=text):
            check_inputs(*arguments)


def test_rows_that_are_not_finite_are_named():
    """A NaN among thousands of rows is found."""
    keys, values, mapping = facts(20, 8)
    broken = values.clone()
    broken[torch.arange(3, 15), 2] = float("nan")
    with pytest.raises(DegenerateKeysError, match="values hold NaN or infinity in rows 3, .*, 10 and 4 more"):
        check_inputs(keys, broken, mapping)
    broken = keys.clone()
    broken[4, 0] = float("inf")
    with pytest.raises(DegenerateKeysError, match="keys hold NaN or infinity in rows 4") as caught:
        check_inputs(broken, values, mapping)
    assert caught.value.indices == (4,)
