"""Constructions and editors by name; plug-ins can neither shadow nor break what is built in."""

from importlib.metadata import EntryPoint

import pytest

from mlpswap import registry
from mlpswap.errors import RegistryError
from mlpswap.registry import CONSTRUCTIONS, EDITORS, entries, get, labels_of


class Distribution:
    def __init__(self, name):
        self.name, self.version = name, "9.9"


def _point(name, value, distribution):
    return EntryPoint(name, value, EDITORS)._for(Distribution(distribution))


@pytest.fixture
def with_points(monkeypatch):
    """Let the given entry points be installed."""

    def install(*points):
        monkeypatch.setattr(registry, "entry_points", lambda group: list(points))
        registry._entries.cache_clear()

    yield install
    registry._entries.cache_clear()


def test_everything_built_in_loads():
    for group in (CONSTRUCTIONS, EDITORS):
        built_in = [entry for entry in entries(group) if entry.origin == "built-in"]
        assert built_in
        for entry in built_in:
            assert entry.problem() is None
            assert get(group, entry.name).name == entry.name


def test_an_unknown_name_is_refused_with_a_near_one():
    with pytest.raises(RegistryError, match="did you mean 'memit'"):
        get(EDITORS, "memitt")


def test_a_plug_in_cannot_take_a_built_in_name(with_points, caplog):
    with_points(
        _point("memit", "their.package:Memit", "aaa-plugin"),
        _point("memit", "mlpswap_baselines.memit:Memit", "mlpswap"),
    )
    (entry,) = entries(EDITORS)
    assert (entry.origin, entry.shadowed) == ("built-in", ("aaa-plugin",))
    assert "is ignored" in caplog.text


def test_a_broken_plug_in_is_shown_and_harms_nobody(with_points):
    with_points(
        _point("memit", "mlpswap_baselines.memit:Memit", "mlpswap"),
        _point("lost", "no.such.module:Lost", "plugin"),
        _point("poor", "collections:OrderedDict", "plugin"),
    )
    problems = {entry.name: entry.problem() for entry in entries(EDITORS)}
    assert problems["memit"] is None
    assert "ModuleNotFoundError" in problems["lost"]
    assert "lacks" in problems["poor"]
    assert get(EDITORS, "memit").name == "memit"
    with pytest.raises(RegistryError, match="plugin 9.9 cannot be loaded"):
        get(EDITORS, "lost")


def test_a_plug_in_without_a_typed_configuration_or_with_a_name_that_is_no_file_name_is_refused(plugged):
    """Its options could not be checked, and its patches not be saved."""
    plugged(EDITORS, untyped="NoDataclass", **{"a/b": "Coloured"})
    with pytest.raises(RegistryError, match="'untyped'.*dataclass.*found 5"):
        get(EDITORS, "untyped")
    with pytest.raises(RegistryError, match="'a/b'.*letters, digits"):
        get(EDITORS, "a/b")


def test_labels_are_distinct():
    """Even where a name looks like a label, as another entry's own name may."""
    assert labels_of(["rome", "swap", "rome", "rome"]) == ["rome", "swap", "rome-2", "rome-3"]
    assert labels_of(["gd", "gd", "gd-2"]) == ["gd", "gd-3", "gd-2"]
    assert labels_of(["gd", "gd", "GD-2"]) == ["gd", "gd-3", "GD-2"]  # they name files
