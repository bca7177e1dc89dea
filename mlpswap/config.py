"""Typed configuration: a dataclass is the schema, a YAML file and `key=value` overrides fill it in.

Defaults stand in the dataclasses, help text beside each field. Whatever is unknown or of the wrong type is refused with
the key's full name.
"""

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from mlpswap.errors import ConfigError, naming

T = TypeVar("T")
MOST_KEYS = 16  # that an error names
MOST_THREADS = 1024
LONGEST = 400  # characters of another library's complaint


def option(default: Any = MISSING, help: str = "", *, factory: Any = MISSING) -> Any:
    """A dataclass field with help text. Use `factory` for mutable defaults and nested dataclasses."""
    if factory is not MISSING:
        return field(default_factory=factory, metadata={"help": help})
    return field(default=default, metadata={"help": help})


def find_config(name: str) -> Path:
    """The file that `--config NAME` means: a path, or the name of a packaged preset (no folder, no suffix)."""
    path = Path(name)
    if path.suffix or path.parent != Path("."):
        try:
            found = path.is_file()
        except OSError as error:
            raise ConfigError(f"config file {name[:40]}... cannot be used: {error.strerror}") from error
        if not found:
            raise ConfigError(f"config file {path} does not exist (working directory: {os.getcwd()})")
        return path
    presets = {preset.stem: preset for preset in packaged_presets()}
    if name not in presets:
        near = difflib.get_close_matches(name, presets, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ConfigError(f"no preset '{name}': there are {', '.join(sorted(presets))}{hint}")
    return presets[name]


def packaged_presets() -> Iterator[Path]:
    """The YAML files of `configs/`, as installed."""
    import mlpswap_configs

    yield from sorted(Path(mlpswap_configs.__path__[0]).glob("*.yaml"))


def packaged_books() -> Path:
    """The packaged `data/books.csv`."""
    import mlpswap_data

    return Path(mlpswap_data.__path__[0]) / "books.csv"


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, as it stands there. Raises `ConfigError` with the file."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        loaded = OmegaConf.to_container(OmegaConf.load(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: brackets nested too deep") from error
    except (OmegaConfBaseException, YAMLError, OSError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {_one_line(error)}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: expected a mapping of keys, found {type(loaded).__name__}")
    return loaded  # type: ignore[return-value]


def load_config(
    schema: type[T],
    source: str | Path | None,
    overrides: Sequence[str] = (),
    texts: Mapping[str, str] | None = None,
) -> T:
    """Merge the defaults of `schema`, the YAML file `source`, the overrides and `texts`, in this order.

    overrides: key=value, the value in YAML. texts: values that are taken as they stand. Raises `ConfigError`
    with the file and the key for unknown keys, wrong types and duplicate keys.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    path = find_config(str(source)) if source is not None else None
    for text in overrides:
        if "=" not in text or text.startswith(("-", "=")):
            raise ConfigError(f"override '{text}' is not of the form key=value")
    merged = OmegaConf.structured(schema)
    # The options of another construction or editor are no defaults for this one: a new mapping replaces the old.
    free = {key for key, kind, *_ in describe(schema) if kind.startswith("dict")}
    where = str(path)
    try:
        if path is not None:
            loaded = load_yaml(path)
            _require_kinds(schema, loaded, where)
            for key in free:
                if OmegaConf.select(OmegaConf.create(loaded), key) is not None:
                    OmegaConf.update(merged, key, {}, merge=False)
            merged = OmegaConf.merge(merged, loaded)
        for text in overrides:
            where = f"override '{text}'"
            given = OmegaConf.from_dotlist([text])
            _require_kinds(schema, OmegaConf.to_container(given), where)
            if text.split("=", 1)[0] in free:
                OmegaConf.update(merged, text.split("=", 1)[0], {}, merge=False)
            merged = OmegaConf.merge(merged, given)
        for key, text in (texts or {}).items():
            where = f"{key} = {text}"
            OmegaConf.update(merged, key, _literal(text))
        where = str(path) if path is not None else "configuration"
        _require_numbers(OmegaConf.to_container(merged), where)
        return OmegaConf.to_object(merged)  # type: ignore[return-value]
    except ConfigError:
        raise
    except RecursionError as error:
        raise ConfigError(f"{where}: brackets nested too deep") from error
    except (OmegaConfBaseException, YAMLError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {_one_line(error)}{_hint(schema, error)}") from error


def _literal(text: str) -> str:
    """`text` escaped so that OmegaConf finds no interpolation in it and gives it back as it was."""
    return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", text)


def _require_kinds(schema: type, content: Any, where: str, prefix: str = "") -> None:
    """Raise `ConfigError`, naming the key, where a mapping, a list or a truth value should stand and something else does.

    OmegaConf takes any number for a truth value.
    """
    for name, kind in _hints(schema).items():
        if isinstance(content, Mapping) and name in content:
            _require_kind(kind, content[name], where, prefix + name)


def _require_kind(kind: Any, value: Any, where: str, key: str) -> None:
    (kind, optional), text = _without_null(kind), isinstance(value, str)
    if text and "${" in value or optional and value is None:
        return
    if is_dataclass(kind) or get_origin(kind) is dict:
        right, noun = isinstance(value, Mapping) or is_dataclass(value), "a mapping, as in {...}"
    elif get_origin(kind) is list:
        right, noun = isinstance(value, Sequence) and not text, "a list, as in [...]"
    else:
        right, noun = kind is not bool or isinstance(value, bool), "true or false"
    if not right:
        raise ConfigError(f"{where}: {key}: expected {noun}, found {value!r}")
    if is_dataclass(kind):
        _require_kinds(kind, value, where, f"{key}.")  # type: ignore[arg-type]
    elif get_origin(kind) is list:
        for place, item in enumerate(value):
            _require_kind(get_args(kind)[0], item, where, f"{key}[{place}]")


def build_options(schema: type[T], options: Mapping[str, Any], where: str) -> T:
    """The dataclass `schema` filled from a mapping: the second step for editors and constructions.

    The keys of a plug-in's own `Config` are known only once its name is; so they travel as a plain mapping until then.
    Raises `ConfigError`.
    """
    from omegaconf import OmegaConf

    try:
        with naming(where):
            _require_kinds(schema, options, where)
            merged = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(dict(options)))
            _require_numbers(OmegaConf.to_container(merged), where)
            return OmegaConf.to_object(merged)  # type: ignore[return-value]
    except ConfigError:
        raise
    except Exception as error:  # OmegaConf raises much, and a plug-in's own checks anything
        raise ConfigError(f"{where}: {_one_line(error)}{_hint(schema, error)}") from error


def _require_numbers(content: Any, where: str, key: str = "") -> None:
    """No setting means anything as NaN, infinity or beyond 64 bits, and most would fail late. Names the key."""
    if isinstance(content, dict):
        for name, value in content.items():
            _require_numbers(value, where, f"{key}.{name}" if key else str(name))
    elif isinstance(content, list):
        for place, value in enumerate(content):
            _require_numbers(value, where, f"{key}[{place}]")
    elif isinstance(content, float) and not math.isfinite(content):
        raise ConfigError(f"{where}: {key} = {content}: expected a finite number")
    elif isinstance(content, int) and abs(content) >= 2**63:
        raise ConfigError(f"{where}: {key} has {content.bit_length()} bits: expected a number below 2^63")


_PLAIN: dict[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a finite number"),
    str: (str, "a text"),
}


def require_plain(config: Any) -> None:
    """For dataclasses that users make in Python: raise `ConfigError`, naming the field, for a value of another type.

    Fields of types other than bool, int, float, str and dataclasses, or these or None, are left alone, and so are those of a
    subclass that have no value yet.
    """
    hints = _hints(type(config))
    for name in (each.name for each in fields(config) if each.name in hints and hasattr(config, each.name)):
        (kind, optional), value = _without_null(hints[name]), getattr(config, name)
        if optional and value is None:
            continue
        if is_dataclass(kind) and not isinstance(value, kind):  # type: ignore[arg-type]
            raise ConfigError(
                f"{name} = {value!r}: expected a {_type_name(kind)}; build_options of mlpswap.config makes a "
                f"{type(config).__name__} from mappings"
            )
        if isinstance(kind, type) and kind in _PLAIN:
            wanted, noun = _PLAIN[kind]
            right = isinstance(value, wanted) and isinstance(value, bool) == (kind is bool)
            if not right or (kind is float and not _is_finite(value)):
                raise ConfigError(f"{name} = {value!r}: expected {noun}")


def _is_finite(number: Any) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that no float can hold
        return False


def check_threads(threads: int | None) -> None:
    """Raise `ConfigError` for a number of CPU threads that no machine has."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise ConfigError(f"threads = {threads}: expected 1 to {MOST_THREADS}")


def to_plain(config: Any) -> dict[str, Any]:
    """A dataclass as nested plain containers, ready for YAML and JSON."""
    return dataclasses.asdict(config)


def to_yaml(config: Any) -> str:
    """The complete resolved configuration as YAML text."""
    import yaml

    return yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)


def describe(schema: type, prefix: str = "") -> Iterator[tuple[str, str, Any, str]]:
    """(key, type, default, help) of every field, nested ones with their full name; one that may be null stands itself, too."""
    hints = _hints(schema)
    for each in fields(schema):
        key, kind = prefix + each.name, hints.get(each.name, each.type)
        inner, optional = _without_null(kind)
        nested = is_dataclass(inner)
        if optional or not nested:
            yield (
                key,
                "null, or a mapping" if nested else _type_name(kind),
                default_of(each),
                each.metadata.get("help", ""),
            )
        if nested:
            yield from describe(inner, key + ".")


def keys_of(schema: type) -> Iterator[str]:
    """Two lines for every field: key and default, then what it means."""
    for key, kind, default, text in describe(schema):
        yield f"  {key}={'null' if default is None else default}  ({kind})"
        yield f"      {text}"


def _hints(schema: type) -> dict[str, Any]:
    """Types of fields by their names, without those of a class that has some which only a type checker can read."""
    try:
        return get_type_hints(schema)
    except Exception:  # whatever they raise when they are evaluated
        own = vars(schema).get("__annotations__", {})
        assert schema.__base__ is not None
        return {name: kind for name, kind in _hints(schema.__base__).items() if name not in own}


def _without_null(kind: Any) -> tuple[Any, bool]:
    """(X, whether null may stand there, too) of X, `X | None` and `Optional[X]`; other unions as they are."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    others = [each for each in options if each is not NoneType]
    return (others[0], len(options) > 1) if len(others) == 1 else (kind, False)


def default_of(each: Field) -> Any:
    """What a field is where nothing is given."""
    if each.default is not MISSING:
        return each.default
    return each.default_factory() if each.default_factory is not MISSING else "(required)"


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else re.sub(r"\b(\w+\.)+", "", str(kind))


def _one_line(error: Exception) -> str:
    """What another library complains of, which may quote a whole file."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    keep = [line for line in lines if not line.startswith(("object_type", "reference_type"))]
    text = "; ".join(line.replace("full_key: ", "key ") for line in keep)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def _hint(schema: type, error: Exception) -> str:
    key = getattr(error, "full_key", None) or getattr(error, "key", None)
    if not key or "did you mean" in str(error).lower():
        return ""
    known = [name for name, *_ in describe(schema)]
    if re.sub(r"\[\d+\].*", "", str(key)) in known:  # it is the value that is wrong
        return ""
    if near := difflib.get_close_matches(str(key), known, n=1):
        return f"; did you mean '{near[0]}'?"
    return f"; expected one of {', '.join(known)}" if 0 < len(known) <= MOST_KEYS else ""
