"""`mlpswap swap`: build a fact MLP for altered facts, put it into a trained host, save model and patch."""

from pathlib import Path
from typing import Any

from mlpswap.commands.config import SwapConfig
from mlpswap.errors import RunFolderError
from mlpswap.facts import FactSet, printable


def swap(config: SwapConfig, *, overwrite: bool = False, **_: Any) -> None:
    from mlpswap.model import MlpSwapForCausalLM, swap_fact_mlp
    from mlpswap.model.find import load_host
    from mlpswap.tasks.books import TRAINED, fill

    assert config.output_dir is not None
    target = Path(config.output_dir)
    if target.exists() and any(target.iterdir()) and not overwrite:
        raise RunFolderError(f"output_dir {target} is not empty; choose another, or pass --overwrite")
    model = load_host(config.model)
    before = model.facts
    changes = dict(config.changes)
    if config.file is not None:
        changes |= dict(FactSet.from_csv(config.file, key=config.key, value=config.value).pairs())
    altered = before.alter(changes)
    patch = swap_fact_mlp(model, altered, config.construction, seed=config.seed, **config.options)
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target / "model")
    patch.save(target / "patch.safetensors")

    saved = MlpSwapForCausalLM.from_pretrained(target / "model").eval()
    print(f"{len(before.changed(altered))} facts altered, weights changed by norm {patch.norm():.4g}")
    for number, key in zip(range(10), changes, strict=False):
        prompt = fill(TRAINED[number % len(TRAINED)], key)
        patch.undo(saved)
        old = saved.ask(prompt)
        patch.apply(saved)
        print(f"  {printable(prompt)} ... {printable(old)} -> {printable(saved.ask(prompt))}")
    print(f"model: {target / 'model'}")
    print(f"patch: {target / 'patch.safetensors'}")
