"""`mlpswap apply` and `mlpswap undo`: put a saved patch into a trained host, or take it off again."""

import time
from pathlib import Path
from typing import Any

from mlpswap.commands.changes import compare, leave, tell
from mlpswap.commands.config import PatchConfig
from mlpswap.run_folder import alone, default_folder, run_folder


def apply(config: PatchConfig, **how: Any) -> Path:
    return _move(config, "apply", **how)


def undo(config: PatchConfig, **how: Any) -> Path:
    return _move(config, "undo", **how)


@alone
def _move(
    config: PatchConfig, verb: str, *, config_name: str | None = None, overwrite: bool = False, **_: Any
) -> Path:
    """A new run folder with the changed model and the patch; the model that was read stays as it is."""
    from mlpswap.model import Patch
    from mlpswap.model.find import load_host

    began = time.perf_counter()
    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, verb)
    with run_folder(folder, overwrite=overwrite, inputs=(config.model, config.patch)):
        patch = Patch.load(str(config.patch))
        model = load_host(config.model)
        rows, metrics = compare(model, getattr(patch, verb))
        leave(folder, verb, config, model, patch, rows, metrics, began)
    tell(patch, rows, metrics, folder)
    return folder
