"""A fact set: F keys, their values, and which key has which value. For books: titles, authors, who wrote it.

Facts are atomic names. Their text is kept exactly as it was given; `printable` makes it safe for a terminal.
"""

import difflib
import hashlib
import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mlpswap.errors import FactsError
from mlpswap.randomness import require_generator

logger = logging.getLogger(__name__)

# Control, format (joiners, bidirectional overrides), surrogate, line and paragraph separator.
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    r"""`text` with every character that could act on a terminal written as \xNN, \uNNNN or \UNNNNNNNN."""
    return "".join(_escaped(c) if unicodedata.category(c) in _UNSAFE else c for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def counted(count: int, noun: str) -> str:
    """`1 fact`, `2 facts`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def text_fault(text: str) -> str | None:
    """What keeps `text` from being a key or a value ("empty", "blank", "NUL", "surrogate"), or None."""
    if not text:
        return "empty"
    if not text.strip():
        return "blank"
    if "\0" in text:
        return "NUL"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "surrogate"  # half of a character: no UTF-8 file can hold it
    return None


@dataclass(frozen=True, repr=False)
class FactSet:
    """Key i has the value `values[mapping[i]]`. Immutable; equal and hashed by content.

    Keys are distinct, values are distinct, many keys may share a value, and a value need not be in use.
    A text may be a key and a value at once. Raises `FactsError`, with the position, for anything else.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    mapping: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, items in (("keys", "texts"), ("values", "texts"), ("mapping", "indices of values")):
            object.__setattr__(self, name, check_list(name, getattr(self, name), items))
        if not self.keys:
            raise FactsError("a fact set needs at least one fact: found none")
        _check_names("key", self.keys)
        _check_names("value", self.values)
        if len(self.mapping) != len(self.keys):
            raise FactsError(
                f"a fact set needs one value for each of {len(self.keys)} keys: found {len(self.mapping)}"
            )
        for position, index in enumerate(self.mapping):
            if type(index) is not int or not 0 <= index < len(self.values):
                raise FactsError(
                    f"mapping[{position}] must be an index below {len(self.values)}, from 0: found {index!r}"
                )

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, str]]) -> "FactSet":
        """Facts in the order given, values in order of first appearance. A repeated key is refused.

        Raises `FactsError`, with the position, for what is no pair of texts.
        """
        keys: list[str] = []
        mapping: list[int] = []
        positions: dict[str, int] = {}
        for position, pair in enumerate(check_list("pairs", pairs, "(key, value) pairs")):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise FactsError(f"pair {position} must be a tuple (key, value): found {_shown(pair)}")
            key, value = pair
            check_text(f"value {position}", value)
            keys.append(key)
            mapping.append(positions.setdefault(value, len(positions)))
        return cls(tuple(keys), tuple(positions), tuple(mapping))

    @classmethod
    def from_csv(
        cls, path: str | Path, key: str, value: str, count: int | None = None, **options: Any
    ) -> "FactSet":
        """The facts of a CSV file; the report goes to the log. `options` as in `mlpswap.readers.read_csv`."""
        from mlpswap.readers import read_csv

        facts, report = read_csv(path, key, value, count=count, **options)
        logger.info("%s", report.summary())
        for warning in report.warnings:
            logger.warning("%s: %s", printable(report.source), warning)
        return facts

    @classmethod
    def synthetic(cls, count: int, generator: torch.Generator) -> "FactSet":
        """`count` facts "k0", "k1", ... under a random bijection onto "v0", "v1", ... (task SSFR)."""
        check_count("count", count, 1)
        keys = tuple(f"k{i}" for i in range(count))
        values = tuple(f"v{i}" for i in range(count))
        return cls(keys, values, tuple(_random_order(count, generator)))

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"FactSet({len(self)} facts, {len(self.values)} values, {self.fingerprint[:12]})"

    @cached_property
    def _key_positions(self) -> dict[str, int]:
        return {key: position for position, key in enumerate(self.keys)}

    @cached_property
    def _value_positions(self) -> dict[str, int]:
        return {value: position for position, value in enumerate(self.values)}

    def index(self, key: str) -> int:
        """Position of `key`. Raises `FactsError` with the nearest key."""
        return _position("key", key, self._key_positions)

    def value_index(self, value: str) -> int:
        """Position of `value` among the values. Raises `FactsError` with the nearest value."""
        return _position("value", value, self._value_positions)

    def value_of(self, key: str) -> str:
        """The value of `key`. Raises `FactsError` with the nearest key."""
        return self.values[self.mapping[self.index(key)]]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """(key, value) of every fact, in order."""
        for key, index in zip(self.keys, self.mapping, strict=True):
            yield key, self.values[index]

    def targets(self) -> Int[Tensor, " F"]:
        """`mapping` as an int64 tensor on the CPU."""
        return torch.tensor(self.mapping, dtype=torch.long)

    @property
    def majority_share(self) -> float:
        """Share of the facts that have the commonest value: what guessing it always would score."""
        return max(Counter(self.mapping).values()) / len(self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content as canonical JSON, in hexadecimal."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def alter(self, changes: Mapping[str, str]) -> "FactSet":
        """A new set in which each key of `changes` has the value given there.

        Both must be known: a model has no embedding for a new name. Raises `FactsError` with the nearest one.
        """
        if not isinstance(changes, Mapping):
            raise FactsError(f"changes must be a mapping from keys to values: found {_shown(changes)}")
        mapping = list(self.mapping)
        for key, value in changes.items():
            mapping[self.index(key)] = self.value_index(value)
        return self._remapped(mapping)

    def permute(
        self, generator: torch.Generator, *, indices: Sequence[int] | None = None, derange: bool = False
    ) -> "FactSet":
        """A new set in which the facts at `indices` (default: all) exchange their values at random.

        A fact may keep its value by chance. With `derange` none does; that cannot be, and raises
        `FactsError`, where one value belongs to more than half of these facts.
        """
        chosen = range(len(self)) if indices is None else check_list("indices", indices, "whole numbers")
        if not all(_is_whole(i) and 0 <= i < len(self) for i in chosen) or len(set(chosen)) != len(chosen):
            raise FactsError(f"indices of facts must be distinct and from 0 to {len(self) - 1}")
        old = torch.tensor([self.mapping[i] for i in chosen], dtype=torch.long)
        new = old[_random_order(len(chosen), generator)]
        if derange and chosen:
            new = self._without_fixed_points(old, new, generator)
        mapping = list(self.mapping)
        for position, value in zip(chosen, new.tolist(), strict=True):
            mapping[position] = value
        return self._remapped(mapping)

    def _remapped(self, mapping: Sequence[int]) -> "FactSet":
        """The same keys and values, which need no second check, under another mapping."""
        other = object.__new__(FactSet)
        for name in ("keys", "values", "_key_positions", "_value_positions"):
            other.__dict__[name] = getattr(self, name)
        other.__dict__["mapping"] = tuple(mapping)
        return other

    def _without_fixed_points(self, old: Tensor, new: Tensor, generator: torch.Generator) -> Tensor:
        """Swap each fact that kept its value with a random one for which both then differ.

        If a value belongs to c of n facts, c facts had it and c have it now, the fixed point counted twice:
        at least n - 2c + 1 partners remain. So 2c <= n suffices, and every swap leaves fewer fixed points.
        """
        value, count = Counter(old.tolist()).most_common(1)[0]
        if 2 * count > len(old):
            raise FactsError(
                f"these facts cannot all change their value: '{printable(self.values[value])}' belongs to "
                f"{count} of {len(old)}, more than half"
            )
        for i in (new == old).nonzero().flatten().tolist():
            if new[i] != old[i]:  # mended already as somebody's partner
                continue
            partners = ((old != old[i]) & (new != old[i])).nonzero().flatten()
            pick = torch.randint(len(partners), (), generator=generator, device=generator.device)
            j = int(partners[int(pick)])
            new[i], new[j] = new[j].clone(), new[i].clone()
        return new

    def split(self, generator: torch.Generator, *counts: int) -> tuple[tuple[int, ...], ...]:
        """Disjoint random groups of `counts` facts each, as indices. `FactsError` if too few."""
        if not all(_is_whole(count) and count >= 0 for count in counts) or sum(counts) > len(self):
            wanted = " + ".join(map(str, counts))
            raise FactsError(f"cannot split {len(self)} facts into groups of {wanted}")
        order = iter(_random_order(len(self), generator))
        return tuple(tuple(islice(order, count)) for count in counts)

    def take(self, count: int) -> "FactSet":
        """The first `count` facts, with only the values that they use, in order of appearance."""
        if not _is_whole(count) or not 1 <= count <= len(self):
            raise FactsError(f"cannot take {count} of {len(self)} facts")
        return FactSet.from_pairs(islice(self.pairs(), count))

    def changed(self, other: "FactSet") -> tuple[int, ...]:
        """Indices of the facts whose value differs in `other`, which must have the same keys in order."""
        if not isinstance(other, FactSet):
            raise FactsError(f"a fact set is compared with a fact set: found {_shown(other)}")
        if self.keys != other.keys:
            raise FactsError(
                f"fact sets with different keys cannot be compared: {len(self)} and {len(other)} facts"
            )
        both = zip(self.pairs(), other.pairs(), strict=True)
        return tuple(position for position, (mine, its) in enumerate(both) if mine != its)

    def to_dict(self) -> dict[str, Any]:
        """Plain containers, ready for JSON."""
        return {"keys": list(self.keys), "values": list(self.values), "mapping": list(self.mapping)}

    @classmethod
    def from_dict(cls, data: Any) -> "FactSet":
        """The inverse of `to_dict`. Raises `FactsError` for anything else."""
        fields = ("keys", "values", "mapping")
        if not isinstance(data, Mapping) or set(data) != set(fields):
            found = ", ".join(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
            raise FactsError(f"a saved fact set has the fields keys, values and mapping: found {found}")
        for name in fields:
            if not isinstance(data[name], list):
                raise FactsError(
                    f"field '{name}' of a saved fact set must be a list: found {type(data[name]).__name__}"
                )
        return cls(*(tuple(data[name]) for name in fields))


def check_count(name: str, found: Any, lowest: int, highest: int | None = None) -> None:
    """Raise `FactsError` unless `found` is a whole number in this range."""
    if not _is_whole(found) or found < lowest or (highest is not None and found > highest):
        span = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
        raise FactsError(f"{name} must be a whole number {span}: found {_shown(found)}")


def check_text(name: str, found: object) -> None:
    """Raise `FactsError` unless `found` is text."""
    if not isinstance(found, str):
        raise FactsError(f"{name} must be text: found {_shown(found)}")


def _is_whole(found: object) -> bool:
    return isinstance(found, Integral) and not isinstance(found, bool)


def check_list(name: str, found: Any, items: str) -> tuple[Any, ...]:
    """`found` as a tuple. A text is no list of texts, and neither a mapping nor a set has an order of its own."""
    if isinstance(found, str | bytes | Mapping | set | frozenset) or not isinstance(found, Iterable):
        raise FactsError(f"{name} must be a list of {items}: found {_shown(found)}")
    return tuple(found)


def _shown(found: object) -> str:
    text = repr(found)
    return printable(text[:40] + "..." * (len(text) > 40)) + f" ({type(found).__name__})"


def _check_names(noun: str, names: tuple[str, ...]) -> None:
    seen: dict[str, int] = {}
    for position, name in enumerate(names):
        check_text(f"{noun} {position}", name)
        if fault := text_fault(name):
            raise FactsError(f"{noun} {position} '{printable(name)}' cannot be a name: {fault}")
        first = seen.setdefault(name, position)
        if first != position:
            raise FactsError(f"{noun} '{printable(name)}' stands twice, at positions {first} and {position}")


def _random_order(count: int, generator: torch.Generator) -> list[int]:
    require_generator(generator)
    return torch.randperm(count, generator=generator, device=generator.device).tolist()


def _position(noun: str, name: str, positions: Mapping[str, int]) -> int:
    check_text(f"a {noun}", name)
    if name not in positions:
        # Comparing with everything takes seconds at 65,000 names; near names have nearly the same length.
        candidates = [known for known in positions if abs(len(known) - len(name)) <= 3]
        near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.7)
        near = [known for known in candidates if known.casefold() == name.casefold()] or near
        hint = f"; did you mean '{printable(near[0])}'?" if near else ""
        raise FactsError(
            f"no {noun} '{printable(name)}' among the {len(positions)} {noun}s of the fact set{hint}"
        )
    return positions[name]
