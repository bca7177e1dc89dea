"""From the path that a user gives to the host that lies there: a saved model, or the run folder that holds one."""

from pathlib import Path
from typing import Any

from mlpswap.errors import ConfigError
from mlpswap.runs import read_json


def model_folder(path: str | Path) -> Path:
    """The folder with the weights: `path` itself, or `model/` of a run folder. Raises `ConfigError`."""
    from mlpswap.model.configuration import MlpSwapConfig

    folder = Path(path)
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            content = read_json(candidate / "config.json", model_type=str)
            if content["model_type"] != MlpSwapConfig.model_type:
                raise ConfigError(
                    f"model = {folder}: a model of type {content['model_type']}; this command takes hosts that mlpswap has "
                    "trained; other language models are edited from Python, with mlpswap.editing.CausalLMAdapter"
                )
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
