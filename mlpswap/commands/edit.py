"""`mlpswap edit`: change facts of a trained host with any registered editor, save model and patch."""

import time
from collections.abc import Sequence
from itertools import compress, islice
from pathlib import Path
from typing import Any

from mlpswap.commands.changes import SHOWN, asked_templates, compare, leave, tell, wanted_changes
from mlpswap.commands.config import EditConfig
from mlpswap.errors import RequestError
from mlpswap.facts import counted, printable
from mlpswap.run_folder import alone, default_folder, run_folder


@alone
def edit(config: EditConfig, *, config_name: str | None = None, overwrite: bool = False, **_: Any) -> Path:
    """Nothing is written before the edited model has answered. A request that the editor refuses is reported, not fatal,
    unless it refuses them all.
    """
    import torch

    from mlpswap.benchmark.base import the_task
    from mlpswap.benchmark.contest import checked_result, plain_setting, refusals, with_ridge
    from mlpswap.benchmark.entries import settings_of
    from mlpswap.benchmark.splits import Edits, preserved_statistics, requests_of
    from mlpswap.editing import HostAdapter
    from mlpswap.model.find import load_host
    from mlpswap.randomness import generator
    from mlpswap.registry import plug_in

    began = time.perf_counter()
    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, "edit")
    editor, (setting,) = settings_of(config.editor)
    with run_folder(folder, overwrite=overwrite, inputs=(config.model, config.file)):
        model = load_host(config.model)
        task, before = the_task(model), model.known_facts()
        changes, after = wanted_changes(config, before)
        adapter, asked = HostAdapter(model), torch.tensor([before.index(key) for key in changes])
        templates = asked_templates(task)
        requests = requests_of(adapter, task, Edits(asked, asked[:0], after, templates))
        missing = [not told for told in told_already(adapter, requests)]
        chosen, requests = asked[torch.tensor(missing)], list(compress(requests, missing))
        if not requests:
            raise RequestError(
                f"nothing to edit: the model knows and tells {counted(len(asked), 'requested fact')} already"
            )
        others = torch.ones(len(before), dtype=torch.bool)
        others[chosen] = False
        edits = Edits(chosen, others.nonzero().flatten(), after, templates)
        statistics = preserved_statistics(adapter, task, edits)
        setting = with_ridge(setting, statistics)
        with plug_in(f"editor {config.editor['name']} failed"):
            result: Any = editor.edit(
                adapter, requests, setting, statistics=statistics, generator=generator(config.seed, "edit")
            )
            checked_result(model, result)
            refused, notes = refusals(result)
        if known := len(asked) - len(chosen):
            notes.append(
                f"{counted(known, 'request')} asked for what the model tells already, and had no edit"
            )
        if refused and not result.patch.changes:
            raise RequestError(f"nothing was edited: {next(iter(refused.values()))}")
        rows, metrics = compare(model, result.patch.apply, after)
        rows = [row | {"refused": refused.get(row["key"])} for row in rows]
        more = {"setting": plain_setting(setting), "refused": refused, "notes": notes}
        leave(folder, "edit", config, model, result.patch, rows, metrics, began, **more)
    tell(result.patch, rows, metrics, folder)
    for key, reason in islice(refused.items(), SHOWN):
        print(f"refused: {printable(key)}: {printable(reason)}")
    if len(refused) > SHOWN:
        print(f"refused: {counted(len(refused) - SHOWN, 'more request')}, in {folder / 'results.json'}")
    for note in notes:
        print(f"note: {note}")
    return folder


def told_already(adapter: Any, requests: Sequence[Any]) -> list[bool]:
    """Which of the requests ask for what the model knows and tells. To write that once more could only do harm."""
    said = adapter.predict(adapter.prompts(requests)).tolist()
    return [
        each.unchanged and each.target_ids == (token,) for each, token in zip(requests, said, strict=True)
    ]
