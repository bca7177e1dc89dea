"""`mlpswap facts`: what a fact file holds, what was dropped and why, and the very prompts that would be trained on."""

from typing import Any

from mlpswap.commands.config import FactsConfig
from mlpswap.config import packaged_books
from mlpswap.facts import printable
from mlpswap.readers import read_csv


def show_facts(config: FactsConfig, **_: Any) -> None:
    from mlpswap.tasks.books import TRAINED, fill

    options = config.facts
    facts, report = read_csv(
        options.path or packaged_books(),
        options.key,
        options.value,
        count=options.count,
        one_per_value=options.one_per_value,
        policy=options.policy,  # type: ignore[arg-type]
        on_conflict=options.on_conflict,  # type: ignore[arg-type]
    )
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
