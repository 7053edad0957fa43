"""``%gpumem park`` and ``unpark``: GPU memory given back to the device, the variables kept."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

from IPython.core.error import InputRejected

from gpumagic.cells.hooks import CellHook
from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics import terminal
from gpumagic.magics.extension import of
from gpumagic.magics.gpumem.options import VERBS
from gpumagic.magics.output import hand_over, show
from gpumagic.magics.progress import Progress
from gpumagic.memory.code_names import uses_no_gpu_memory
from gpumagic.memory.idle_parking import IdleParking
from gpumagic.memory.parking import PARKING
from gpumagic.memory.unpark_on_use import MODES
from gpumagic.render.units import seconds
from gpumagic.results.parking import ParkedMemory, Unparked
from gpumagic.system import text


def run(verb: str, magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    """Run the verb.

    Raises:
        DeviceError: parking is not safe, or there is not enough memory.
        SpecError: the options do not go together, or there is no kernel.
    """
    shell = magics.shell
    quiet = options.quiet or silent
    if verb == "unpark":
        return hand_over(shell, _unpark(shell, options, quiet), options, silent=silent)
    parking = of_shell(shell)
    if options.state == "off" or options.after is not None:
        if options.state and options.after is not None:
            raise SpecError("%gpumem park: write either off or --after TIME")
        shown = parking.set_idle(options.after)
        if not quiet:
            terminal.write_line(shown)
        return options.after if options.output else None
    progress = Progress(shell, enabled=not quiet, what="%gpumem park")
    if not PARKING.active:
        MODES.leave()
    # Before parking: the cell of this line has begun, and brings nothing back.
    parking.register()
    with _in_one_line("nothing was parked"), closing(progress):
        result = PARKING.park(shell, progress=progress.update)
    parking.parked(result)
    return hand_over(shell, result, options, silent=silent)


@contextmanager
def _in_one_line(what: str) -> Iterator[None]:
    """Raise a `DeviceError` in place of an interrupt, an error of CUDA, or a `MemoryError`.

    It refers to that error, as IPython does to it: without the traceback, whose frames would keep
    storages and copies alive.
    """
    try:
        yield
        return
    except DeviceError:
        raise
    except KeyboardInterrupt as interrupt:
        interrupt.__traceback__ = None
        shown = f"interrupted; {_where()}"
    except (RuntimeError, MemoryError) as error:  # CUDA has failed, or the host has no memory
        error.__traceback__ = None
        shown = f"{what}: {text.reason(error)}"
    raise DeviceError(shown)


def _where() -> str:
    """Return where the memory is, after an interrupt."""
    if PARKING.active:
        return f"the memory is parked; {PARKING.way_back()}"
    return "the memory is on the GPU, nothing is parked"


def _unpark(shell: Any, options: argparse.Namespace, quiet: bool) -> Unparked:
    progress = Progress(shell, enabled=not quiet, what="%gpumem unpark")
    shown: list[str] = []

    def waiting(error: DeviceError) -> None:
        if not shown and not quiet:
            terminal.write_line(f"Waiting (interrupt to stop): {error}")
        shown.append(str(error))

    try:
        with _in_one_line("parked memory cannot come back"), closing(progress):
            if options.wait:
                return PARKING.wait_and_bring_back(waiting, progress=progress.update)
            return PARKING.bring_back(progress=progress.update)
    finally:
        MODES.leave()


class CellNotRunError(InputRejected):
    """A cell was not run, since what is parked could not come back; IPython shows one line."""

    def _render_traceback_(self) -> list[str]:
        return [f"%gpumem: {self}"]


class _Refusal(ast.NodeTransformer):
    """Has IPython reject the cell that has begun, in place of running it."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def visit(self, node: ast.AST) -> ast.AST:
        """Raise the reason."""
        raise CellNotRunError(f"the cell was not run: {self._reason}")


def _exact(after: float) -> str:
    """Return a duration that was typed, without the units that are zero: ``15 min``."""
    return seconds(after).removesuffix(" 0 s").removesuffix(" 0 min")


#: What a cell is: run by the user, or by another cell.
_OUTERMOST, _WITHIN = "outermost", "within"


class ShellParking:
    """What parking adds to one shell: what is called around its cells, and the idle time."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        PARKING.when_changed = _publish
        self._idle: IdleParking | None = None
        self._in_cell = False
        #: Rejects the cell that has begun; None where it may run.
        self._refusal: _Refusal | None = None
        self._hook = CellHook(
            before=self._before, after=self._after, cancelled=self._cancelled, failed=_failed
        )

    def register(self) -> None:
        """Watch the cells of the shell from now on."""
        of(self._shell).hooks.add(self._hook, running=True)

    def parked(self, result: ParkedMemory) -> None:
        """Bring back what was parked at its first use."""
        if result.storages:
            MODES.enter()

    @property
    def after(self) -> float | None:
        """The seconds without a cell after which it parks by itself; None for never."""
        return None if self._idle is None else self._idle.after

    def set_idle(self, after: float | None) -> str:
        """Park by itself after so many seconds without a cell, or no more; return what to say.

        Raises:
            SpecError: the shell is not that of a kernel.
        """
        if after is None:
            was, refusal = self.after, self._idle and self._idle.refusal
            if self._idle is not None:
                self._idle.off()
                self._unregister()
            shown = f" (the last time it did not: {refusal})" if refusal else ""
            return f"It parks no more by itself{shown}." if was else "It does not park by itself."
        loop = getattr(getattr(self._shell, "kernel", None), "io_loop", None)
        if loop is None:
            raise SpecError("%gpumem park --after needs a kernel; here, type %gpumem park")
        of(self._shell).hooks.add(self._hook, running=True)
        if self._idle is None:
            self._idle = IdleParking(self._shell, loop.call_later, loop.remove_timeout)
            if self._in_cell:
                self._idle.begin_activity()
        self._unregister()
        self._shell.events.register("pre_execute", self._idle.begin_activity)
        self._shell.events.register("post_execute", self._idle.end_activity)
        self._idle.on(after)
        return (
            f"GPU memory is parked after {_exact(after)} without a cell; '%gpumem park off' "
            "ends that."
        )

    def _unregister(self) -> None:
        if self._idle is None:
            return
        events = (("pre_execute", self._idle.begin_activity),)
        for event, function in (*events, ("post_execute", self._idle.end_activity)):
            if function in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, function)

    def release(self) -> None:
        """Bring everything back, and undo all that was added to the shell.

        Raises:
            DeviceError: there is not enough memory; everything stays parked, the shell as it is.
        """
        with _in_one_line("parked memory cannot come back"):
            PARKING.bring_back()
        MODES.leave()
        self._allow()
        if self._idle is not None:
            self._idle.off()
            self._unregister()
        of(self._shell).hooks.remove(self._hook)

    # --- around cells ----------------------------------------------------------------------------

    def _before(self, info: Any, outer: str | None) -> str:
        self._in_cell = True
        if self._idle is not None:
            self._idle.begin_activity()
        self._allow()
        if not PARKING.active:
            MODES.leave()
        elif not self._leaves_parked(info):
            self._bring_back()
        return _OUTERMOST if outer is None else _WITHIN

    def _bring_back(self) -> None:
        """Bring everything back before a cell, which is not run where that fails."""
        try:
            result = PARKING.bring_back()
        except DeviceError as error:
            self._refuse(str(error))
        except KeyboardInterrupt:
            self._refuse(f"interrupted; {_where()}")
        except Exception as error:
            self._refuse(f"parked memory cannot come back: {text.named(error)}")
        else:
            MODES.leave()
            # Nothing is to be said where all of it was deleted.
            if result.storages and not of(self._shell).magics.quiet:
                show(self._shell, result)

    def _refuse(self, reason: str) -> None:
        self._refusal = _Refusal(reason)
        self._shell.ast_transformers.insert(0, self._refusal)

    def _allow(self) -> None:
        """Reject no cell any more."""
        if self._refusal in self._shell.ast_transformers:
            self._shell.ast_transformers.remove(self._refusal)
        self._refusal = None

    def _leaves_parked(self, info: Any) -> bool:
        source = getattr(info, "transformed_cell", None)
        if source is None:
            source = self._shell.transform_cell(info.raw_cell)
        names: Mapping[str, Any] = self._shell.user_ns
        return uses_no_gpu_memory(source, names, verbs=VERBS)

    def _after(self, begun: Any, result: Any) -> None:
        self._allow()
        if not PARKING.active:
            MODES.leave()
        if begun == _OUTERMOST:
            self._cancelled()
        elif begun and self._idle is not None:
            self._idle.end_activity()

    def _cancelled(self) -> None:
        self._allow()
        self._in_cell = False
        if self._idle is not None:
            self._idle.end_activity(all_of_it=True)


def _publish(parked: bool) -> None:
    """Say in this process's claim whether its memory is parked."""
    if "gpumagic.selection.claims" not in sys.modules:
        return
    from gpumagic.selection import claims

    with suppress(Exception):  # a registry that cannot be written is no matter of the cell's
        claims.set_parked(parked)


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
