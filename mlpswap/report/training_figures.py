"""The figures of a training run. Each takes plain numbers, any of which may be None, and returns a `Picture`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlpswap.report.drawing import (
    COLOURS,
    GRID,
    INK,
    MARKERS,
    PAPER,
    Picture,
    drawing,
    figure,
    floats,
    label,
    picture,
)
from mlpswap.report.formats import accuracy, listed, number

Events = Sequence[Mapping[str, Any]]
NUMBERED = 18  # tokens up to which the cells of an attention picture hold their numbers


def _curve(events: Events, kind: str, name: str) -> tuple[list[int], list[float]]:
    points = [(e["step"], e[name]) for e in events if e["event"] == kind and e.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


def _steps(axes: Any, events: Events) -> None:
    axes.set_xlabel("step")
    axes.set_xlim(left=0)
    for event in events:
        if event["event"] == "early_stop":
            axes.axvline(event["step"], color=INK, linewidth=1, linestyle=":")


def loss_curve(events: Events, prefix: str = "") -> Picture | None:
    """Training loss against steps."""
    steps, losses = _curve(events, "train", "loss")
    if not steps:
        return None
    with drawing():
        drawn = figure()
        axes = drawn.add_subplot()
        axes.plot(steps, losses, color=COLOURS[0], marker="." if len(steps) < 60 else "")
        axes.set_ylabel("loss (nats)")
        axes.set_ylim(bottom=min(0.0, *losses))
        _steps(axes, events)
        return picture(
            f"{prefix}loss",
            drawn,
            alt=f"Training loss: {number(losses[0])} at step {steps[0]}, {number(losses[-1])} at step {steps[-1]}.",
            caption="Training loss, the mean cross-entropy of the labelled tokens of a batch. Where every word carries a "
            "label it does not reach zero: nothing in a sentence tells which key will follow.",
        )


def learning_curves(events: Events, prefix: str = "") -> Picture | None:
    """What the host learns, all between 0 and 1, against steps."""
    curves = (
        ("eval", "adaptive_accuracy", "accuracy after a swap"),
        ("train", "attention_mass", "attention to the key"),
        ("train", "gate_value", "fact expert at the value"),
        ("train", "gate_other", "fact expert elsewhere"),
    )
    with drawing():
        drawn = figure()
        axes = drawn.add_subplot()
        ends = []
        for place, (kind, name, text) in enumerate(curves):
            steps, values = _curve(events, kind, name)
            if steps:
                axes.plot(
                    steps, values, label=text, color=COLOURS[place], marker=MARKERS[place],
                    markevery=max(1, len(steps) // 8), linestyle=("-", "-", "--", ":")[place],
                )  # fmt: skip
                ends.append(f"{text} {number(values[-1])}")
        if not ends:
            return None
        axes.set_ylim(-0.03, 1.05)
        axes.set_ylabel("share")
        _steps(axes, events)
        drawn.legend(loc="outside upper center", ncols=2)
        return picture(
            f"{prefix}learning",
            drawn,
            alt=f"Learning curves; at the end {listed(ends)}.",
            caption="What the transformer learns: to look at the key when the value is due, to ask the fact MLP there and "
            "(where it has a language expert) only there. Its accuracy after a swap is measured on other facts than those "
            "it is trained with.",
        )


def attention_map(attention: Mapping[str, Any], prefix: str = "") -> Picture:
    """Attention weights of one prompt: row looks at column."""
    tokens = [label(token, 18) for token in attention["tokens"]]
    weights = [floats(row) for row in attention["weights"]]
    last, count = weights[-1], len(tokens)
    # A causal model sees no token to the right: those cells stay blank.
    cells = [[weights[i][j] if j <= i else math.nan for j in range(count)] for i in range(count)]
    with drawing():
        size = max(4.6, 0.24 * count)
        drawn = figure(size, size)
        axes = drawn.add_subplot()
        axes.grid(False)
        axes.pcolormesh(cells, cmap="cividis", vmin=0, vmax=1, edgecolors=PAPER, linewidth=0.8)
        axes.set(aspect="equal", ylim=(count, 0), xlabel="looked at", ylabel="position")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        at = [i + 0.5 for i in range(count)]
        axes.set_xticks(at, tokens, rotation=90)
        axes.set_yticks(at, tokens)
        if count <= NUMBERED:
            for i, row in enumerate(cells):
                for j, weight in enumerate(row):
                    if weight >= 0.05:
                        axes.text(
                            j + 0.5, i + 0.5, f"{100 * weight:.0f}", ha="center", va="center", fontsize=7.5,
                            color="white" if weight < 0.6 else "black",
                        )  # fmt: skip
        seen = max(range(count), key=lambda j: -1 if math.isnan(last[j]) else last[j])
        return picture(
            f"{prefix}attention",
            drawn,
            alt=f"Attention of each token to those before it. The last one looks at {tokens[seen]} "
            f"with {accuracy(last[seen])} of its attention.",
            caption="Attention in percent, averaged over the heads of the last layer: each row is a token, and its cells say "
            "which tokens it looks at. In the last row, where the answer is given, all should be on the key.",
        )


def template_dots(templates: Sequence[Mapping[str, Any]], prefix: str = "") -> Picture:
    """Accuracy of each template, with the MLP trained with and with the one swapped in."""
    numbers = [row["template"] for row in templates]
    before, after = (floats([row[name] for row in templates]) for name in ("before", "after"))
    with drawing():
        drawn = figure(5.0, 1.2 + 0.19 * len(numbers))
        axes = drawn.add_subplot()
        axes.hlines(numbers, before, after, color=GRID, linewidth=3)
        axes.plot(
            before, numbers, "o", color=COLOURS[0], label="before the swap", markersize=8, fillstyle="none"
        )
        axes.plot(after, numbers, "D", color=COLOURS[1], label="after the swap", markersize=4)
        axes.axvline(0.9, color=INK, linewidth=1, linestyle=":")
        axes.set(xlabel="accuracy", ylabel="template", yticks=numbers)
        axes.set_xlim(min([0.85, *(x - 0.05 for x in before + after if not math.isnan(x))]), 1.01)
        axes.set_ylim(max(numbers) + 0.7, min(numbers) - 0.7)
        axes.grid(axis="y", visible=False)
        drawn.legend(loc="outside upper center", ncols=2)
        worst = [x for x in before + after if not math.isnan(x)]
        return picture(
            f"{prefix}templates",
            drawn,
            alt=f"Accuracy of {len(numbers)} templates before and after the swap; "
            f"the lowest is {accuracy(min(worst) if worst else None)}.",
            caption="Accuracy on each way of telling a fact. A mean can hide a template that fails entirely; the dotted line "
            "is at 0.9.",
        )
