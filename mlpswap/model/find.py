"""From the path that a user gives to the host that lies there: a saved model, or the run folder that holds one."""

from pathlib import Path
from typing import Any

from mlpswap.errors import ConfigError


def model_folder(path: str | Path) -> Path:
    """The folder with the weights: `path` itself, or `model/` of a run folder. Raises `ConfigError`."""
    folder = Path(path)
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    if (folder / "config.yaml").is_file():
        raise ConfigError(f"model = {folder}: the run is not finished, there is no {folder / 'model'} yet")
    raise ConfigError(
        f"model = {folder}: expected a run folder or a saved model (no config.json, nor model/config.json)"
    )


def load_host(path: str | Path | None) -> Any:
    """The trained host at `path`, with its facts and its tokenizer, checked tensor by tensor."""
    from mlpswap.model import MlpSwapForCausalLM

    if path is None:
        raise ConfigError("model is missing; pass model=RUN_FOLDER")
    folder = model_folder(path)
    model = MlpSwapForCausalLM.from_pretrained(folder).eval()
    if model.facts is None or model.tokenizer is None:
        raise ConfigError(f"model = {folder}: it was saved without facts or tokenizer")
    return model
