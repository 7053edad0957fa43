"""The coroutines of our magics, and what becomes of one that Ctrl-C leaves behind.

In a terminal, Ctrl-C stops IPython's event loop and leaves the task of the cell that awaited
pending: its scopes stay open, the garbage collector off, and it goes on in the background as soon
as a later cell awaits. A task in which one of our magics was awaited is ended with its cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

#: The tasks in which a magic's coroutine is running.
_tasks: set[asyncio.Task[Any]] = set()

#: Seconds that the code may take to end when it is cancelled.
_PATIENCE = 1.0


@contextmanager
def awaited() -> Iterator[None]:
    """The scope of a magic's coroutine."""
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
    """End what a cell that is over has left pending in an event loop that has stopped.

    What runs in a task of the user's own goes on.
    """
    if not _tasks:
        return
    import asyncio

    for task in list(_tasks):
        loop = task.get_loop()
        if loop.is_running() or asyncio._get_running_loop() is not None:
            continue  # the cell was run by another one, which goes on
        if getattr(task.get_coro(), "__name__", "") != "run_cell_async":
            continue
        _tasks.discard(task)
        if task.done() or loop.is_closed():
            continue
        task.cancel()
        # The user has seen the interrupt's traceback, and may be out of patience before us.
        with _no_traceback(shell), suppress(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait({task}, timeout=_PATIENCE))


def _current_task() -> asyncio.Task[Any] | None:
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop, or none of asyncio's
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
