"""Hooks around the cells of a shell: all are called by one pair of IPython's events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_Begun = TypeVar("_Begun")


def _report_failure(error: Exception) -> None:
    from gpumagic.system import text

    print(
        f"gpumagic: a function that is called around cells failed, and is called no longer "
        f"({text.named(error)})",
        file=sys.stderr,
    )


@dataclass(eq=False)
class CellHook(Generic[_Begun]):
    """Functions to call around every cell, also one that another cell runs.

    Where one of them raises, the hook is removed, and ``failed`` is called with the exception, to
    print a line: the user's cell is not affected.
    """

    #: Called with a cell's result when it has ended, and with what ``before`` has returned for it:
    #: None too for a cell that is empty, or that had begun before the hook was added.
    after: Callable[[_Begun | None, Any], None]
    failed: Callable[[Exception], None] = _report_failure
    #: Called with IPython's `ExecutionInfo` when a cell begins, and with what it has returned for
    #: the cell that runs this one: None if there is none.
    before: Callable[[Any, _Begun | None], _Begun | None] = lambda info, outer: None
    #: Called when a cell, with all that it runs, was cancelled: it has no result.
    cancelled: Callable[[], None] = lambda: None


@dataclass(eq=False)
class _Cell:
    """A cell that is running, with what each hook has returned for it."""

    #: IPython's `ExecutionInfo`, by which the cell is recognised when it ends.
    info: Any
    begun: dict[CellHook[Any], Any] = field(default_factory=dict)


class CellHooks:
    """The hooks of one shell, called in the order in which they were added."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._hooks: list[CellHook[Any]] = []
        #: The cells that are running, the outermost one first.
        self._running: list[_Cell] = []

    def __contains__(self, hook: CellHook[Any]) -> bool:
        return hook in self._hooks

    def __iter__(self) -> Iterator[CellHook[Any]]:
        return iter(self._hooks)

    def add(self, hook: CellHook[Any], *, running: bool = False) -> None:
        """Call ``hook`` from the next cell on, or from within the ``running`` one.

        Nothing if it was added already.
        """
        if hook in self._hooks:
            return
        if not self._hooks:
            self._register()
        self._hooks.append(hook)
        if running and self._running:
            try:
                self._begin(hook, self._running[-1])
            except BaseException:
                self.remove(hook)
                raise

    def remove(self, hook: CellHook[Any]) -> None:
        """Call ``hook`` no more. Nothing if it was not added."""
        if hook not in self._hooks:
            return
        self._hooks.remove(hook)
        for cell in self._running:
            cell.begun.pop(hook, None)
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
            self._running.append(_Cell(current.info))
        self._shell.events.register("pre_run_cell", self._before)
        self._shell.events.register("post_run_cell", self._after)

    def _unregister(self) -> None:
        self._running.clear()
        for event, function in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            # The user may have emptied the list.
            if function in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, function)

    def _before(self, info: Any) -> None:
        cell = _Cell(info)
        self._running.append(cell)
        for hook in [*self._hooks]:
            try:
                self._begin(hook, cell)
            except Exception as error:
                self._fail(hook, error)

    def _begin(self, hook: CellHook[Any], cell: _Cell) -> None:
        outer = None
        for each in self._running:
            if each is not cell:
                outer = each.begun.get(hook, outer)
        begun = hook.before(cell.info, outer)
        if begun is not None:
            cell.begun[hook] = begun

    def _after(self, result: Any) -> None:
        cell = None if result is None else self._ended(result.info)
        if result is None:
            self._running.clear()
        for hook in [*self._hooks]:
            try:
                if result is None:
                    hook.cancelled()
                else:
                    hook.after(None if cell is None else cell.begun.get(hook), result)
            except Exception as error:
                self._fail(hook, error)

    def _ended(self, info: Any) -> _Cell | None:
        """Remove the cell that has ended, and those within it, from the running ones."""
        for place in reversed(range(len(self._running))):
            if self._running[place].info is info:
                cell = self._running[place]
                del self._running[place:]
                return cell
        return None

    def _fail(self, hook: CellHook[Any], error: Exception) -> None:
        self.remove(hook)
        hook.failed(error)
