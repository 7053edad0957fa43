"""Read results from files, which ``.save(path)`` writes as JSON. They are only data."""

from __future__ import annotations

import dataclasses
import json
import shlex
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from gpumagic.errors import SpecError
from gpumagic.results.base import VERSION, shown
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.timing import CudaTiming
from gpumagic.system.paths import user_path

#: The most bytes of a file.
_LARGEST = 64 * 2**20
_KINDS = {kind.__name__: kind for kind in (CudaTiming, MemoryDelta)}


def load(path: str | Path) -> CudaTiming | MemoryDelta:
    """Read a result that ``.save(path)`` has written to a file.

    Nothing in the file is executed, and data that is no result is refused.

    Raises:
        SpecError: the file cannot be read, or contains no result.
    """
    source, how = user_path(path), "--save FILE, or .save(path), writes one"
    try:
        if source.exists() and not source.is_file():
            raise SpecError(f"{shown(path)} is no regular file")
        with source.open(encoding="utf-8-sig") as file:
            text = file.read(_LARGEST + 1)
    except FileNotFoundError as error:
        how = how.replace("FILE", shlex.quote(shown(path)))
        raise SpecError(f"cannot read {shown(path)}: {error.strerror}; {how}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SpecError(f"cannot read {shown(path)}: {reason}") from None
    if len(text) > _LARGEST:
        raise SpecError(f"{shown(path)} is larger than any result of gpumagic")
    try:
        content = json.loads(text, parse_constant=_refuse)
        if not isinstance(content, dict):
            raise ValueError("no result")
        if content.get("gpumagic") != VERSION:
            raise SpecError(f"{shown(path)} was written by another version; save it again")
        result: CudaTiming | MemoryDelta = _read(_KINDS[content["kind"]], content["result"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SpecError(f"{shown(path)} holds no result of gpumagic; {how}") from None
    return result


def _read(kind: Any, data: Any) -> Any:
    """Return a value of an annotation from its `plain` form; it causes no import and no call.

    Raises:
        ValueError: the data is not of that kind.
        TypeError: a field without a default is missing.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(data, dict):
        hints, names = get_type_hints(kind), [field.name for field in dataclasses.fields(kind)]
        return kind(**{name: _read(hints[name], data[name]) for name in names if name in data})
    if origin in (Union, types.UnionType):
        return _any_of(arguments, data)
    if origin is tuple and isinstance(data, list):
        kinds = arguments[:1] * len(data) if arguments[1:] == (...,) else arguments
        return tuple(_read(each, item) for each, item in zip(kinds, data, strict=True))
    if origin in (Mapping, dict) and isinstance(data, dict):
        key, value = arguments
        return {key(name): _read(value, item) for name, item in data.items()}
    if origin is Literal and data in arguments:
        return data
    if kind is float and type(data) is int:
        return float(data)
    if kind in (str, bool, int, float, type(None)) and type(data) is kind:
        return data
    raise ValueError(f"{type(data).__name__} where {kind} is expected")


def _any_of(kinds: tuple[Any, ...], data: Any) -> Any:
    for kind in kinds:
        try:
            return _read(kind, data)
        except ValueError:
            continue
    raise ValueError(f"{type(data).__name__} where one of {len(kinds)} kinds is expected")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
