"""Park GPU memory after a time without a cell, from the event loop of a kernel; no thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpumagic.errors import DeviceError
from gpumagic.memory.parking import PARKING


class IdleParking:
    """A timer that parks, restarted by every cell and every message of a widget.

    ``call_later(seconds, function)`` returns what ``cancel`` takes, as an event loop has them.
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
        #: Seconds without a cell; None while off.
        self.after: float | None = None
        #: Why it did not park when it last tried.
        self.refusal: str | None = None

    def restart(self) -> None:
        """Begin the time anew; does nothing while off."""
        self.stop()
        if self.after is not None:
            self._timer = self._call_later(self.after, self._due)

    def stop(self) -> None:
        """Stop the time until `restart`."""
        if self._timer is not None:
            self._cancel(self._timer)
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        if PARKING.active:
            return
        try:
            PARKING.park(self._shell, idle=True)
            self.refusal = None
        except (DeviceError, RuntimeError) as error:  # the latter: CUDA has failed
            self.refusal = str(error)
            self.restart()
