"""Hooks around the cells of a shell: all are called by one pair of IPython's events.

IPython prints what its callbacks raise, and goes on. But a hook may wait for the GPU after a cell,
and a user who interrupts this wait means the cell: the cell then has failed with the interrupt, and
a front end does not run the next cells.

Several cells may run at the same time, each in a thread: a subshell's cell beside the main shell's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpumagic.system.patching import patch
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult

_Begun = TypeVar("_Begun")


class CellHook(Generic[_Begun]):
    """What is called around every cell, including cells that another cell runs.

    Where one of these methods raises, the hook is removed, and the user's cell is not affected.
    """

    def before(self, info: ExecutionInfo, outer: _Begun | None) -> _Begun | None:
        """Note that a cell begins; return what `after` needs.

        ``outer`` is what this method returned for the cell that runs this one; None without one.
        """
        return None

    def raised(self, begun: _Begun) -> None:
        """Note that a cell's code has raised: its traceback, which takes long, is drawn next.

        ``begun`` is what `before` returned for the outermost cell of this thread.
        """

    def after(self, begun: _Begun | None, result: ExecutionResult | None) -> None:
        """Note that a cell has ended, for which `before` returned ``begun``.

        ``begun`` is None also for an empty cell, and for one that began before the hook was added;
        ``result`` is None where the cell, and those that it ran, were cancelled.
        """

    def failed(self, error: Exception) -> None:
        """Tell the user that the hook was removed, as it has raised ``error``."""
        from gpumagic.system import output, text

        why = f"it failed ({text.named(error)})"
        output.complain(f"gpumagic: a hook around cells was removed: {why}")


class CellHooks:
    """The hooks of one shell, called in the order in which they were added."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._hooks: list[CellHook[Any]] = []
        #: By thread, its running cells, the outermost first: IPython's `ExecutionInfo`, which
        #: identifies a cell when it ends, and what each hook's ``before`` returned for it.
        self._threads: dict[int, list[tuple[Any, dict[CellHook[Any], Any]]]] = {}
        #: What the shell draws tracebacks with, and what makes it do so again.
        self._draw: Callable[..., Any] = shell.showtraceback
        self._undo: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[CellHook[Any]]:
        return iter(self._hooks)

    @property
    def _running(self) -> list[tuple[Any, dict[CellHook[Any], Any]]]:
        """The running cells of this thread."""
        return self._threads.setdefault(get_ident(), [])

    def outermost(self, hook: CellHook[_Begun]) -> _Begun | None:
        """Return what ``before`` returned for the outermost running cell of this thread."""
        return next((begun[hook] for _, begun in self._running if hook in begun), None)

    def add(self, hook: CellHook[Any], *, running: bool = False) -> None:
        """Call ``hook`` from the next cell on, or from the ``running`` one on; each hook once."""
        if hook in self._hooks:
            return
        if not self._hooks:
            self._register()
        self._hooks.append(hook)
        if running and self._running:
            self._begin(hook)

    def remove(self, hook: CellHook[Any]) -> None:
        """Stop calling ``hook``; does nothing if it was not added."""
        if hook not in self._hooks:
            return
        self._hooks.remove(hook)
        for running in [*self._threads.values()]:
            for _, begun in [*running]:
                begun.pop(hook, None)
        if not self._hooks:
            self._unregister()

    def clear(self) -> None:
        """Remove all hooks."""
        for hook in [*self._hooks]:
            self.remove(hook)

    # --- IPython's events ------------------------------------------------------------------------

    def _register(self) -> None:
        current: Any = getattr(self._shell.displayhook, "exec_result", None)
        if getattr(current, "info", None) is not None:
            self._running.append((current.info, {}))
        self._shell.events.register("pre_run_cell", self._before)
        self._shell.events.register("post_run_cell", self._after)
        # No event says that a cell has raised.
        self._draw = self._shell.showtraceback
        self._undo = patch(self._shell, "showtraceback", self._show_traceback)

    def _unregister(self) -> None:
        self._threads.clear()
        for event, function in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            # The user may have emptied the list.
            if function in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, function)
        self._undo()

    def _before(self, info: ExecutionInfo) -> None:
        self._running.append((info, {}))
        interrupt = self._call(self._begin)
        if interrupt is not None:
            raise interrupt  # IPython prints it

    def _begin(self, hook: CellHook[Any]) -> None:
        *around, (info, begun) = self._running
        outer = next((each[hook] for _, each in reversed(around) if hook in each), None)
        value = hook.before(info, outer)
        if value is not None:
            begun[hook] = value

    def _after(self, result: ExecutionResult | None) -> None:
        begun = self._ended(None if result is None else result.info)
        interrupt = self._call(lambda hook: hook.after(begun.get(hook), result))
        if interrupt is not None and result is not None and result.success:
            result.error_in_exec = interrupt
            self._shell.showtraceback((KeyboardInterrupt, interrupt, None))

    def _show_traceback(self, *args: object, **kwargs: object) -> Any:
        def raised(hook: CellHook[Any]) -> None:
            begun = self.outermost(hook)
            if begun is not None:
                hook.raised(begun)

        self._call(raised)
        return self._draw(*args, **kwargs)

    def _ended(self, info: ExecutionInfo | None) -> dict[CellHook[Any], Any]:
        """Remove the cell that has ended, and those that it ran; return what its hooks returned.

        Without ``info`` this is the outermost one.
        """
        running, begun = self._running, dict[CellHook[Any], Any]()
        for place, (each, of_cell) in enumerate(running):
            if info is None or each is info:
                begun = of_cell
                del running[place:]
                break
        if not running:
            self._threads.pop(get_ident(), None)
        return begun

    def _call(self, function: Callable[[CellHook[Any]], None]) -> KeyboardInterrupt | None:
        """Call a function with each hook; return an interrupt that came meanwhile."""
        interrupt: KeyboardInterrupt | None = None
        for hook in [*self._hooks]:
            try:
                function(hook)
            except KeyboardInterrupt as error:
                interrupt = error.with_traceback(None)
            except Exception as error:
                self.remove(hook)
                hook.failed(error)
        return interrupt
