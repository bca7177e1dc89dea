"""What users hand to `build_fact_mlp` by mistake: one sentence that says what was found, never a traceback of torch."""

import pickle

import pytest
import torch

from mlpswap.constructions import FactMLP, FactMLPConfig, build_fact_mlp
from mlpswap.constructions.base import KINDS
from mlpswap.constructions.readout import ridge_readout
from mlpswap.embeddings import spherical
from mlpswap.errors import ConfigError, DegenerateKeysError, InfeasibleConstructionError, NonFiniteError
from tests.test_constructions import attempt, every_construction, facts, generator

BILINEAR = [("hebbian", {}), ("gd", {"kind": "bilinear"})]


@every_construction
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mapping": lambda m: m.float()}, "mapping must be a tensor of whole numbers.*found a tensor of torch.float32"),
        ({"mapping": lambda m: m > 3}, "mapping must be a tensor of whole numbers.*found a tensor of torch.bool"),
        ({"mapping": lambda m: m.tolist()}, "mapping must be a tensor of whole numbers.*found list"),
        ({"keys": lambda k: k.tolist()}, "keys must be a tensor of floating-point numbers: found list"),
        ({"keys": lambda k: (9 * k).long()}, "keys must be .*floating-point numbers: found a tensor of torch.int64"),
        ({"values": lambda v: v.tolist()}, "values must be a tensor of floating-point numbers: found list"),
        ({"values": lambda v: v.to("meta")}, "values must be on the device of the keys, cpu: found meta"),
        ({"values": lambda v: v[:, :5]}, r"share d: found \(30, 16\) and \(30, 5\)"),
        ({"values": lambda v: v * 0}, "all values are zero"),
        ({"competitors": lambda _: [1.0]}, "competitors must be a tensor of floating-point numbers: found list"),
        ({"generator": lambda _: None}, "generator must be a torch.Generator.*found NoneType"),
        ({"keys": lambda k: k.double() * 1e160}, "keys are too long in rows 0, .*their norm overflows"),
        ({"construction": lambda _: 3}, "no construction '3'"),
    ],
)  # fmt: skip
def test_what_is_no_fact_set_in_tensors_is_refused(name, change, message, unchecked):
    keys, values, mapping = facts(30, 16)
    arguments = {
        "keys": keys,
        "values": values,
        "mapping": mapping,
        "construction": name,
        "generator": generator(),
    }
    for argument, broken in change.items():
        arguments[argument] = broken(arguments.get(argument))
    with pytest.raises(
        (ConfigError, DegenerateKeysError, InfeasibleConstructionError, LookupError), match=message
    ):
        build_fact_mlp(**arguments)


@every_construction
def test_what_torch_can_convert_is_taken(name):
    """Other integers, other precisions, and tensors in the middle of somebody's graph."""
    keys, values, mapping = facts(30, 16)
    wanted = attempt(name, keys, values, mapping)
    for taken in (
        (keys, values, mapping.int()),
        (keys, values, mapping.short()),
        (keys, values.double(), mapping),
        (keys.clone().requires_grad_(), values.clone().requires_grad_(), mapping),
    ):
        assert attempt(name, *taken).report.accuracy == wanted.report.accuracy


@every_construction
def test_short_keys_are_not_taken_for_zero(name):
    """The square of 1e-30 is zero in float32; the key is not."""
    keys, values, mapping = facts(30, 16)
    wanted = attempt(name, keys, values, mapping).report.accuracy
    assert attempt(name, keys * 1e-30, values, mapping).report.accuracy == pytest.approx(wanted, abs=0.05)


@pytest.mark.parametrize(("name", "options"), BILINEAR)
@pytest.mark.parametrize("factor", [2, -1, 1 / 3, -7e4])
def test_multiples_of_a_key_are_named_where_features_cannot_tell_them_apart(name, options, factor):
    """Bilinear features of c k are those of k times c^2: two values for one line cannot be stored."""
    keys, values, mapping = facts(30, 16)
    keys[5] = factor * keys[23]
    with pytest.raises(
        DegenerateKeysError, match="keys 5, 23 are multiples of one another.*kind=swiglu"
    ) as caught:
        build_fact_mlp(keys, values, mapping, name, generator=generator(), **options)
    assert caught.value.indices == (5, 23)
    mapping[5] = mapping[23]  # with one value there is no contradiction
    attempt(name, keys, values, mapping, **options)


def test_multiples_of_a_key_are_told_apart_by_other_features():
    keys, values, mapping = facts(30, 16)
    keys[5] = 2 * keys[23]
    assert attempt("gd", keys, values, mapping).report.accuracy == 1.0


def test_one_dimension_has_one_direction():
    """With d = 1 every key is a multiple of every other."""
    keys, values, mapping = facts(2, 1)
    with pytest.raises(DegenerateKeysError, match="keys 0, 1 are"):
        build_fact_mlp(keys, values, mapping, generator=generator())


def test_a_read_out_of_features_that_vanish_is_refused():
    with pytest.raises(
        InfeasibleConstructionError, match="Gram matrix of 3 features of 5 keys is not positive"
    ):
        ridge_readout(torch.zeros(5, 3).double(), torch.ones(5, 2).double())


def test_weights_that_leave_their_dtype_are_refused():
    """Keys of 1e-160 ask for weights of 1e160, which the float32 of training does not have."""
    keys, values, mapping = facts(30, 16)
    with pytest.raises(InfeasibleConstructionError, match="'gd' came to NaN or infinity in gate.weight"):
        build_fact_mlp(keys.double() * 1e-160, values, mapping, "gd", generator=generator())


@pytest.mark.parametrize("width", [1.5, "8", None])
def test_a_width_is_a_whole_number(width, unchecked):
    with pytest.raises(ConfigError, match=f"positive widths: found d = 4, h = {width!r}"):
        FactMLPConfig(4, width)


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_mlp_can_be_sent_to_another_process(kind):
    mlp = FactMLP(FactMLPConfig.of_kind(kind, 4, 6))
    again = pickle.loads(pickle.dumps(mlp))
    assert again.act is mlp.act


@pytest.mark.parametrize("scale", [1e30])
def test_scores_that_overflow_are_no_accuracy(scale):
    """Finite weights, finite keys: it is the products that leave float32, and all comparisons with NaN are false."""
    keys = scale * spherical(12, 8, torch.Generator().manual_seed(0))
    with pytest.raises(NonFiniteError, match="overflow in torch.float32"):
        build_fact_mlp(
            keys, keys, torch.arange(12), "gauss_newton", h=16, generator=torch.Generator().manual_seed(1)
        )
