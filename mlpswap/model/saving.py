"""Save a host so that it comes back to the last bit, and refuse whatever does not belong together.

Stock loading draws missing tensors at random and prints a table about it. Here `tensors.json` lists the
SHA-256 of every tensor and of every file that loading reads, and all of them must fit before anything is
parsed. Nothing is pickled, nothing is fetched.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mlpswap.errors import CheckpointError, ConfigError, NonFiniteError, RunFolderError
from mlpswap.facts import FactSet
from mlpswap.model.card import model_card
from mlpswap.model.configuration import MlpSwapConfig
from mlpswap.model.tokenization import MlpSwapTokenizer
from mlpswap.runs import read_json, write_tensors

WEIGHTS, CONFIG, RECORD = "model.safetensors", "config.json", "tensors.json"
FACTS, HISTORY, VOCABULARY = "facts.json", "history.json", "vocabulary.json"
CARD, GENERATION = "README.md", "generation_config.json"


def tensor_sha256(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes in row-major order, whatever its device."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()


def parameters_sha256(model: nn.Module) -> str:
    """One hash over names, types, shapes and bytes of all parameters."""
    parts = [
        (name, str(p.dtype), list(p.shape), tensor_sha256(p)) for name, p in sorted(model.named_parameters())
    ]
    return json_sha256(parts)


def require_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise `NonFiniteError` with the names of the tensors that hold NaN or infinity."""
    bad = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise NonFiniteError(f"{what}: NaN or infinity in {', '.join(bad)}")


def json_sha256(content: Any) -> str:
    """SHA-256 of the content as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class StrictCheckpoints:
    """`save_pretrained` and `from_pretrained` of the host; see the module's first lines."""

    if TYPE_CHECKING:  # given by the model
        config: MlpSwapConfig
        facts: FactSet | None
        tokenizer: MlpSwapTokenizer | None
        history: tuple[dict[str, Any], ...]
        generation_config: Any

    def state_sha256(self) -> str:
        """See `parameters_sha256`."""
        return parameters_sha256(self)  # type: ignore[arg-type]

    def save_pretrained(
        self,
        save_directory: str | os.PathLike,
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        *,
        allow_nonfinite: bool = False,
        max_shard_size: int | str | None = None,
    ) -> None:
        """Write the folder: first beside its place, then into it, so that a crash leaves no half of it.

        Weights are one file whatever `max_shard_size`. Raises `NonFiniteError` for NaN or infinity unless
        `allow_nonfinite`, `RunFolderError` if the folder cannot be written.
        """
        if not is_main_process:
            return
        if not os.fspath(save_directory):
            raise RunFolderError("the model cannot be saved: the name of the folder is empty")
        tensors = dict(self.state_dict() if state_dict is None else state_dict)  # type: ignore[attr-defined]
        if self.config.tie_word_embeddings:
            tensors.pop("lm_head.weight", None)
        if not allow_nonfinite:
            require_finite(tensors, "the model cannot be saved")
        folder = Path(os.path.abspath(save_directory))
        beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            self._write(beside, tensors)
            if folder.exists():  # it may hold files of others: replace ours one by one, the record last
                for path in sorted(beside.iterdir(), key=lambda path: path.name == RECORD):
                    os.replace(path, folder / path.name)
            else:
                os.rename(beside, folder)
        except (OSError, SafetensorError) as error:
            raise RunFolderError(f"the model cannot be saved to {folder}: {error}") from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _write(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        self.config.architectures = [type(self).__name__]
        self.config.dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
        self.config.save_pretrained(folder)
        self.generation_config.save_pretrained(folder)
        write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
        (folder / HISTORY).write_text(json.dumps(self.history, indent=1) + "\n", encoding="ascii")
        if self.facts is not None:
            (folder / FACTS).write_text(json.dumps(self.facts.to_dict()) + "\n", encoding="ascii")
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        (folder / CARD).write_text(model_card(self.config, self.facts, self.history), encoding="utf-8")
        files = [path for path in sorted(folder.iterdir()) if path.name not in (WEIGHTS, CARD)]
        record = {
            "config": json_sha256(self.config.own_fields()),
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
            "tensors": {name: tensor_sha256(tensor) for name, tensor in sorted(tensors.items())},
        }
        (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="ascii")

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike,
        *args: Any,
        config: MlpSwapConfig | None = None,
        output_loading_info: bool = False,
        allow_nonfinite: bool = False,
        **kwargs: Any,
    ):
        """The model saved in a local folder, with its facts, tokenizer and history, in evaluation mode.

        Further arguments are those of transformers, such as `dtype` and `device_map`. Raises
        `CheckpointError`, with file and tensor, for anything missing, added, cut, changed or of another
        shape, and `NonFiniteError` for NaN or infinity unless `allow_nonfinite`.
        """
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a folder: models are loaded from local folders only")
        record = _read_record(folder)
        config = config if isinstance(config, MlpSwapConfig) else _read_config(folder)
        tensors = cls._verify(folder, config, record)
        if not allow_nonfinite:
            require_finite(tensors, f"{folder / WEIGHTS} cannot be used")
        kwargs |= {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
        model, info = super().from_pretrained(folder, *args, config=config, **kwargs)  # type: ignore[misc]
        if any(info.values()):
            raise CheckpointError(f"{folder / WEIGHTS} did not load in full: {info}")
        for parameter in model.parameters():  # off the mapped file, whose alignment would change roundings
            parameter.data = parameter.data.clone()
        model.freeze()  # transformers makes every parameter that it loads trainable
        if FACTS in record["files"]:
            model.facts = FactSet.from_dict(read_json(folder / FACTS))
        if VOCABULARY in record["files"]:
            model.tokenizer = MlpSwapTokenizer.from_pretrained(folder)
        model.history = tuple(read_json(folder / HISTORY))
        return (model, info) if output_loading_info else model

    @classmethod
    def _verify(cls, folder: Path, config: MlpSwapConfig, record: dict[str, Any]) -> dict[str, Tensor]:
        path = folder / WEIGHTS
        if not path.exists():
            pickled = any(folder.glob("pytorch_model*.bin"))
            raise CheckpointError(
                f"{folder} has no {WEIGHTS}{'; pickled weights are not read' if pickled else ''}"
            )
        tensors = read_tensors(path, record["tensors"])
        with torch.device("meta"):
            shapes = {name: t.shape for name, t in cls(config).state_dict().items()}  # type: ignore
        if config.tie_word_embeddings:
            del shapes["lm_head.weight"]
        _same_names(path, set(tensors), set(shapes), CONFIG)
        for name, tensor in tensors.items():
            if tensor.shape != shapes[name]:
                found, wanted = tuple(tensor.shape), tuple(shapes[name])
                raise CheckpointError(f"{path}: tensor {name} is {found}, but {CONFIG} asks for {wanted}")
        if json_sha256(config.own_fields()) != record["config"]:
            raise CheckpointError(f"{folder / CONFIG} is not the one that was saved ({RECORD})")
        return tensors


def read_tensors(path: Path, hashes: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, each as its SHA-256 says. Raises `CheckpointError`."""
    try:
        with safe_open(path, framework="pt") as file:
            _same_names(path, set(file.keys()), set(hashes), "its record")
            tensors = {name: file.get_tensor(name) for name in hashes}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    for name, tensor in tensors.items():
        if tensor_sha256(tensor) != hashes[name]:
            raise CheckpointError(f"{path}: tensor {name} is not the one that was saved (SHA-256 differs)")
    return tensors


def _same_names(path: Path, found: set[str], wanted: set[str], where: str) -> None:
    for names, words in ((wanted - found, "lacks"), (found - wanted, "has the unexpected")):
        if names:
            shown = ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise CheckpointError(f"{path} {words} tensor {shown}, according to {where}")


def _read_record(folder: Path) -> dict[str, Any]:
    """The record of a saved model, once every file in it has proved to be the one that was saved."""
    path = folder / RECORD
    record = read_json(path, config=str, files=dict, tensors=dict)
    if not {CONFIG, GENERATION, HISTORY} <= record["files"].keys():
        raise CheckpointError(f"{path} is not the record of a saved model")
    for name, wanted in record["files"].items():
        side = folder / name
        try:
            found = hashlib.sha256(side.read_bytes()).hexdigest()
        except FileNotFoundError:
            raise CheckpointError(f"{side} is missing ({RECORD})") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{side} cannot be read: {error}") from error
        if found != wanted:
            raise CheckpointError(f"{side} is not the one that was saved ({RECORD})")
    return record


def _read_config(folder: Path) -> MlpSwapConfig:
    try:
        return MlpSwapConfig.from_dict(read_json(folder / CONFIG))
    except (ConfigError, StrictDataclassError) as error:
        raise CheckpointError(f"{folder / CONFIG}: {' '.join(str(error).split())}") from error
