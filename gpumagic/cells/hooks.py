"""Hooks around the cells of a shell: all are called by one pair of IPython's events."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_Begun = TypeVar("_Begun")


def _report_failure(error: Exception) -> None:
    from gpumagic.system import text

    print(
        f"gpumagic: a hook around cells was removed: it failed ({text.named(error)})",
        file=sys.stderr,
    )


@dataclass(eq=False, repr=False)
class CellHook(Generic[_Begun]):
    """Functions to call around every cell, including cells that another cell runs.

    Where one of them raises, the hook is removed and ``failed`` is called with the exception, to
    print a line; the user's cell is not affected.
    """

    #: Called when a cell has ended, with what ``before`` returned for it and with its result. The
    #: former is None also for an empty cell, and one that began before the hook was added.
    after: Callable[[_Begun | None, Any], None]
    failed: Callable[[Exception], None] = _report_failure
    #: Called when a cell begins, with IPython's `ExecutionInfo` and with what it returned for the
    #: cell that runs this one; None if there is none.
    before: Callable[[Any, _Begun | None], _Begun | None] = lambda info, outer: None
    #: Called when a cell and the cells that it runs were cancelled: they have no result.
    cancelled: Callable[[], None] = lambda: None


@dataclass(eq=False, repr=False)
class _Cell:
    """A running cell, with what each hook's ``before`` returned for it."""

    #: IPython's `ExecutionInfo`, which identifies the cell when it ends.
    info: Any
    begun: dict[CellHook[Any], Any] = field(default_factory=dict)


class _InterruptInCell(ast.NodeTransformer):
    """An AST transformer of IPython that has the next cell begin with an interrupt."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def add(self) -> None:
        """Interrupt the next cell; once."""
        self.remove()
        self._shell.ast_transformers.append(self)

    def remove(self) -> None:
        """Interrupt none."""
        if self in self._shell.ast_transformers:
            self._shell.ast_transformers.remove(self)

    def visit(self, node: ast.AST) -> ast.AST:
        """Raise the interrupt in place of the cell's first statement."""
        self.remove()
        if isinstance(node, ast.Module) and node.body:
            (raising,) = ast.parse("raise KeyboardInterrupt").body
            for each in ast.walk(raising):
                ast.copy_location(each, node.body[0])
            node.body[0] = raising
        return node


class CellHooks:
    """The hooks of one shell, called in the order in which they were added."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._hooks: list[CellHook[Any]] = []
        #: The running cells, the outermost first.
        self._running: list[_Cell] = []
        self._interrupt = _InterruptInCell(shell)

    def __contains__(self, hook: CellHook[Any]) -> bool:
        return hook in self._hooks

    def __iter__(self) -> Iterator[CellHook[Any]]:
        return iter(self._hooks)

    def add(self, hook: CellHook[Any], *, running: bool = False) -> None:
        """Call ``hook`` from the next cell on, or from the ``running`` one on; each hook once."""
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
        """Stop calling ``hook``; does nothing if it was not added."""
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
        self._interrupt.remove()
        self._running.clear()
        for event, function in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            # The user may have emptied the list.
            if function in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, function)

    def _before(self, info: Any) -> None:
        try:
            self._begin_cell(info)
        except KeyboardInterrupt:  # IPython would print it, and run the cell
            self._interrupt.add()

    def _begin_cell(self, info: Any) -> None:
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
        try:
            self._end_cell(result)
        except KeyboardInterrupt as error:
            self._interrupt_ended(result, error)

    def _interrupt_ended(self, result: Any, error: BaseException) -> None:
        """Have the cell whose hooks were interrupted fail: it was still shown as running.

        IPython would show the hook's traceback otherwise, and go on with the next cell.
        """
        if result is not None and result.error_before_exec is result.error_in_exec is None:
            result.error_in_exec = error.with_traceback(None)
            self._shell.showtraceback((type(error), error, None))

    def _end_cell(self, result: Any) -> None:
        self._interrupt.remove()  # of a cell that was not run: its syntax is wrong
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
        """Remove and return the cell that has ended; also removes the cells that it ran."""
        for place in reversed(range(len(self._running))):
            if self._running[place].info is info:
                cell = self._running[place]
                del self._running[place:]
                return cell
        return None

    def _fail(self, hook: CellHook[Any], error: Exception) -> None:
        self.remove(hook)
        hook.failed(error)
