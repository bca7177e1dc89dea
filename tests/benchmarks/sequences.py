"""Training eleven networks of the challenge: one pack against one after the other, in CPU time.

    python -m tests.benchmarks.sequences [width]

Both start from the same weights and take the same number of full-batch steps of Adam on the facts that the published
networks store. The naive way is the obvious one: embedding look-ups, autograd, torch's Adam, a loop over the networks;
the two-hot way multiplies with a dense two-hot matrix instead, for all networks at once.
"""

import sys
import time

import torch
from torch.nn import functional as F

from mlpswap.sequences.base import trial_generator
from mlpswap.sequences.facts import draw_pair_facts
from mlpswap.sequences.methods.trained import random_network
from mlpswap.sequences.scores import TRIALS
from mlpswap.sequences.training.packed import NetworkPack, residuals
from mlpswap.sequences.training.recipes import Adam, Recipe, train

ROUNDS, EPOCHS, RATE = 5, 20, 1e-2
PUBLISHED = {16: 568, 32: 2176, 64: 7680}  # facts, acc = 1


def naive(facts, networks) -> None:
    for network in networks:
        weights = [w.clone().requires_grad_() for w in (network.first, network.second, network.unembedding)]
        optimizer = torch.optim.Adam(weights, lr=RATE)
        for _ in range(EPOCHS):
            first, second, unembedding = weights
            logits = (
                torch.relu(F.embedding(facts.first, first) + F.embedding(facts.second, second))
                @ unembedding.T
            )
            optimizer.zero_grad()
            F.cross_entropy(logits, facts.label).backward()
            optimizer.step()
            (logits.argmax(1) == facts.label).sum().item()


@torch.no_grad()
def two_hot(facts, networks) -> None:
    width, count = networks[0].width, len(networks)
    read = F.one_hot(facts.first, facts.tokens), F.one_hot(facts.second, facts.tokens)
    matrix = torch.cat(read, 1).float()  # (N, 2V)
    tables = torch.cat([torch.cat([n.first, n.second]) for n in networks], 1)  # (2V, T d)
    unembedding = torch.stack([n.unembedding for n in networks])
    # One row of all weights, of which these are views.
    weights = torch.cat([tables.flatten(), unembedding.flatten()])[None]
    tables, unembedding = (
        weights[0, : tables.numel()].view_as(tables),
        weights[0, tables.numel() :].view_as(unembedding),
    )
    adam = Adam(weights)
    for _ in range(EPOCHS):
        hidden = torch.relu(matrix @ tables).view(len(facts), count, width).transpose(0, 1)
        logits = unembedding @ hidden.mT
        (logits.argmax(1) == facts.label).sum(1).tolist()
        residual = residuals(logits, facts.label) / len(facts)
        back = (residual.mT @ unembedding * (hidden > 0)).transpose(0, 1).reshape(len(facts), -1)
        gradient = torch.cat([(matrix.T @ back).flatten(), (residual @ hidden).flatten()])[None]
        adam.step(weights, gradient, torch.tensor([RATE]))


def packed(facts, networks) -> None:
    train(NetworkPack(facts, networks), Recipe((RATE,), EPOCHS, EPOCHS + 1))


def main(width: int = 16) -> float:
    facts = draw_pair_facts(PUBLISHED[width], 2 * width, width)
    networks = [random_network(facts, width, trial_generator("trained", trial)) for trial in range(TRIALS)]
    ways = {"packed": packed, "two-hot": two_hot, "naive": naive}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(ROUNDS + 1):
        for name, way in ways.items():
            began = time.process_time()
            way(facts, networks)
            if round_number:  # the first round warms up
                seconds[name].append((time.process_time() - began) / EPOCHS)
    medians = {name: sorted(values)[ROUNDS // 2] for name, values in seconds.items()}
    for name, value in medians.items():
        print(
            f"{name:8} {1e3 * value:8.2f} ms an epoch of {TRIALS} networks, {medians['naive'] / value:5.1f}x"
        )
    return medians["naive"] / medians["packed"]


if __name__ == "__main__":
    torch.set_num_threads(1)  # two threads beside other load wait for each other, and distort the ratio
    main(*map(int, sys.argv[1:]))
