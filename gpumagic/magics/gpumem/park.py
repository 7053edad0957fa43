"""``%gpumem park`` and ``unpark``: GPU memory given back to the device, the variables kept."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from gpumagic.cells.hooks import CellHook
from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics.extension import of
from gpumagic.magics.output import Progress, hand_over, say, show
from gpumagic.memory.parking import PARKING
from gpumagic.render.units import seconds
from gpumagic.system import text

#: A line of a cell that needs no GPU memory; a statement in it brings memory back itself.
_OURS = re.compile(r"\s*%gpu(mem)?\b")


def run(verb: str, magics: Any, options: argparse.Namespace) -> Any:
    """Run the verb.

    Raises:
        DeviceError: parking is not safe, or there is not enough memory.
        SpecError: the options do not go together, or there is no kernel.
    """
    shell = magics.shell
    parking = of_shell(shell)
    if verb == "park" and (options.state or options.after is not None):
        if options.state and options.after is not None:
            raise SpecError("%gpumem park: write either off or --after TIME")
        shown = parking.set_idle(options.after)
        if not options.quiet:
            say(shell, shown)
        return parking.after if options.output else None
    progress = Progress(shell, enabled=not options.quiet, what=f"%gpumem {verb}")
    result: Any
    with _in_one_line(), closing(progress):
        if verb == "park":
            parking.register()
            result = PARKING.park(shell, progress=progress.update)
        else:
            result = PARKING.bring_back(progress=progress.update)
    return hand_over(shell, result, options)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Raise a `DeviceError` in place of an interrupt, an error of CUDA, or a `MemoryError`.

    Without their tracebacks, whose frames would keep storages and copies alive.
    """
    try:
        yield
        return
    except DeviceError:
        raise
    except (KeyboardInterrupt, RuntimeError, MemoryError) as error:
        error.__traceback__ = None
        what = text.reason(error) if isinstance(error, RuntimeError) else type(error).__name__
        where = "the memory is on the GPU, nothing is parked"
        if PARKING.active:
            where = f"the memory is parked; {PARKING.way_back()}"
        shown = f"{what}: {where}"
    raise DeviceError(shown)


def leaves_parked(cell: str) -> bool:
    """Return whether a cell has only lines of ``%gpu`` and ``%gpumem``."""
    return all(_OURS.match(line) for line in cell.splitlines() if line.strip())


class ShellParking:
    """What parking adds to one shell: what is called around its cells, and the idle time."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._hook = CellHook(before=self._before_cell, after=lambda _, __: None, failed=_failed)
        self._events = {"pre_execute": self._before_anything, "post_execute": self._after_anything}
        #: The kernel's event loop, and the timer in it.
        self._loop: Any = getattr(getattr(shell, "kernel", None), "io_loop", None)
        self._timer: Any = None
        #: The seconds without a cell after which it parks by itself; None for never.
        self.after: float | None = None
        #: Why it did not park by itself when it last tried.
        self._refusal: str | None = None

    def register(self) -> None:
        """Bring back what is parked before the cells of the shell from now on."""
        hooks = of(self._shell).hooks
        if self._hook in hooks:
            return
        hooks.add(self._hook)
        for event, function in self._events.items():
            self._shell.events.register(event, function)

    def set_idle(self, after: float | None) -> str:
        """Park by itself after so many seconds without a cell, or no more; return what to say.

        Raises:
            SpecError: the shell is not that of a kernel.
        """
        if self._loop is None:
            raise SpecError("%gpumem parks by itself only in a kernel; here, type %gpumem park")
        self.after = after  # the end of this cell begins the time
        if after is None:
            shown = f" (the last time it did not: {self._refusal})" if self._refusal else ""
            return f"Automatic parking is off{shown}."
        self.register()
        return (
            f"GPU memory is parked after {seconds(after)} without a cell; "
            "'%gpumem park off' ends that."
        )

    def release(self) -> None:
        """Bring everything back, and undo all that was added to the shell.

        Raises:
            DeviceError: there is not enough memory; everything stays parked, the shell as it is.
        """
        with _in_one_line():
            PARKING.bring_back()
        self.after = None
        self._stop()
        of(self._shell).hooks.remove(self._hook)
        for event, function in self._events.items():
            if function in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, function)

    def bring_back(self) -> None:
        """Bring everything back before code that may use it; where that fails, say why.

        The code runs nevertheless: what touches parked memory raises torch's own error.
        """
        try:
            result = PARKING.bring_back()
        except (DeviceError, RuntimeError, MemoryError) as error:
            print(f"%gpumem: {text.reason(error)}", file=sys.stderr)
        else:
            # Nothing is to be said where all of it was deleted.
            if result.storages and not of(self._shell).magics.quiet:
                show(self._shell, result)

    # --- around cells ----------------------------------------------------------------------------

    def _before_cell(self, info: Any, outer: None) -> None:
        if PARKING.active and not leaves_parked(info.raw_cell):
            self.bring_back()

    def _before_anything(self) -> None:
        """Stop the time; a widget's message begins without a cell, and may use the memory."""
        self._stop()
        message = getattr(self._shell, "parent_header", {})
        if PARKING.active and message.get("msg_type") == "comm_msg":
            self.bring_back()

    def _after_anything(self) -> None:
        self._stop()
        if self.after is not None:
            self._timer = self._loop.call_later(self.after, self._due)

    # --- without cells ---------------------------------------------------------------------------

    def _stop(self) -> None:
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None

    def _due(self) -> None:
        """Park; what refuses it may be over the next time."""
        self._timer = None
        try:
            if not PARKING.active:
                PARKING.park(self._shell, idle=True)
            self._refusal = None
        except (DeviceError, RuntimeError) as error:  # the latter: CUDA has failed
            self._refusal = str(error)
            self._after_anything()


def _failed(error: Exception) -> None:
    print(
        f"%gpumem: cells do not bring parked memory back ({text.named(error)}); "
        "%gpumem unpark does",
        file=sys.stderr,
    )


def of_shell(shell: Any) -> ShellParking:
    """Return a shell's parking, made when first asked for."""
    extension = of(shell)
    found: ShellParking | None = extension.parking
    if found is None:
        found = extension.parking = ShellParking(shell)
    return found
