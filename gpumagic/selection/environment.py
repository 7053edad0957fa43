"""The variables that choose devices: as they stand, as they were at the start, and taken back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.visible_devices import MASK, ORDER

VARIABLES = (MASK, ORDER)

#: What choices have changed: by name, what stood there before the first and after the last.
_changed: dict[str, tuple[str | None, str | None]] = {}


def now() -> dict[str, str | None]:
    """The variables as they stand; None for one that is not set."""
    return {name: os.environ.get(name) for name in VARIABLES}


def write(change: Mapping[str, str | None]) -> None:
    """Write a choice."""
    for name, value in change.items():
        found = os.environ.get(name)
        before, ours = _changed.get(name, (found, found))
        # What the user has written since our last choice is what stood there before this one.
        _changed[name] = (before if found == ours else found, value)
        _set(name, value)


def restore(before: Mapping[str, str | None]) -> None:
    """Put the variables back to what `now` told earlier."""
    for name, value in before.items():
        _set(name, value)
        first, _ = _changed.pop(name, (value, None))
        if first != value:  # an earlier choice holds again
            _changed[name] = (first, value)


def made() -> bool:
    """Whether a choice was made that holds."""
    return MASK in _changed


def take_back() -> None:
    """Undo all choices; what the user has written since stays."""
    for name, (before, ours) in _changed.items():
        if os.environ.get(name) == ours:
            _set(name, before)
    _changed.clear()


def _set(name: str, value: str | None) -> None:
    if torch_cuda.initialized():
        # torch 2.6 counts devices by the variable when it is first asked, and keeps that: let it
        # count while the variable is still what CUDA has read.
        torch_cuda.require().cuda.device_count()
    environ: Any = os.environ
    replaced = type(environ) is dict  # by the user: what is written to it stays in Python
    if value is None:
        os.environ.pop(name, None)
        if replaced:
            os.unsetenv(name)
    else:
        os.environ[name] = value
        if replaced:
            os.putenv(name, value)


# --- at the start ------------------------------------------------------------------------------


def started_with() -> dict[str, str | None]:
    """The variables that this process was started with."""
    return {name: _started_with.get(name) for name in VARIABLES}


def environment_at_start() -> Mapping[str, str]:
    """Every variable that this process was started with (see `started_with`)."""
    return dict(_started_with)


def start_from(values: Mapping[str, str | None]) -> None:
    """Take these for the variables of the start: this process goes on for an earlier one."""
    for name, value in values.items():
        _started_with.pop(name, None)
        if value is not None:
            _started_with[name] = value


def _read_start() -> dict[str, str]:
    """The environment of this process's start; where the system does not keep it, the present one.

    On Linux ``/proc/self/environ`` keeps it, whatever has been set since.
    """
    try:
        raw = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


_started_with = _read_start()
