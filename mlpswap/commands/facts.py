"""`mlpswap facts`: what a fact file holds, what was dropped and why, and the very prompts that would be trained on."""

from typing import Any

from mlpswap.commands.config import FactsConfig
from mlpswap.facts import printable
from mlpswap.readers import read_csv


def show_facts(config: FactsConfig, **_: Any) -> None:
    from mlpswap.tasks.books import TRAINED, fill

    facts, report = read_csv(**config.facts.reading())
    print(report.summary())
    for warning in report.warnings:
        print(f"warning: {warning}")
    print(
        f"{len(facts)} facts, {len(facts.values)} values, the commonest value has {facts.majority_share:.2%}"
    )
    print(f"fingerprint {facts.fingerprint}")
    for number, (key, value) in zip(range(config.show), facts.pairs(), strict=False):
        template = TRAINED[number % len(TRAINED)]
        print(f"  {printable(fill(template, key))} -> {printable(value)}")
