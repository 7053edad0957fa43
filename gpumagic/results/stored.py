"""Results in files, as JSON: written by ``.save(path)``, read by `load`. They are only data."""

from __future__ import annotations

import dataclasses
import json
import secrets
import shlex
import shutil
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from gpumagic.errors import SpecError
from gpumagic.results.base import Result, plain
from gpumagic.system.paths import output_path, user_path
from gpumagic.system.text import harmless

if TYPE_CHECKING:
    from gpumagic.results.memory import MemoryDelta
    from gpumagic.results.timing import CudaTiming


@dataclass(frozen=True)
class Conditions:
    """The machine and the versions of a measurement; None for each that was not known."""

    #: UTC, ISO 8601: ``2026-01-31T12:00:00+00:00``.
    date: str | None = None
    #: Names of the devices that the measured code used, by CUDA ordinal.
    devices: Mapping[int, str] = field(default_factory=dict)
    #: SM clocks at the end, by CUDA ordinal, in MHz; empty where NVML was not in use.
    clocks: Mapping[int, int] = field(default_factory=dict)
    #: Version of the NVIDIA driver.
    driver: str | None = None
    #: Version of torch, and of the CUDA that it was built with.
    torch: str | None = None
    cuda: str | None = None
    python: str | None = None
    gpumagic: str | None = None


def differences(now: Conditions | None, before: Conditions | None) -> tuple[str, ...]:
    """Return the differences between two measurements, a clause each: device, driver, torch, CUDA.

    What is unknown in either is not compared; nor are devices where one of them has used none:
    then the code has changed, not the machine.
    """
    if now is None or before is None:
        return ()
    pairs = (
        ("device", _devices(now), _devices(before)),
        ("driver", now.driver, before.driver),
        ("torch", now.torch, before.torch),
        ("CUDA", now.cuda, before.cuda),
    )
    return tuple(
        f"{title} {ours} instead of {theirs}"
        for title, ours, theirs in pairs
        if ours and theirs and ours != theirs
    )


def _devices(conditions: Conditions) -> str:
    return ", ".join(sorted({*conditions.devices.values()}))


#: Written into each file; `load` refuses any other number.
_VERSION = 2
#: The most bytes of a file.
_LARGEST = 64 * 2**20
#: The file of each kind.
_KINDS = {"CudaTiming": "gpumagic.results.timing", "MemoryDelta": "gpumagic.results.memory"}


class StorableResult(Result):
    """A result that can be written to a file."""

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON to ``path``, for `gpumagic.load` and ``--against``.

        The file is replaced atomically: an interrupt does not change an old one.

        Raises:
            SpecError: the path cannot be that of a file, or the file cannot be written.
        """
        target = output_path(path)
        content = {"gpumagic": _VERSION, "kind": type(self).__name__, "result": plain(self)}
        text = json.dumps(content, indent=1) + "\n"
        beside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}")
        try:
            try:
                with beside.open("x", encoding="utf-8") as file:
                    file.write(text)
                if target.exists():
                    shutil.copymode(target, beside)
                beside.replace(target)
            finally:
                beside.unlink(missing_ok=True)
        except OSError as error:
            raise SpecError(f"cannot write {_shown(path)}: {error.strerror or error}") from None
        return target


def load(path: str | Path) -> CudaTiming | MemoryDelta:
    """Read a result that ``.save(path)`` has written to a file.

    Nothing in the file is executed, and data that is no result is refused.

    Raises:
        SpecError: the file cannot be read, or contains no result.
    """
    source, how = user_path(path), "--save FILE, or .save(path), writes one"
    try:
        if source.exists() and not source.is_file():
            raise SpecError(f"{_shown(path)} is no regular file")
        with source.open(encoding="utf-8-sig") as file:
            text = file.read(_LARGEST + 1)
    except FileNotFoundError as error:
        how = how.replace("FILE", shlex.quote(_shown(path)))
        raise SpecError(f"cannot read {_shown(path)}: {error.strerror}; {how}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SpecError(f"cannot read {_shown(path)}: {reason}") from None
    if len(text) > _LARGEST:
        raise SpecError(f"{_shown(path)} is larger than any result of gpumagic")
    try:
        content = json.loads(text, parse_constant=_refuse)
        if not isinstance(content, dict):
            raise ValueError("no result")
        if content.get("gpumagic") != _VERSION:
            raise SpecError(f"{_shown(path)} was written by another version; save it again")
        kind = content["kind"]
        result: CudaTiming | MemoryDelta = _read(
            getattr(import_module(_KINDS[kind]), kind), content["result"]
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SpecError(f"{_shown(path)} holds no result of gpumagic; {how}") from None
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


def _shown(path: str | Path) -> str:
    return harmless(str(path), 200)
