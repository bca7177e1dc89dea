"""The model card: README.md of a saved model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlpswap.facts import FactSet, printable

if TYPE_CHECKING:
    from mlpswap.model.configuration import MlpSwapConfig

_CARD = """\
---
library_name: mlpswap
pipeline_tag: text-generation
license: apache-2.0
tags:
- mlpswap
- knowledge-editing
- interpretability
---

# A host transformer with its facts in one MLP

Without `import mlpswap`, transformers does not know the type of this model and refuses it.

```python
import mlpswap
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("PATH OF THIS FOLDER")
{ask}
```

An answer is one token long: longer output is untrained. Architecture: arXiv 2512.00207.

| | |
|---|---|
| facts | {facts} |
| fingerprint of the facts | {fingerprint} |
| fact MLP | {kind}, d = {d}, h = {h} |
| vocabulary | {vocabulary} tokens |

## History

{history}
"""


def model_card(config: "MlpSwapConfig", facts: FactSet | None, history: Sequence[dict[str, Any]]) -> str:
    """The card as Markdown with its YAML head."""
    mlp = config.fact_mlp_config
    lines = [f"{number}. {_describe(event)}" for number, event in enumerate(history, 1)]
    return _CARD.format(
        ask='model.ask("...")' if facts is None else f"model.ask({_prompt(facts)!r})",
        facts="none" if facts is None else f"{len(facts)} keys, {len(facts.values)} values",
        fingerprint="none" if facts is None else f"`{facts.fingerprint}`",
        kind=mlp.kind,
        d=mlp.d,
        h=mlp.h,
        vocabulary=config.vocab_size,
        history="\n".join(lines) or "Not recorded.",
    )


def _prompt(facts: FactSet) -> str:
    return printable(f"The writer of {facts.keys[0]} is").replace("`", "'")


def _describe(event: dict[str, Any]) -> str:
    """One line of the history, such as "patched by swap, 3 facts altered, now cd2662a4"."""
    parts = [f"{event['event']} by {event['by']}"]
    if "altered" in event:
        parts.append(f"{event['altered']} facts altered")
    return _escaped(", ".join([*parts, f"now {event['facts']}"]))


def _escaped(text: str) -> str:
    """Text that cannot break out of a line of Markdown."""
    return printable(text).translate({ord(character): f"\\{character}" for character in "\\`*_{}[]<>|#"})
