"""What the verbs that change a host's facts share: the wanted changes, the answers before and after, what is left behind."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlpswap.commands.config import ChangesConfig
from mlpswap.config import to_plain, to_yaml
from mlpswap.errors import ConfigError, FactsError
from mlpswap.facts import FactSet, counted, printable

SHOWN = 10


def wanted_changes(config: ChangesConfig, facts: FactSet) -> tuple[dict[str, str], FactSet]:
    """(the altered facts of `changes` and `file`, `facts` with them). Raises `ConfigError` where the two disagree, and
    `FactsError` for what `facts` does not know.
    """
    changes = dict(config.changes)
    after = facts.alter(changes)
    if config.file is None:
        return changes, after
    listed = dict(FactSet.from_csv(config.file, key=config.key, value=config.value, advice={}).pairs())
    for key in changes.keys() & listed.keys():
        if changes[key] != listed[key]:
            raise ConfigError(
                f"changes and file disagree about '{printable(key)}': '{printable(changes[key])}' and "
                f"'{printable(listed[key])}' ({config.file})"
            )
    try:
        return changes | listed, after.alter(listed)
    except FactsError as error:
        raise FactsError(f"{config.file}: {error}") from error


def asked_templates(task: Any) -> Any:
    """(F,): the trained template with which each fact is asked for, and edited."""
    import torch

    return torch.arange(len(task.facts)) % len(task.table)


def compare(
    model: Any, move: Callable[[Any], None], wanted: FactSet | None = None
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Ask for every fact with one trained template before and after `move`, which changes the model in place.

    wanted: the facts that the model should tell afterwards; by default those that it then says it knows. Returns a row for
    each fact that they alter, and the shares of altered and of other facts that the model tells right, with the number of
    others that it told right before only (`lost`). A host without sentences (SSFR, templates of one's own) is changed all the
    same, and gives no rows.
    """
    import torch

    from mlpswap.benchmark.base import the_task

    before = model.known_facts()
    try:
        task = the_task(model)
    except ConfigError:
        move(model)
        return [], {}
    batch = task.batch(torch.arange(len(before)), asked_templates(task), targets=task.target_ids(before))

    def answers() -> torch.Tensor:
        parts = [batch.rows(start, start + 256) for start in range(0, len(batch), 256)]
        return torch.cat([model.last_scores(p.input_ids, p.attention_mask).argmax(dim=1) for p in parts])

    old = answers()
    move(model)
    new = answers()
    wanted = model.known_facts() if wanted is None else wanted
    changed = list(before.changed(wanted))
    edited = torch.zeros(len(before), dtype=torch.bool)
    edited[changed] = True
    right, was = new == task.target_ids(wanted), old == task.target_ids(before)
    metrics = {
        name: float(right[chosen].double().mean())
        for name, chosen in (("efficacy", edited), ("specificity", ~edited))
        if chosen.any()
    }
    metrics["lost"] = int((was & ~right & ~edited).sum())
    surface = [entry[1] for entry in model.vocabulary.entries]
    rows = [
        {
            "key": before.keys[i],
            "prompt": " ".join(surface[t] for t in batch.input_ids[i][batch.attention_mask[i]].tolist()[1:]),
            "before": surface[int(old[i])],
            "wanted": wanted.value_of(before.keys[i]),
            "after": surface[int(new[i])],
        }
        for i in changed
    ]
    return rows, metrics


def leave(
    folder: Path,
    kind: str,
    config: Any,
    model: Any,
    patch: Any,
    rows: list[dict[str, Any]],
    metrics: Mapping[str, Any],
    began: float,
    **more: Any,
) -> None:
    """Write the run folder: the changed model, the patch that changed it, the settings and what came of them."""
    from mlpswap.runs import results, write_json, write_text

    model.save_pretrained(folder / "model")
    patch.save(folder / "patch.safetensors")
    write_text(folder / "config.yaml", to_yaml(config))
    measured = {**metrics, "patch_norm": patch.norm()}
    content = results(kind, to_plain(config), measured, rows, time.perf_counter() - began, **more)
    write_json(folder / "results.json", content)


def tell(patch: Any, rows: list[dict[str, Any]], metrics: Mapping[str, float], where: Path) -> None:
    """The first rows, the two shares, and which of the files in the folder `where` is which."""
    print(f"{counted(len(rows), 'fact')} altered, weights changed by norm {patch.norm():.4g}")
    for row in rows[:SHOWN]:
        missed = "" if row["after"] == row["wanted"] else f", wanted {printable(row['wanted'])}"
        print(
            f"  {printable(row['prompt'])} ... {printable(row['before'])} -> {printable(row['after'])}{missed}"
        )
    if len(rows) > SHOWN:
        print(f"  and {len(rows) - SHOWN} more, in {where / 'results.json'}")
    for name in ("efficacy", "specificity"):
        if name in metrics:
            print(f"{name:12} {metrics[name]:.4f}")
    if not patch.altered:
        print("note: no fact has another value than before")
    elif metrics.get("efficacy") == 0:
        print("note: no altered fact is answered with its new value; other settings may do better")
    if lost := metrics.get("lost"):
        print(f"note: {counted(int(lost), 'other fact')} told right before, not any more")
    for name, path in (("model", where / "model"), ("patch", where / "patch.safetensors")):
        print(f"{name}: {path}")
