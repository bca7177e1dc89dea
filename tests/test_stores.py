"""Associative stores: the cheap measurement against the definition, predictions against known integrals, the verb."""

import csv
import json
import math

import pytest
import torch

from mlpswap import stores
from mlpswap.cli import main
from mlpswap.embeddings import gaussian, spherical
from mlpswap.errors import ConfigError
from mlpswap.stores import (
    AttentionStore,
    LeastSquaresStore,
    MLPStore,
    OuterProductStore,
    make_stores,
    mean_over_similarities,
    write_memories,
    written_values,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def ratio_by_definition(answer, keys, values, count):
    """rms over the first `count` memories of ||y - signal|| / ||signal||, the signal being the wanted value's share."""
    total = 0.0
    for key, value in zip(keys[:count], values, strict=False):
        output = answer(key)
        signal = (output @ value) * value  # the values are orthonormal: nothing else points there
        total += float((output - signal).square().sum() / signal.square().sum())
    return math.sqrt(total / count)


def answers(store, keys, values):
    """What the store answers to a query, with its matrices written out."""
    match store:
        case OuterProductStore():
            weight = write_memories(torch.zeros(values.shape[1], keys.shape[1]).double(), keys, values)
            return lambda query: weight @ query
        case LeastSquaresStore():
            weight = values.T @ torch.linalg.pinv(keys).T
            return lambda query: weight @ query
        case AttentionStore():
            beta = math.sqrt(keys.shape[1]) if store.beta is None else store.beta
            return lambda query: torch.softmax(beta * keys @ query, dim=0) @ values
        case MLPStore():
            act = stores.ACTIVATIONS[store.activation]
            return lambda query: act(keys @ query - store.shift) ** store.power @ values
    raise AssertionError(store)


@pytest.mark.parametrize(
    "store",
    [
        OuterProductStore(), LeastSquaresStore(), AttentionStore(), AttentionStore(beta=2.0), MLPStore(),
        MLPStore("gelu", 1, 0.0), MLPStore("relu", 1, 0.1), MLPStore("identity", 3, -0.1),
    ],
    ids=lambda store: store.label,
)  # fmt: skip
def test_the_cheap_measurement_equals_the_definition(store, monkeypatch):
    """Orthonormal values leave nothing to chance. Several counts of one store, over several chunks."""
    monkeypatch.setattr(stores, "CHUNK", 48)
    draw = generator()
    keys = torch.cat([spherical(48, 16, draw), spherical(48, 16, draw), spherical(4, 16, draw)]).double()
    values = torch.linalg.qr(gaussian(128, 128, generator(1), torch.float64)).Q
    counts = [12, 30, 48, 49, 100]
    found = store.measured(counts, 16, generator(), queries=20)
    for count, ratio in zip(counts, found, strict=True):
        held, known = keys[:count], values[:count]
        wanted = ratio_by_definition(answers(store, held, known), held, known, min(count, 20))
        assert ratio == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("store", "memories", "known"),
    [
        (OuterProductStore(), (64, 96, 128), (1, 1.225, 1.414)),
        (LeastSquaresStore(), (64, 96, 128), (0, 0.707, 1)),
        (MLPStore(), (1400, 2816, 5600), (0.705, 1, 1.41)),
        (AttentionStore(), (300_000, 1_200_000), (0.486, 0.972)),
    ],
    ids=lambda each: getattr(each, "label", None),
)
def test_the_table_of_the_specification_within_five_percent(store, memories, known):
    predicted = [store.predicted(count, 64) for count in memories]
    assert predicted == pytest.approx(known, rel=0.01)
    assert store.measured(
        memories, 64, generator(), queries=16 if max(memories) > 10_000 else 256
    ) == pytest.approx(known, rel=0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("store", "sphere", "limit"),
    [
        (OuterProductStore(), 64, 64),
        (LeastSquaresStore(), 128, 128),
        (MLPStore("relu", 1), 128, 128),
        (MLPStore("identity", 2), 64 * 66 / 3, 64**2 / 3),
        (MLPStore("relu", 2), 2 * 64 * 66 / 3, 2 * 64**2 / 3),
        (MLPStore("relu", 3), 2 * 64 * 66 * 68 / 15, 2 * 64**3 / 15),
        (MLPStore("relu", 1, 0.1), 455, None),
        (MLPStore("relu", 1, 0.2), 2521, None),
        (MLPStore("relu", 1, 0.3), 24538, None),
        (AttentionStore(), 1.272e6, math.exp(14)),
        (AttentionStore(beta=16.0), 5.63e10, math.exp(24)),
    ],
    ids=lambda each: getattr(each, "label", None),
)
def test_capacities_are_those_of_the_integrals(store, sphere, limit):
    assert store.capacity(64) == pytest.approx(sphere, rel=1e-3)
    if limit is not None:
        assert store.capacity(64, gaussian=True) == pytest.approx(limit, rel=1e-6)
    if not isinstance(store, LeastSquaresStore):
        assert store.predicted(1 + round(store.capacity(64)), 64) == pytest.approx(1, rel=0.01)


def test_smooth_activations_hold_hardly_more_than_relu():
    assert all(130 < MLPStore(name, 1).capacity(64) < 190 for name in ("gelu", "silu"))


@pytest.mark.parametrize("d", [2, 3, 4, 64, 1000])
def test_moments_of_the_similarity(d):
    """E s^2 = 1/d and E s^4 = 3 / (d (d + 2)) on the sphere; 1/d and 3/d^2 for the Gaussian."""
    for gaussian_form, fourth in ((False, 3 / (d * (d + 2))), (True, 3 / d**2)):
        found = [
            mean_over_similarities(lambda s, p=p: s**p, d, [0.0], gaussian=gaussian_form) for p in (0, 2, 4)
        ]
        assert found == pytest.approx([1, 1 / d, fourth], rel=1e-6)


def test_extreme_stores_are_infinite_and_do_not_crash():
    assert AttentionStore(beta=2000.0).capacity(4096) == math.inf
    assert AttentionStore(beta=2000.0).capacity(4096, gaussian=True) == math.inf
    assert MLPStore("relu", 1, 0.99).capacity(4096) == math.inf
    with pytest.raises(ConfigError, match="d = 1"):
        OuterProductStore().capacity(1)


@pytest.mark.parametrize("batch", [1, 5])
def test_a_gradient_step_on_a_linear_layer_writes_memories(batch):
    """One step of SGD = one outer product for each example, with the value -lr dL/dy."""
    layer = torch.nn.Linear(6, 4, bias=False).double()
    x, wanted = (
        gaussian(batch, 6, generator(), torch.float64),
        gaussian(batch, 4, generator(1), torch.float64),
    )
    before = layer.weight.detach().clone()
    outputs = layer(x)
    outputs.retain_grad()
    torch.nn.functional.cross_entropy(outputs, wanted.softmax(dim=1)).backward()
    torch.optim.SGD(layer.parameters(), lr=0.3).step()
    written = write_memories(before, x, written_values(outputs.grad, 0.3))
    assert torch.allclose(layer.weight, written, rtol=0, atol=1e-15)
    assert not torch.allclose(layer.weight, before, atol=1e-3)


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"name": "hopfield"}, "hopfield"),
        ({"activation": "relu"}, "None"),
        ({"name": "mlp", "activation": "tanh"}, "tanh"),
        ({"name": "mlp", "power": 0}, "power = 0"),
        ({"name": "mlp", "shift": 1.0}, "shift = 1"),
        ({"name": "attention", "beta": -1}, "beta = -1"),
        ({"name": "outer_product", "beta": 1}, "beta"),
    ],
)
def test_a_wrong_store_is_refused_by_place_and_name(entry, named):
    with pytest.raises(ConfigError, match=named):
        make_stores([{"name": "outer_product"}, entry])


def test_the_verb_leaves_a_run_folder(tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["stores", "n_embd=16", "max_memories=4000", "points=5", f"output_dir={folder}"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "| least squares | 3" in out
    content = json.loads((folder / "results.json").read_text())
    assert content["kind"] == "stores"
    assert content["config"]["n_embd"] == 16
    assert content["metrics"]["capacity_least_squares"] == pytest.approx(32, rel=0.2)
    with (folder / "stores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(content["rows"])
    for row in content["rows"]:
        if row["memories"] > 16:
            assert row["measured"] == pytest.approx(row["predicted"], rel=0.25)
    assert (folder / "stores.md").read_text() in out
    assert (folder / "figures" / "interference.png").stat().st_size > 10_000
    page = (folder / "report.html").read_text()
    assert "associative stores" in page
    assert "mathdefault" not in page
    assert main(["report", str(folder)]) == 0
    assert main(words) == 2
    assert main([*words, "--overwrite", "stores=[{name: attention, beta: 40}]", "memories=[50, 10]"]) == 0
    content = json.loads((folder / "results.json").read_text())
    assert [row["memories"] for row in content["rows"]] == [10, 50]
    assert content["metrics"] == {"capacity_attention_beta_40": None}


@pytest.mark.parametrize(
    "word",
    ["memories=[1]", "memories=[]", "stores=[]", "queries=0", "n_embd=1", "stores=[{name: x}]", "threads=0"],
)
def test_a_wrong_key_of_the_verb_is_named(word, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["stores", word]) == 2
    assert word.split("=")[0] in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "store",
    [
        {"name": "mlp", "activation": "silu", "power": 1000000000},
        {"name": "mlp", "activation": "hermite2", "power": 1},
    ],
)
def test_a_store_without_a_signal_is_refused(store):
    (made,) = make_stores([store])
    with pytest.raises(ConfigError, match="its signal, the weight of a memory asked for, is 0 or overflows"):
        made.capacity(8)
    with pytest.raises(ConfigError, match="name"):
        make_stores([{"name": [1]}])
