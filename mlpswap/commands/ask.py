"""`mlpswap ask`: complete one prompt."""

from typing import Any

from mlpswap.commands.config import AskConfig
from mlpswap.facts import printable


def ask(config: AskConfig, **_: Any) -> None:
    from mlpswap.model.find import load_host

    model = load_host(config.model)
    model.tokenizer.strict = config.strict
    for surface, logit in model.ask_top(config.prompt, config.top):
        print(printable(surface) if config.top == 1 else f"logit {logit:8.3f}  {printable(surface)}")
