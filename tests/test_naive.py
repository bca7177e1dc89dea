"""One neuron per key: silent on every other key, whatever the keys' lengths, or refused."""

import pytest
import torch

from mlpswap.constructions import build_fact_mlp
from mlpswap.constructions.naive import separating_planes
from mlpswap.constructions.outputs import distinct, output_rows
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError, InfeasibleConstructionError, NotDecodableError
from mlpswap.geometry import margin_optimal_outputs


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make(keys, values=None, mapping=None, **options):
    values = keys if values is None else values
    mapping = torch.randperm(len(keys), generator=generator(7)) if mapping is None else mapping
    return build_fact_mlp(keys, values, mapping, "naive", generator=generator(), **options)


def test_each_key_wakes_its_own_neuron_alone():
    """The hidden layer on the keys is a permutation matrix times positive numbers; outputs are exact."""
    keys = spherical(200, 16, generator(), torch.float64)
    mapping = torch.randperm(200, generator=generator(1))
    mlp = make(keys, mapping=mapping)
    hidden = mlp.hidden(keys)
    assert (hidden > 0).sum() == (hidden.diagonal() > 0).sum() == 200
    assert torch.allclose(mlp(keys), margin_optimal_outputs(keys).outputs[mapping], atol=1e-12)
    assert mlp.parameters_count == 2 * 16 * 200 + 200
    assert mlp.config.kind == "relu"


def test_planes_stand_halfway_to_the_nearest_key():
    """Key by key: z_i is the key, and its neuron turns on halfway between the key and the most similar other."""
    keys = spherical(40, 8, generator(), torch.float64)
    planes, bias, peak = separating_planes(keys)
    for i, key in enumerate(keys):
        nearest = max(float(key @ other) for j, other in enumerate(keys) if j != i)
        assert torch.allclose(planes[i], key)
        assert float(bias[i]) == pytest.approx(-(1 + nearest) / 2)
        assert float(peak[i]) == pytest.approx((1 - nearest) / 2)


def test_keys_in_general_position_get_planes_of_their_own():
    """Keys of very different lengths, where the key itself is the wrong direction for most."""
    keys = gaussian(60, 16, generator(), torch.float64) * torch.linspace(0.8, 1.6, 60)[:, None].double()
    own = (keys @ keys.T).diagonal()
    assert ((keys @ keys.T).amax(dim=1) > own).any()
    values = spherical(60, 16, generator(2), torch.float64)
    mlp = make(keys, values)
    hidden = mlp.hidden(keys)
    assert mlp.report.accuracy == 1.0
    assert (hidden > 0).sum() == (hidden.diagonal() > 0).sum() == 60


def test_a_key_in_the_hull_of_the_others_is_named():
    """By its index among all keys, also where a fact stands twice."""
    keys = spherical(30, 8, generator())
    keys[12] = (keys[3] + keys[4] + keys[20]) / 3
    keys[5] = keys[2]
    mapping = torch.arange(30).index_fill_(0, torch.tensor([5]), 2)
    values = spherical(30, 8, generator(1))
    with pytest.raises(InfeasibleConstructionError, match="none exists for keys 12, which lie in the convex"):
        make(keys, values, mapping)


def test_fewer_neurons_than_keys_are_refused():
    """With both numbers; equal keys count once."""
    keys = spherical(30, 8, generator())
    keys[5] = keys[2]
    mapping = torch.arange(30).index_fill_(0, torch.tensor([5]), 2)
    with pytest.raises(InfeasibleConstructionError, match="found h = 28 < 29; h = null takes 29"):
        make(keys, spherical(30, 8, generator(1)), mapping, h=28)
    assert make(keys, spherical(30, 8, generator(1)), mapping, h=29).config.h == 29


def test_values_that_cannot_win_are_named():
    """A value in the hull of the others is an error where a key wants it, and no obstacle where none does."""
    keys, values = spherical(20, 8, generator()), spherical(20, 8, generator(1))
    values[6] = (values[1] + values[2]) / 2
    with pytest.raises(NotDecodableError, match="values 6 ") as caught:
        make(keys, values, torch.arange(20))
    assert caught.value.indices == (6,)
    mapping = torch.arange(20).index_fill_(0, torch.tensor([6]), 5)
    assert make(keys, values, mapping).report.accuracy == 1.0


def test_outputs_follow_the_number_of_values(monkeypatch):
    """`auto` asks for margin-optimal outputs of small tables and for the values of large ones."""
    values, mapping = spherical(20, 8, generator()), torch.arange(20)
    assert output_rows(values, mapping, "auto").kind == "margin_optimal"
    monkeypatch.setattr("mlpswap.constructions.outputs.AUTO_VALUES", 19)
    assert torch.equal(output_rows(values, mapping, "auto").rows, values.double())
    assert output_rows(values, mapping, "margin_optimal").kind == "margin_optimal"


def test_distinct_keys_stand_where_they_first_were():
    """The order of first appearance, not that of the numbers."""
    keys = torch.tensor([[3.0, 0], [1, 1], [3, 0], [0, 2], [1, 1]])
    assert distinct(keys).tolist() == [0, 1, 3]


@pytest.mark.parametrize("name", ["naive", "ntk", "encoder_decoder"])
def test_unknown_outputs_are_refused(name):
    """With the list of those that there are."""
    with pytest.raises(ConfigError, match=f"{name}: unknown outputs 'best': expected one of auto, values"):
        build_fact_mlp(*([torch.eye(3)] * 2), torch.arange(3), name, generator=generator(), outputs="best")
