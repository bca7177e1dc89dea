"""What constructions and editors have in common: they can be loaded, chosen by name, and configured."""

from dataclasses import fields, replace
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from torch import Tensor

from mlpswap.config import build_options, describe, to_plain
from mlpswap.constructions import Construction
from mlpswap.editing import Editor
from mlpswap.errors import MlpSwapError
from mlpswap.randomness import generator
from mlpswap.registry import CONSTRUCTIONS, EDITORS, Entry
from mlpswap.testing.facts import Example
from mlpswap.testing.hosts import Bench, example_options


def example_config(entry: Entry) -> Any:
    """The configuration of the entry's example."""
    thing = entry.load()
    options = example_options(thing) if entry.group == EDITORS else Example(entry.name).options
    return build_options(thing.Config, options, entry.name)


def weights_of(entry: Entry, config: Any) -> list[Tensor]:
    """What the entry makes of its example with this configuration."""
    if entry.group == CONSTRUCTIONS:
        return list(Example(entry.name).build(**to_plain(config)).parameters())
    bench = Bench()
    result = entry.load().edit(
        bench.adapter, bench.requests[:1], config, statistics=bench.statistics, generator=generator(0)
    )
    return [tensor for change in result.patch.changes for tensor in change.new.values()]


def test_has_the_interface_and_a_description(entry: Entry) -> None:
    """`mlpswap list` shows the first paragraph of its docstring."""
    thing = entry.load()
    assert isinstance(thing, Editor if entry.group == EDITORS else Construction)
    assert thing.name == entry.name
    assert (type(thing).__doc__ or "").strip()


def test_every_option_has_help_and_a_default(entry: Entry) -> None:
    """`{name: ...}` alone is a configuration."""
    schema = entry.load().Config
    for key, _, default, text in describe(schema):
        assert text.strip(), key
        assert default != "(required)", key
    build_options(schema, {}, entry.name)


def test_a_setting_in_the_results_can_be_used_again(entry: Entry) -> None:
    """It is written as YAML and JSON."""
    config = example_config(entry)
    again = build_options(type(config), to_plain(config), entry.name)
    assert to_plain(again) == to_plain(config)


def test_odd_values_are_refused_in_words_or_taken(entry: Entry) -> None:
    """Zero, minus one and an unknown word for each option: an `MlpSwapError` (`ConfigError`, if it is raised before
    anything is computed), or else a sound result. Never another exception, and never NaN.
    """
    config = example_config(entry)
    hints = get_type_hints(type(config))
    for field in fields(config):
        hint = hints[field.name]
        kinds = {int, float, str} & set(get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint])
        for value in {kind(word) for kind in kinds for word in (("?",) if kind is str else (0, -1))}:
            try:
                weights = weights_of(entry, replace(config, **{field.name: value}))
            except MlpSwapError:
                continue
            except Exception as error:
                pytest.fail(f"{field.name} = {value!r}: expected an MlpSwapError, found {error!r}")
            assert all(weight.isfinite().all() for weight in weights), f"{field.name} = {value!r}"
