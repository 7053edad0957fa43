"""Results read from files, which ``.save(path)`` writes as JSON."""

from __future__ import annotations

import json
import shlex
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gpumagic.errors import SpecError
from gpumagic.results.devices import MOST_DEVICES
from gpumagic.results.memory.memory_delta import MemoryDelta
from gpumagic.results.storable import VERSION
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.system.user_paths import opened, shown

#: The most characters of a file.
_MOST_CHARACTERS = 64 * 2**20
#: Numbers in a file are below this, as the numbers of clocks and counters are.
_LARGEST_NUMBER = 1e20
#: The most notes of a result in a file.
_MOST_NOTES = 300
_KINDS = {kind.__name__: kind for kind in (CudaTiming, MemoryDelta)}


def load(path: str | Path) -> CudaTiming | MemoryDelta:
    """Read a result that ``.save(path)`` has written to a file.

    Nothing in the file is executed, and data that is no result is refused.

    Raises:
        SpecError: the file cannot be read, or contains no result.

    Examples:
        >>> timing = gpumagic.cudatime("sum(range(100))", n=1, r=1)
        >>> path = timing.save("step.json")
        >>> gpumagic.load("step.json") == timing
        True

    .. versionadded:: 0.1.0
    """
    how = f"--save {shlex.quote(shown(path))}, or .save(path), writes one"
    try:
        with opened(path) as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SpecError(f"cannot read {shown(path)}: {reason}; {how}") from None
    if len(text) > _MOST_CHARACTERS:
        raise SpecError(f"{shown(path)} is larger than any result of gpumagic")
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("no result")
        if content.get("gpumagic") != VERSION:
            raise SpecError(f"{shown(path)} was written by another version; save it again")
        result: CudaTiming | MemoryDelta = _read(_KINDS[content["kind"]], content["result"])
        if isinstance(result, CudaTiming):
            kernels = () if result.kernels is None else result.kernels.kernels
            if min(result.loops, result.repeat, *(each.count for each in kernels)) < 1:
                raise ValueError("no run")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SpecError(f"{shown(path)} holds no result of gpumagic; {how}") from None
    return result


def _read(kind: object, data: object) -> Any:
    """Return a value of an annotation from its form in JSON; it causes no import and no call.

    Raises:
        ValueError: the data is not of that kind.
        TypeError: a field without a default is missing.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(data, dict):
        hints = _hints(kind)
        return kind(**{name: _read(hints[name], data[name]) for name in hints if name in data})
    if origin in (Union, types.UnionType):
        for each in arguments:
            with suppress(ValueError):
                return _read(each, data)
    if origin is tuple and isinstance(data, list):
        if arguments[0] is str and len(data) > _MOST_NOTES:
            raise ValueError("too many notes")
        kinds = arguments[:1] * len(data) if arguments[1:] == (...,) else arguments
        return tuple(_read(each, item) for each, item in zip(kinds, data, strict=True))
    if origin in (Mapping, dict) and isinstance(data, dict):
        if len(data) > MOST_DEVICES:
            raise ValueError("too many devices")
        key, value = arguments
        return {key(name): _read(value, item) for name, item in data.items()}
    if origin is Literal and data in arguments:
        return data
    if isinstance(data, (int, float)) and not abs(data) < _LARGEST_NUMBER:
        raise ValueError(f"{data} is no number that is measured")  # nor is NaN
    if kind is float and type(data) is int:
        return float(data)
    if kind in (str, bool, int, float, type(None)) and type(data) is kind:
        return data
    raise ValueError(f"{type(data).__name__} where {kind} is expected")


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}
