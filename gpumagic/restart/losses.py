"""Name what a restart would end: the user's threads, asyncio tasks and child processes.

A thread is the user's if its stack has frames of the user's code, if a variable of the notebook
refers to it, or if only the standard library is involved (``Thread(target=event.wait)`` in a
cell). Daemon threads of libraries are not: they may end at any time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.errors import RestartError
from gpumagic.system.text import noun

_THREADING = threading.__file__
#: What ipykernel 6 puts in place of ``threading.Thread.run``, around it.
_OF_IPYKERNEL = "run_closure"
#: The file of Python's thread pools.
_POOL = ("concurrent", "futures", "thread.py")


def check(variables: Mapping[str, Any], children: Mapping[int, str]) -> None:
    """Return if a restart would end nothing; ``variables`` are the user's.

    Raises:
        RestartError: what it would end.
    """
    found = named(variables, children)
    if found:
        raise RestartError(
            f"a restart would lose the {' and the '.join(found)}; end them, or add --force"
        )


def named(variables: Mapping[str, Any], children: Mapping[int, str]) -> list[str]:
    """Name all that would be lost, a phrase each: ``running thread busy``."""
    values = [*variables.values()]
    running, awaited = threads(values), tasks(values)
    found = []
    if running:
        found.append(f"running {noun(len(running), 'thread')} {', '.join(running)}")
    if awaited:
        found.append(f"asyncio {noun(len(awaited), 'task')} {', '.join(awaited)}")
    if children:
        pids = ", ".join(f"{pid} ({name})" for pid, name in children.items())
        found.append(f"child {noun(len(children), 'process', 'processes')} {pids}")
    return found


# --- threads -------------------------------------------------------------------------------------


def threads(values: Collection[Any] = ()) -> list[str]:
    """Return the names of the user's threads; ``values`` are those of the user's variables."""
    stacks = sys._current_frames()
    users = {id(value) for value in values}
    found = []
    for thread in threading.enumerate():
        # A thread without a frame has ended, or is one of C code that is not in Python now.
        frame = stacks.get(thread.ident or 0)
        if thread is threading.main_thread() or frame is None:
            continue
        if _is_users(thread, [*tracebacks.stack(frame)], users):
            found.append(thread.name)
    return found


def _is_users(thread: threading.Thread, stack: list[FrameType], users: set[int]) -> bool:
    if any(map(_runs_users_code, stack)) or not users.isdisjoint(_bound_to(thread)):
        return True
    if isinstance(thread, threading._DummyThread):
        return False  # not started by Python
    # The outermost frames are threading's own, and one of ipykernel 6; then the thread's function.
    files = [f.f_code.co_filename for f in reversed(stack) if f.f_code.co_name != _OF_IPYKERNEL]
    first = next((file for file in files if file != _THREADING), _THREADING)
    if Path(first).parts[-3:] == _POOL:
        return not _is_idle(stack)
    if thread.daemon and "multiprocessing" in Path(first).parts:
        return False  # it feeds a queue
    libraries = _is_library(_file_of(type(thread))) or _is_library(first)
    return not (thread.daemon and libraries)


def _runs_users_code(frame: FrameType) -> bool:
    code_is_users = tracebacks.is_users(frame.f_code.co_filename)
    return code_is_users or frame.f_globals.get("__name__") == "__main__"


def _bound_to(thread: threading.Thread) -> Iterator[int]:
    """Yield the identities of a thread and of the object whose method it runs."""
    yield id(thread)
    target = getattr(thread, "_target", None)
    owner = getattr(target, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType):
        yield id(owner)


def _is_library(file: str | None) -> bool:
    """Return whether a file belongs to an installed package, not to Python itself."""
    if file is None or file.startswith("<"):
        return False
    return not tracebacks.is_users(file) and not tracebacks.is_standard(file)


def _file_of(kind: type) -> str | None:
    module = sys.modules.get(kind.__module__)
    file: str | None = getattr(module, "__dict__", {}).get("__file__")
    return file


def _is_idle(stack: list[FrameType]) -> bool:
    """Return whether a pool's worker waits for work."""
    waiting = ("wait", "get")
    inner = next((f for f in stack if f.f_code.co_name not in waiting), None)
    return inner is not None and inner.f_code.co_name == "_worker"


# --- tasks ---------------------------------------------------------------------------------------


def tasks(values: Collection[Any] = ()) -> list[str]:
    """Return the names of the user's asyncio tasks in this thread's loop; not the current one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # a terminal's loop runs only while a cell waits for it
        return []
    users = {id(value) for value in values}
    current = asyncio.current_task(loop)
    return [
        getattr(task.get_coro(), "__qualname__", task.get_name())
        for task in asyncio.all_tasks(loop)
        if task is not current
        and (id(task) in users or any(map(_runs_users_code, _awaited(task.get_coro()))))
    ]


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine, and of those that it awaits."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
