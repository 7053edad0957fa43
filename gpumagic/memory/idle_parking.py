"""Park GPU memory after a time without a cell, from the event loop of a kernel; no thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from gpumagic.errors import DeviceError
from gpumagic.memory.parking import PARKING
from gpumagic.memory.unpark_on_use import MODES
from gpumagic.system import introspection


class IdleParking:
    """Parks when a kernel has been idle for some time.

    ``call_later(seconds, function)`` returns what ``cancel`` takes, as an event loop has them. The
    loop calls while no cell runs and no message of a widget is handled, unless these run the loop
    themselves: so `begin_activity` and `end_activity` are called around them.
    """

    def __init__(
        self,
        shell: Any,
        call_later: Callable[[float, Callable[[], None]], Any],
        cancel: Callable[[Any], None],
    ) -> None:
        self._shell = shell
        self._call_later = call_later
        self._cancel = cancel
        self._timer: Any = None
        self._busy = 0
        #: Seconds without a cell; None while off.
        self.after: float | None = None
        #: Why it did not park when it last tried.
        self.refusal: str | None = None

    def on(self, seconds: float) -> None:
        """Park after so many seconds without a cell, also after the cell that is running."""
        self.after = seconds
        self._restart()

    def off(self) -> None:
        """Stop parking automatically; what is parked stays parked."""
        self.after = None
        self._stop()

    def begin_activity(self) -> None:
        """Note that a cell begins, or a message of a widget is handled."""
        self._busy += 1
        self._stop()

    def end_activity(self, *, all_of_it: bool = False) -> None:
        """Note that one has ended; with ``all_of_it``, that none is left."""
        self._busy = 0 if all_of_it else max(self._busy - 1, 0)
        if not self._busy:
            self._restart()

    def _restart(self) -> None:
        self._stop()
        if self.after is not None and not self._busy:
            self._timer = self._call_later(self.after, self._due)

    def _stop(self) -> None:
        if self._timer is not None:
            self._cancel(self._timer)
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        if self._busy or self.after is None:
            return  # `end_activity` restarts the time
        if PARKING.active or debugger_attached(self._shell):
            self._restart()
            return
        MODES.leave()  # what was parked last has come back without a cell
        try:
            result = PARKING.park(self._shell)
            self.refusal = None
        except (DeviceError, RuntimeError) as error:  # the latter: CUDA has failed
            self.refusal = str(error)
            self._restart()
            return
        if result.storages:
            MODES.enter()
        self._restart()


def debugger_attached(shell: Any) -> bool:
    """Return whether a debugger traces this process, or the front end's is started."""
    debugger = getattr(getattr(shell, "kernel", None), "debugger", None)
    if getattr(debugger, "is_started", False):
        return True
    traced = sys.gettrace()
    if traced is not None and not _is_left_behind(_module_of(traced)):
        return True
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    tool = None if monitoring is None else monitoring.get_tool(monitoring.DEBUGGER_ID)
    return tool is not None and not _is_left_behind(str(tool))


def _module_of(function: Any) -> str:
    """Return the module of a function, or of a callable object."""
    if isinstance(function, (FunctionType, MethodType, BuiltinFunctionType)):
        return str(function.__module__)
    return introspection.module_of(type(function))


def _is_left_behind(name: str) -> bool:
    """Return whether a trace function, or a tool, is debugpy's, whose client has gone."""
    debugpy: Any = sys.modules.get("debugpy")
    ours = name.lstrip("_").startswith(("pydevd", "debugpy"))
    return ours and debugpy is not None and not debugpy.is_client_connected()
