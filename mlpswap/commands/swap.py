"""`mlpswap swap`: build a fact MLP for altered facts, put it into a trained host, save model and patch."""

import time
from pathlib import Path
from typing import Any

from mlpswap.commands.changes import compare, leave, tell, wanted_changes
from mlpswap.commands.config import SwapConfig
from mlpswap.run_folder import alone, default_folder, run_folder


@alone
def swap(config: SwapConfig, *, config_name: str | None = None, overwrite: bool = False, **_: Any) -> Path:
    """Nothing is written before the new MLP stands and has answered."""
    from mlpswap.model import Patch, build_for_host
    from mlpswap.model.find import load_host
    from mlpswap.randomness import generator
    from mlpswap.training.setup import check_capacity

    began = time.perf_counter()
    folder = Path(config.output_dir) if config.output_dir else default_folder(config_name, "swap")
    with run_folder(folder, overwrite=overwrite, inputs=(config.model, config.file)):
        model = load_host(config.model)
        _, altered = wanted_changes(config, model.known_facts())
        mlp = build_for_host(
            model, altered, config.construction, config.options, generator=generator(config.seed, "swap")
        )
        check_capacity(mlp, config.allow_partial)
        assert mlp.report is not None
        patch = Patch.between_mlps(model, mlp, editor="swap", facts=altered)
        rows, metrics = compare(model, patch.apply)
        metrics["capacity"] = mlp.report.capacity
        leave(folder, "swap", config, model, patch, rows, metrics, began)
    tell(patch, rows, metrics, folder)
    return folder
