"""The container that all constructions fill; the exam that each of them takes is `mlpswap.testing`."""

import logging
import subprocess
import sys
from dataclasses import fields

import pytest
import torch

from mlpswap import registry
from mlpswap.constructions import FactMLP, FactMLPConfig, build_fact_mlp
from mlpswap.constructions.base import KINDS, margins, stores_all
from mlpswap.constructions.checks import check_inputs
from mlpswap.embeddings import spherical
from mlpswap.errors import ConfigError, DegenerateKeysError, InfeasibleConstructionError, RegistryError
from mlpswap.testing.facts import facts, generator

NAMES = [entry.name for entry in registry.entries(registry.CONSTRUCTIONS)]
every_construction = pytest.mark.parametrize("name", NAMES)


def attempt(name, *arguments, seed=0, **options):
    """Build, or skip where the construction says clearly that it cannot exist at this size."""
    try:
        return build_fact_mlp(*arguments, name, generator=generator(seed), **options)
    except InfeasibleConstructionError as error:
        pytest.skip(str(error))


@every_construction
def test_config_can_be_filled_by_a_swap(name):
    """Width and output norm are options of this name in all that is built in."""
    config = registry.get(registry.CONSTRUCTIONS, name).Config
    assert {"h", "match_output_norm"} <= {field.name for field in fields(config)}


def test_a_shortfall_is_told(caplog):
    """By a warning with its numbers, and in the report."""
    with caplog.at_level(logging.WARNING):
        report = attempt("hebbian", *facts(5000, 8), h=16).report
    assert report.details["bits_per_parameter"] > 100
    assert f"stores {report.accuracy:.2%}".replace("%", " %") + " of 5000 facts" in caplog.text


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
