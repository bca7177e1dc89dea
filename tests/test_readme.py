"""Every command and snippet of the README is run, in the order in which a reader would; the two make commands by .ci/run."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from mlpswap.cli import VERBS, main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python|toml)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
(OTHER_MODELS,) = re.findall(r"^```py\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)

# The full benchmarks belong to slow tests; here two editors and little to edit stand for them.
EDITORS = "editors=[{name: swap}, {name: rome}]"
LESS = {"benchmark": ["splits=[{altered: 13}]", EDITORS], "sequential": ["batches=2", EDITORS]}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working directory like a clone's top level."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("configs", "data"):
        (folder / name).symlink_to(ROOT / name)
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def _run(command: str) -> None:
    words = shlex.split(command, comments=True)
    settings = {}
    while "=" in words[0]:
        name, _, settings[name] = words.pop(0).partition("=")
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
    elif words[0] in ("accelerate", "torchrun"):
        environment = os.environ | settings | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        if words[0] == "torchrun":
            progress = next(Path("runs/ssfr_two/checkpoints").glob("step_*")) / "progress.json"
            assert '"processes": 2' in progress.read_text()
    elif words[0] == "pytest":  # run in tests/test_plugin_example.py, where the editor is installed
        assert words[1:] == ["--pyargs", "mlpswap.testing", "--editor", "nudge"]
    else:
        assert words[0] == "mlpswap", command
        assert main(words[1:] + LESS.get(words[1], [])) == 0


@pytest.mark.timeout(900)  # two minutes where nothing runs beside it
def test_the_readme_from_top_to_bottom(place, capsys, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    snippets: dict = {}
    for language, text in BLOCKS:
        if language == "bash":
            for command in text.strip().splitlines():
                _run(command)
        elif language == "toml":
            assert tomllib.loads(text)["project"]["entry-points"]["mlpswap.editors"] == {
                "nudge": "my_package:Nudge"
            }
        else:
            capsys.readouterr()
            exec(compile(text, "README.md", "exec"), snippets)
            for wanted in re.findall(r"^print\(.*# (.+)$", text, flags=re.MULTILINE):
                assert wanted in capsys.readouterr().out or wanted in README
    assert snippets["mlp"].report.accuracy == 1.0
    assert list((place / "runs/logged/wandb").glob("offline-run-*"))
    for run in ("books_tiny", "ssfr_seed1", "edit_tiny", "edit_loose", "sequential_tiny"):
        assert (place / "runs" / run / "report.html").stat().st_size > 10_000


def test_the_printed_answers_are_the_models(place, capsys):
    """The comments behind the snippet's prints are what they print."""
    swap = next(text for language, text in BLOCKS if language == "python" and "swap_fact_mlp" in text)
    capsys.readouterr()
    exec(compile(swap, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == [line.rsplit("# ", 1)[1] for line in swap.splitlines() if line.startswith("print")]


def test_the_snippet_for_other_models_runs(monkeypatch):
    """Here with a model that has learnt nothing; tests/test_smollm.py checks what it prints."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    from tests.causal_lms import small_gpt2

    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytewise = Tokenizer(models.BPE(vocab=letters, merges=[]))
    bytewise.pre_tokenizer, bytewise.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise)
    model = small_gpt2(len(letters), layers=10)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda _: model)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda _: tokenizer)
    snippets: dict = {}
    exec(compile(OTHER_MODELS, "README.md", "exec"), snippets)
    (change,) = snippets["result"].patch.changes
    assert change.module == "transformer.h.8.mlp.c_proj"
    assert torch.equal(model.transformer.h[8].mlp.c_proj.weight, change.new["weight"])


def test_the_readmes_editor_edits(place, capsys):
    """The plug-in of the README passes through the benchmark's own door."""
    from mlpswap.editing import HostAdapter
    from mlpswap.editing.evaluation import patched_fact_mlp
    from mlpswap.model import MlpSwapForCausalLM

    snippets: dict = {}
    exec(
        compile(
            next(t for lang, t in BLOCKS if lang == "python" and "class Nudge" in t), "README.md", "exec"
        ),
        snippets,
    )
    model = MlpSwapForCausalLM.from_pretrained(place / "runs/books_tiny/model")
    adapter = HostAdapter(model)
    request = adapter.request("The writer of {book} is", "Emma", "Mary Shelley")
    editor = snippets["Nudge"]()
    result = editor.edit(adapter, [request], editor.Config(**editor.example(None)))
    before = model.fact_mlp.down.weight.clone()
    assert not torch.equal(patched_fact_mlp(model, result.patch).down.weight, before)
    result.patch.apply(model)
    assert model.ask("The writer of Emma is") == "Mary Shelley"


def test_every_verb_and_preset_is_mentioned():
    presets = {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    assert all(f"`{preset}`" in README for preset in presets)
    assert {word for word in re.findall(r"mlpswap (\w+)", README) if word in VERBS} >= {
        "train", "swap", "ask", "facts", "benchmark", "list",
    }  # fmt: skip
