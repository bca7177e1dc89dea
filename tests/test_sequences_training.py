"""Training of pair networks and toy models in packs, against plain modules trained one by one."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mlpswap.randomness import generator
from mlpswap.sequences.ablation.toy import FULL, SIMPLE, Shape, ToyPack, every_architecture
from mlpswap.sequences.facts import draw_pair_facts
from mlpswap.sequences.network import PairNetwork
from mlpswap.sequences.training.packed import NetworkPack, Reads, UnembeddingPack, networks, right_answers
from mlpswap.sequences.training.recipes import ABLATION, CHALLENGE, Recipe, train

TOKENS, LABELS, WIDTH = 6, 4, 5


def some_networks(count, *stream):
    draws = [generator(0, "tests", *stream, trial) for trial in range(count)]
    return [
        PairNetwork(*(torch.randn(rows, WIDTH, generator=g) for rows in (TOKENS, TOKENS, LABELS)))
        for g in draws
    ]


def plain_training(weights, logits, label, recipe):
    """One model by the book: torch's own Adam and cross-entropy. Returns most facts right, its weights and all epochs."""
    record, best, total = -1, None, 0
    for rate in recipe.rates:
        optimizer = torch.optim.Adam(weights, lr=rate)
        peak, waited = -1, 0
        for epoch in range(recipe.epochs):
            total += 1
            found = logits(weights)
            mine, others = found.gather(1, label[:, None]), found.scatter(1, label[:, None], -math.inf)
            right = int((mine > others.amax(1, keepdim=True)).sum())
            waited = 0 if right > peak else waited + 1
            peak = max(peak, right)
            if right > record:
                record, best = right, [weight.detach().clone() for weight in weights]
            if right == len(label) or waited >= recipe.patience or epoch + 1 == recipe.epochs:
                break
            optimizer.zero_grad()
            F.cross_entropy(found, label).backward()
            optimizer.step()
        if peak == len(label) or peak < recipe.proceed * len(label):
            break
    return record, best, total


def test_reading_rows_is_a_product_with_a_two_hot_matrix():
    rows = torch.randint(0, 7, (20, 2), generator=generator(0, "tests", "rows"))
    two_hot = F.one_hot(rows, 7).sum(1).float()
    reads = Reads(rows, 7, 4)
    for models in (4, 2):  # fewer tables, as when models are done
        tables = torch.randn(models, 7, 3, generator=generator(0, "tests", "tables"))
        values = torch.randn(models, 20, 3, generator=generator(0, "tests", "values"))
        torch.testing.assert_close(reads.gather(tables), two_hot @ tables)
        torch.testing.assert_close(reads.scatter(values), two_hot.T @ values)


def test_gradients_by_hand_are_those_of_autograd():
    facts = draw_pair_facts(25, TOKENS, LABELS)
    pack = NetworkPack(facts, some_networks(3, "gradients"))
    _, gradient = pack.gradients()
    leaf = pack.weights.clone().requires_grad_()
    losses = [F.cross_entropy(n.logits(facts), facts.label) for n in networks(leaf, TOKENS)]
    torch.stack(losses).sum().backward()
    torch.testing.assert_close(gradient, leaf.grad)


def test_a_fact_that_opens_no_neuron_is_not_right():
    logits = torch.zeros(1, 3, 2)
    logits[0, 1, 1] = 1.0
    assert right_answers(logits, torch.tensor([0, 1])).tolist() == [1]


RECIPES = {
    "one stage": Recipe((1e-2,), epochs=60, patience=10),
    "never patient": Recipe((1e-1, 1e-2, 1e-3), epochs=30, patience=2, proceed=0.3),
    "next stage for some": Recipe((3e-2, 1e-2), epochs=40, patience=40, proceed=0.7),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_pack_trains_as_one_by_one(name):
    """Models end at different epochs and stages, and are dropped while others go on."""
    recipe, facts = RECIPES[name], draw_pair_facts(22, TOKENS, LABELS)
    start = some_networks(8, "pack")
    found = train(NetworkPack(facts, start), recipe)
    epochs = set()
    for network, best, right, total in zip(
        start, networks(found.weights, TOKENS), found.right.tolist(), found.epochs.tolist(), strict=True
    ):
        weights = [w.clone().requires_grad_() for w in (network.first, network.second, network.unembedding)]
        record, plain, expected = plain_training(
            weights, lambda w: PairNetwork(*w).logits(facts), facts.label, recipe
        )
        assert (right, total) == (record, expected)
        for ours, theirs in zip((best.first, best.second, best.unembedding), plain, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        assert round(best.accuracy(facts) * len(facts)) == right
        epochs.add(total)
    assert len(epochs) > 1


def test_unembeddings_alone_train_as_one_by_one():
    facts, recipe = draw_pair_facts(22, TOKENS, LABELS), RECIPES["one stage"]
    start = some_networks(4, "hidden")
    hidden = torch.stack([network.hidden(facts) for network in start])
    found = train(UnembeddingPack(hidden, torch.stack([n.unembedding for n in start]), facts.label), recipe)
    for each, network in enumerate(start):
        record, (plain,), total = plain_training(
            [network.unembedding.clone().requires_grad_()],
            lambda w, h=hidden[each]: h @ w[0].T, facts.label, recipe,
        )  # fmt: skip
        assert (int(found.right[each]), int(found.epochs[each])) == (record, total)
        torch.testing.assert_close(found.weights[each], plain, rtol=1e-3, atol=1e-4)


def test_the_recipes_are_the_published_ones():
    assert (CHALLENGE.rates, CHALLENGE.epochs, CHALLENGE.patience) == ((1e-2,), 5000, 100)
    assert (ABLATION.rates, ABLATION.epochs, ABLATION.patience) == ((1e-2, 3e-3, 1e-3), 50_000, 5_000)
    assert ABLATION.proceed == 0.95


class PlainToy(nn.Module):
    """The toy model as a stock module: every fact a sequence of two tokens."""

    def __init__(self, architecture, shape):
        super().__init__()
        a, d, self.switch = architecture, shape.width, architecture
        norm = (lambda: nn.RMSNorm(d)) if a.norms else nn.Identity
        if a.mixing == "dual":
            self.first_table, self.second_table = (nn.Embedding(shape.tokens, d) for _ in range(2))
        else:
            self.table, self.position_table = nn.Embedding(shape.tokens, d), nn.Embedding(2, d)
            self.query, self.key, self.value, self.output = (nn.Linear(d, d, bias=False) for _ in range(4))
            self.attention = norm()
        if a.mlp:
            self.up, self.down = (
                nn.Linear(d, shape.hidden, bias=a.bias),
                nn.Linear(shape.hidden, d, bias=a.bias),
            )
            self.before_mlp = norm()
        self.before_output = norm()
        self.unembedding = nn.Linear(d, shape.labels, bias=a.bias)

    def forward(self, first, second):
        a = self.switch
        if a.mixing == "dual":
            r = self.first_table(first) + self.second_table(second)
        else:
            e = self.table(torch.stack([first, second], 1)) + self.position_table.weight  # (N, 2, d)
            n = self.attention(e)
            scores = (self.key(n) @ self.query(n[:, 1])[:, :, None]).squeeze(2) / math.sqrt(e.shape[2])
            weights = torch.full_like(scores, 0.5) if a.mixing == "uniform" else scores.softmax(1)
            r = e[:, 1] + self.output((weights[:, :, None] * self.value(n)).sum(1))
        x = r
        if a.mlp:
            act = {"relu": F.relu, "gelu": F.gelu}[a.activation]
            m = self.down(act(self.up(self.before_mlp(r))))
            x = r + m if a.residual else m
        return self.unembedding(self.before_output(x))


GAINS = {
    "attention.weight": "attention_gain",
    "before_mlp.weight": "mlp_gain",
    "before_output.weight": "output_gain",
}


def our_name(name):
    return GAINS.get(name) or name.removesuffix(".weight").replace(".bias", "_bias")


@pytest.mark.parametrize("architecture", every_architecture(), ids=repr)
def test_every_toy_model_is_the_plain_module(architecture):
    """Logits and gradients of two packed models; the gains are moved away from one so that they matter."""
    shape, facts = Shape(TOKENS, LABELS, WIDTH, 7), draw_pair_facts(20, TOKENS, LABELS)
    pack = ToyPack(architecture, shape, facts, [generator(0, "tests", "toy", trial) for trial in range(2)])
    pack.weights += 0.1 * torch.randn(pack.weights.shape, generator=generator(0, "tests", "moved"))
    named = pack.named(pack.weights)
    logits, (_, gradient) = pack.logits(named), pack.gradients()
    for trial in range(2):
        plain = PlainToy(architecture, shape)
        idle = architecture.mixing == "uniform"
        parameters = {
            our_name(name): p
            for name, p in plain.named_parameters()
            if not (idle and name[:3] in ("que", "key"))
        }
        assert set(parameters) == set(named)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(named[name][trial])
        expected = plain(facts.first, facts.second)
        torch.testing.assert_close(logits[trial].T, expected, rtol=1e-4, atol=1e-5)
        F.cross_entropy(expected, facts.label).backward()
        flat = torch.cat([parameters[name].grad.flatten() for name in named])
        torch.testing.assert_close(gradient[trial], flat, rtol=1e-3, atol=1e-5)


def test_there_are_54_architectures_with_the_published_ends_among_them():
    every = every_architecture()
    assert len(set(every)) == 54
    assert {FULL, SIMPLE} <= set(every)


def test_toy_models_start_as_torch_starts_them():
    """Ranges of linear maps, spread of tables, gains of one; a trial is the same however many stand beside it."""
    shape, facts = Shape(400, 30, 25, 100), draw_pair_facts(10, 400, 30)
    draws = [[generator(1, "tests", trial) for trial in range(count)] for count in (3, 1)]
    several, one = (
        pack.named(pack.weights) for pack in (ToyPack(FULL, shape, facts, each) for each in draws)
    )
    for name, weight in several.items():
        assert torch.equal(weight[:1], one[name])
        if name.endswith("gain"):
            assert (weight == 1).all()
        elif name == "table":
            assert abs(float(weight.std()) - 1) < 0.05
        elif not name.endswith("table"):
            bound = 0.1 if name.startswith("down") else 0.2
            assert 0.9 * bound < float(weight.abs().max()) <= bound
