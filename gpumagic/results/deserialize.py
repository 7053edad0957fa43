"""Create results from plain data of another process or a file.

Data that does not match the fields' annotations exactly is refused. The data cannot cause an
import or a call.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

#: The limit of a number: no count of bytes, time or index reaches it.
_LARGEST = 2**63


def from_json(kind: Any, text: str) -> Any:
    """Return a value of the annotation ``kind`` from the JSON of its `plain` form.

    Raises:
        ValueError: the text is no JSON, or not of that kind.
    """
    try:
        return from_plain(kind, json.loads(text, parse_constant=_refuse))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def from_plain(kind: Any, data: Any, *, tolerant: bool = False) -> Any:
    """Return a value of the annotation ``kind`` from its `plain` form; see `from_json`.

    ``tolerant``: of a dataclass, fields with a default may be missing, and unknown ones are
    ignored, since the data may come from another version.

    Raises:
        ValueError: the data is not of that kind.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, data, tolerant)
    if origin in (Union, types.UnionType):
        return _any_of(arguments, data, tolerant)
    if origin is Literal and data in arguments:
        return data
    if origin is tuple and isinstance(data, list):
        return _tuple(arguments, data, tolerant)
    if origin in (Mapping, dict) and isinstance(data, dict):
        key, value = arguments
        return {
            _key(key, each): from_plain(value, item, tolerant=tolerant)
            for each, item in data.items()
        }
    if kind is float and type(data) in (int, float) and abs(data) < _LARGEST:  # nor inf or nan
        return float(data)
    if kind is int and type(data) is int and abs(data) < _LARGEST:
        return data
    if kind in (str, bool, type(None)) and type(data) is kind:
        return data
    raise ValueError(f"{type(data).__name__} where {kind} is expected")


@cache
def _fields(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _dataclass(kind: type, data: Any, tolerant: bool) -> Any:
    fields = _fields(kind)
    if not isinstance(data, dict) or (data.keys() != fields.keys() and not tolerant):
        raise ValueError(f"no fields of a {kind.__name__}")
    known = {
        name: from_plain(hint, data[name], tolerant=tolerant)
        for name, hint in fields.items()
        if name in data
    }
    try:
        return kind(**known)
    except TypeError:  # one without a default is missing
        raise ValueError(f"no fields of a {kind.__name__}") from None


def _any_of(kinds: tuple[Any, ...], data: Any, tolerant: bool) -> Any:
    for kind in kinds:
        try:
            return from_plain(kind, data, tolerant=tolerant)
        except ValueError:
            continue
    raise ValueError(f"{type(data).__name__} where one of {len(kinds)} kinds is expected")


def _tuple(kinds: tuple[Any, ...], data: list[Any], tolerant: bool) -> tuple[Any, ...]:
    if kinds[1:] == (...,):
        return tuple(from_plain(kinds[0], each, tolerant=tolerant) for each in data)
    if len(kinds) != len(data):
        raise ValueError(f"{len(data)} values where {len(kinds)} are expected")
    return tuple(
        from_plain(kind, each, tolerant=tolerant) for kind, each in zip(kinds, data, strict=True)
    )


def _key(kind: Any, text: str) -> Any:
    """Return the key of a mapping from its JSON form, a string."""
    if kind is str:
        return text
    if kind is int and len(text) < 20 and text.removeprefix("-").isdecimal():
        return int(text)
    raise ValueError(f"no key: {text[:20]!r}")
