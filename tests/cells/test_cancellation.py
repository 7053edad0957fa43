"""`gpumagic.cells.cancellation`: the tasks that an interrupted cell leaves pending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.cells import cancellation
from gpumagic.cells.cancellation import end_abandoned, marked_task


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that stops and can run again, as IPython's in a terminal."""
    made = asyncio.new_event_loop()
    yield made
    for task in asyncio.all_tasks(made):
        task.cancel()
        made.run_until_complete(asyncio.wait({task}))
    made.close()
    assert not cancellation._tasks


@pytest.fixture
def shell() -> SimpleNamespace:
    return SimpleNamespace(shown=[])


class Cell:
    """A cell that awaits within a magic's coroutine, until its event is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "run_cell_async") -> None:
        self.entered, self.left, self.go_on = False, False, asyncio.Event()
        coroutine = self._run()
        coroutine.__name__ = name
        self.task = loop.create_task(coroutine)
        loop.run_until_complete(asyncio.sleep(0))
        assert self.entered

    async def _run(self) -> None:
        with marked_task():
            self.entered = True
            try:
                await self.go_on.wait()
            finally:
                self.left = True


def test_a_pending_task_is_cancelled(
    loop: asyncio.AbstractEventLoop, shell: SimpleNamespace
) -> None:
    cell = Cell(loop)
    assert cancellation._tasks == {cell.task}
    end_abandoned(shell)
    assert cell.task.cancelled()
    assert cell.left
    assert not cancellation._tasks
    assert loop.run_until_complete(asyncio.sleep(0, "the loop still runs")) == "the loop still runs"


def test_a_task_of_the_users_continues(
    loop: asyncio.AbstractEventLoop, shell: SimpleNamespace
) -> None:
    cell = Cell(loop, "mine")
    end_abandoned(shell)
    assert not cell.task.done()
    cell.go_on.set()
    loop.run_until_complete(cell.task)
    assert cell.left


def test_a_task_whose_loop_runs_continues(
    loop: asyncio.AbstractEventLoop, shell: SimpleNamespace
) -> None:
    """A cell that another, still running cell has run."""
    cell = Cell(loop)

    async def inner() -> None:
        end_abandoned(shell)

    loop.run_until_complete(inner())
    assert not cell.task.done()
    other = asyncio.new_event_loop()
    other.run_until_complete(inner())
    other.close()
    assert not cell.task.done()
    cell.go_on.set()
    loop.run_until_complete(cell.task)


def test_only_the_outermost_of_several_marks_counts(loop: asyncio.AbstractEventLoop) -> None:
    marked = []

    async def nested() -> None:
        with marked_task():
            with marked_task():
                marked.append(len(cancellation._tasks))
            marked.append(len(cancellation._tasks))
        marked.append(len(cancellation._tasks))

    loop.run_until_complete(nested())
    assert marked == [1, 1, 0]


def test_without_a_task_nothing_is_marked(shell: SimpleNamespace) -> None:
    with marked_task():
        assert not cancellation._tasks
    end_abandoned(shell)  # nothing to do


def _ignores(seen: list[str]) -> Callable[[], Awaitable[Any]]:
    async def run() -> None:
        with marked_task():
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    seen.append("cancelled")
                    if len(seen) > 1:
                        raise

    return run


def test_a_task_that_ignores_its_cancellation_is_left(
    loop: asyncio.AbstractEventLoop, shell: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "_TIMEOUT", 0.01)
    seen: list[str] = []
    coroutine: Any = _ignores(seen)()
    coroutine.__name__ = "run_cell_async"
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0))
    end_abandoned(shell)
    assert seen == ["cancelled"]
    assert not task.done()


@pytest.mark.parametrize("of_instance", [False, True])
def test_no_traceback_is_shown_meanwhile(
    loop: asyncio.AbstractEventLoop, of_instance: bool
) -> None:
    """IPython's own cell shows a traceback when it is cancelled; the shell's method is restored."""
    shown: list[str] = []

    class Shell:
        def showtraceback(self, *_: Any) -> None:
            shown.append("the class's")

    shell = Shell()
    if of_instance:
        shell.showtraceback = lambda *_: shown.append("the instance's")  # type: ignore[method-assign]
    before = vars(shell).copy()

    async def run_cell_async() -> None:
        with marked_task():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                shell.showtraceback()

    task = loop.create_task(run_cell_async())
    loop.run_until_complete(asyncio.sleep(0))
    end_abandoned(shell)
    assert task.done()
    assert shown == []
    assert vars(shell) == before
