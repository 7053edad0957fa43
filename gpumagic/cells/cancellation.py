"""Cancel the task of a cell that Ctrl-C has interrupted while a magic's coroutine ran in it.

In a terminal, Ctrl-C stops IPython's event loop and leaves the cell's task pending: its context
managers stay open, the garbage collector stays off, and the task continues as soon as a later cell
awaits. A task in which one of our coroutines runs is therefore cancelled with its cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

#: The tasks in which a magic's coroutine runs.
_tasks: set[asyncio.Task[Any]] = set()

#: Seconds that a cancelled task may take to end.
_TIMEOUT = 1.0


@contextmanager
def marked_task() -> Iterator[None]:
    """Mark the current task as one in which a magic's coroutine runs."""
    task = _current_task()
    if task is None or task in _tasks:
        yield
        return
    _tasks.add(task)
    try:
        yield
    finally:
        _tasks.discard(task)


def end_abandoned(shell: Any) -> None:
    """Cancel the marked tasks that a finished cell has left pending in a stopped event loop.

    Tasks that the user has created continue.
    """
    if not _tasks:
        return
    import asyncio

    for task in list(_tasks):
        loop = task.get_loop()
        if loop.is_running() or asyncio._get_running_loop() is not None:
            continue  # another cell, still running, has run this one
        if getattr(task.get_coro(), "__name__", "") != "run_cell_async":
            continue
        _tasks.discard(task)
        if task.done() or loop.is_closed():
            continue
        task.cancel()
        # The interrupt's traceback has been shown; the user may press Ctrl-C again meanwhile.
        with _no_traceback(shell), suppress(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait({task}, timeout=_TIMEOUT))


def _current_task() -> asyncio.Task[Any] | None:
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop, or not asyncio's
        return None


@contextmanager
def _no_traceback(shell: Any) -> Iterator[None]:
    own = vars(shell).get("showtraceback")
    shell.showtraceback = lambda *_, **__: None
    try:
        yield
    finally:
        if own is None:
            del shell.showtraceback
        else:
            shell.showtraceback = own
