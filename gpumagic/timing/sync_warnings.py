"""Synchronisations that torch itself warns of: those inside its C++ code, which no wrapper sees.

torch's sync debug mode gives a warning for each. They are read by a filter of Python's warnings:
its pattern is an object of ours, which is asked for each warning and says whether it is ignored. So
nothing is shown, and neither the other filters nor what was warned of before changes.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cuda import torch_cuda

_WAITS = "called a synchronizing CUDA operation"
#: Said once in a process, when the mode is set.
_PROTOTYPE = "Synchronization debug mode is a prototype"
UNKNOWN = "a call of torch's"
_OFF, _WARN = 0, 1
#: The longest name of a call.
_LONGEST = 40


class SynchronizationWarnings:
    """Calls ``seen`` with each Python frame in which torch warns; it returns nothing."""

    def __init__(self, seen: Callable[[FrameType], None]) -> None:
        self._seen = seen
        self._filter: Any = ("ignore", self, UserWarning, None, 0)
        self._is_ours = self._is_on = False
        self._set: Any = None

    def start(self) -> None:
        """Set the mode, unless the user has; and read the warnings."""
        torch_c = torch_cuda.c_functions()
        mode = getattr(torch_c, "_cuda_get_sync_debug_mode", lambda: None)()
        if mode not in (_OFF, _WARN):
            return
        self._is_on, self._is_ours = True, mode == _OFF
        warnings.filters.insert(0, self._filter)  # type: ignore[attr-defined]
        self._set = torch_c._cuda_set_sync_debug_mode
        if self._is_ours:
            self._set(_WARN)
        torch_c._cuda_set_sync_debug_mode = self._set_by_user

    def stop(self) -> None:
        """Put back what was there."""
        if not self._is_on:
            return
        self._is_on = False
        torch_c = torch_cuda.c_functions()
        if self._is_ours:
            self._set(_OFF)
        if torch_c._cuda_set_sync_debug_mode == self._set_by_user:
            torch_c._cuda_set_sync_debug_mode = self._set
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        filters[:] = [each for each in filters if each is not self._filter]

    def update(self) -> None:
        """Stop where the user has put other filters in place: the warnings would be shown."""
        if self._is_on and not any(each is self._filter for each in warnings.filters):
            self.stop()

    def _set_by_user(self, mode: int) -> None:
        """Set the mode; from then on it is the user's, as are the warnings."""
        self._is_ours = False
        self._set(mode)

    def match(self, text: str) -> bool:
        """Return whether a warning is ignored; Python's warnings call this as they call a pattern.

        Those of an earlier mode of the user's are not.
        """
        if not self._is_on or not text.startswith((_WAITS, _PROTOTYPE)):
            return False
        if text.startswith(_WAITS):
            try:
                self._seen(sys._getframe(1))
            except Exception:  # in the user's code
                return self._is_ours
        return self._is_ours


def call_at(frame: FrameType | None) -> str:
    """Return the call that a frame is at, as far as Python knows it.

    A module's function is ``torch.bincount()``, a method ``.numpy()``, on whatever variable.
    """
    while frame is not None and "torch" in frame.f_globals.get("__name__", "").split(".")[:1]:
        frame = frame.f_back
    if frame is None or not hasattr(frame.f_code, "co_positions"):  # before Python 3.11
        return UNKNOWN
    places = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, end, column, last = next(places, (None, None, None, None))
    if line is None or line != end or column is None:
        return UNKNOWN
    written = tracebacks.source_line(frame, line).encode()
    try:
        tree: Any = ast.parse(written[column:last].decode(), mode="eval").body
    except (SyntaxError, ValueError):
        return UNKNOWN
    if not isinstance(tree, ast.Call):
        return UNKNOWN
    function = tree.func
    if isinstance(function, ast.Attribute) and not _is_in_module(function.value, frame):
        return f".{function.attr}()"
    name = f"{ast.unparse(function)}()"
    return name if len(name) <= _LONGEST else UNKNOWN


def _is_in_module(value: ast.expr, frame: FrameType) -> bool:
    """Return whether an expression names a module, or something in one: ``torch.linalg``."""
    while isinstance(value, ast.Attribute):
        value = value.value
    if not isinstance(value, ast.Name):
        return False
    name = value.id
    return name == "torch" or isinstance(frame.f_globals.get(name), ModuleType)
