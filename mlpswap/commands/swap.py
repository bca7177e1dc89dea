"""`mlpswap swap`: build a fact MLP for altered facts, put it into a trained host, save model and patch."""

import time
from pathlib import Path
from typing import Any

from mlpswap.commands.config import SwapConfig
from mlpswap.config import to_plain, to_yaml
from mlpswap.errors import ConfigError
from mlpswap.facts import FactSet, counted, printable

SHOWN = 10


def swap(config: SwapConfig, *, config_name: str | None = None, overwrite: bool = False, **_: Any) -> Path:
    """Nothing is written before the new MLP stands and has answered."""
    from mlpswap.model import Patch, build_for_host
    from mlpswap.model.find import load_host
    from mlpswap.randomness import generator
    from mlpswap.runs import default_folder, results, run_folder, write_json, write_text
    from mlpswap.training.setup import check_capacity

    began = time.perf_counter()
    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, "swap")
    with run_folder(folder, overwrite=overwrite, inputs=(config.model, config.file)):
        model = load_host(config.model)
        before = model.known_facts()
        altered = before.alter(wanted_changes(config))
        mlp = build_for_host(
            model, altered, config.construction, config.options, generator=generator(config.seed, "swap")
        )
        check_capacity(mlp, config.allow_partial)
        assert mlp.report is not None
        patch = Patch.between_mlps(model, mlp, editor="swap", facts=altered)
        rows, metrics = compare(model, patch, altered)
        model.save_pretrained(folder / "model")
        patch.save(folder / "patch.safetensors")
        write_text(folder / "config.yaml", to_yaml(config))
        metrics |= {"capacity": mlp.report.capacity, "patch_norm": patch.norm()}
        content = results("swap", to_plain(config), metrics, rows, time.perf_counter() - began)
        write_json(folder / "results.json", content)
    print(f"{counted(len(patch.altered), 'fact')} altered, weights changed by norm {patch.norm():.4g}")
    for row in rows[:SHOWN]:
        print(f"  {printable(row['prompt'])} ... {printable(row['before'])} -> {printable(row['after'])}")
    if len(rows) > SHOWN:
        print(f"  and {len(rows) - SHOWN} more, in {folder / 'results.json'}")
    for name in ("efficacy", "specificity"):
        if metrics.get(name) is not None:
            print(f"{name:12} {metrics[name]:.4f}")
    print(f"model: {folder / 'model'}")
    print(f"patch: {folder / 'patch.safetensors'}")
    return folder


def wanted_changes(config: SwapConfig) -> dict[str, str]:
    """The altered facts of `changes` and `file`. Raises `ConfigError` where the two disagree."""
    changes = dict(config.changes)
    if config.file is None:
        return changes
    listed = dict(FactSet.from_csv(config.file, key=config.key, value=config.value).pairs())
    for key in changes.keys() & listed.keys():
        if changes[key] != listed[key]:
            raise ConfigError(
                f"changes and file disagree about '{printable(key)}': '{printable(changes[key])}' and "
                f"'{printable(listed[key])}' ({config.file})"
            )
    return changes | listed


def compare(model: Any, patch: Any, altered: FactSet) -> tuple[list[dict[str, str]], dict[str, float]]:
    """Apply the patch, and ask for every fact with one trained template before and after.

    Returns a row for each altered fact, and the shares of altered and of other facts that the patched model tells
    right. A host without sentences (SSFR, templates of one's own) is patched all the same, and gives no rows.
    """
    import torch

    from mlpswap.benchmark.base import the_task

    try:
        task = the_task(model)
    except ConfigError:
        patch.apply(model)
        return [], {}
    facts = torch.arange(len(task.facts))
    batch = task.batch(facts, facts % len(task.table), targets=task.target_ids(altered))

    @torch.no_grad()
    def answers() -> torch.Tensor:
        parts = [batch.rows(start, start + 256) for start in range(0, len(batch), 256)]
        return torch.cat(
            [model(p.input_ids, attention_mask=p.attention_mask).logits[:, -1].argmax(dim=1) for p in parts]
        )

    old = answers()
    patch.apply(model)
    new = answers()
    edited = torch.zeros(len(facts), dtype=torch.bool)
    edited[[altered.index(key) for key, *_ in patch.altered]] = True
    right = (new == batch.labels[:, -1]).double()
    metrics = {
        name: float(right[chosen].mean())
        for name, chosen in (("efficacy", edited), ("specificity", ~edited))
        if chosen.any()
    }
    surface = [entry[1] for entry in model.vocabulary.entries]
    rows = [
        {
            "key": key,
            "prompt": " ".join(surface[t] for t in batch.input_ids[i][batch.attention_mask[i]].tolist()[1:]),
            "before": surface[int(old[i])],
            "wanted": wanted,
            "after": surface[int(new[i])],
        }
        for key, _, wanted in patch.altered
        for i in (altered.index(key),)
    ]
    return rows, metrics
