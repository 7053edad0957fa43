"""Read results from files, whose content is only data."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.results.deserialize import from_plain
from gpumagic.results.json_file import MOST, VERSION, longest_row
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.sample import LONGEST, SHORTEST, Sample
from gpumagic.results.timing import CudaTiming
from gpumagic.system.paths import user_path
from gpumagic.system.text import harmless

#: The most bytes of a file.
LARGEST = 64 * 2**20
_KINDS: dict[str, Any] = {"CudaTiming": CudaTiming, "MemoryDelta": MemoryDelta}
#: The fields that count what there is at least one of, and those that no result has below zero.
_COUNTS = frozenset({"loops", "repeat", "count", "interval"})
_NOT_NEGATIVE = frozenset(
    {
        *("all", "warmup", "hits", "syncs", "peak", "ooms", "retries", "precision", "outliers"),
        *("compile_time", "compilations", "flops", "peak_share", "energy", "power"),
    }
)


def load(path: str | Path) -> CudaTiming | MemoryDelta:
    """Read a result that ``.save(path)`` has written to a file.

    Nothing in the file is executed, and data that is no result is refused.

    Raises:
        SpecError: the file cannot be read, or contains no result.
    """
    source = user_path(path)
    try:
        if source.exists() and not source.is_file():
            raise SpecError(f"{_shown(path)} is no regular file")
        with source.open(encoding="utf-8-sig") as file:
            text = file.read(LARGEST + 1)
    except FileNotFoundError as error:
        written_by = f"--save {shlex.quote(_shown(path))}, or .save(path), writes it"
        raise SpecError(f"cannot read {_shown(path)}: {error.strerror}; {written_by}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SpecError(f"cannot read {_shown(path)}: {reason}") from None
    if len(text) > LARGEST:
        raise SpecError(f"{_shown(path)} is larger than any result of gpumagic")
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("kind") not in _KINDS:
            raise ValueError("no result")
        if content.get("gpumagic") != VERSION:
            raise SpecError(f"{_shown(path)} was written by another version of gpumagic")
        if (count := longest_row(content["result"])) > MOST:
            raise SpecError(f"{_shown(path)} has {count:,} repeats; at most {MOST:,} are read")
        result: CudaTiming | MemoryDelta = from_plain(
            _KINDS[content["kind"]], content["result"], tolerant=True
        )
        _check_ranges(result)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(
            f"{_shown(path)} holds no result of gpumagic; --save FILE, or .save(path), writes one"
        ) from None
    return result


def _check_ranges(value: Any, name: str = "") -> None:
    """Check that the numbers of a result are such as a measurement gives.

    Raises:
        ValueError: one of them is not.
    """
    if isinstance(value, MemoryDelta) and value.error is None and not value.devices:
        raise ValueError("no device, and no reason for none")
    if isinstance(value, Sample):
        if any(each and not SHORTEST <= each <= LONGEST for each in value.all):
            raise ValueError(f"no clock gives the times of {name}")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _check_ranges(getattr(value, field.name), field.name)
    elif isinstance(value, (tuple, Mapping)):
        if isinstance(value, Mapping) and any(isinstance(k, int) and k < 0 for k in value):
            raise ValueError(f"{name} of a device below 0")
        for each in value.values() if isinstance(value, Mapping) else value:
            _check_ranges(each, name)
    elif isinstance(value, (int, float)):
        least = 1 if name in _COUNTS else 0 if name in _NOT_NEGATIVE else value
        if value < least:
            raise ValueError(f"{name} is {value}")


def _shown(path: str | Path) -> str:
    return harmless(str(path), 200)
