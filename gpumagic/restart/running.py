"""What runs, and a restart would end: the notebook's threads, asyncio tasks and child processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
from collections.abc import Iterator, Mapping
from traceback import walk_stack
from types import FrameType
from typing import Any

import psutil

from gpumagic.cells import tracebacks
from gpumagic.cuda.processes import command_name
from gpumagic.errors import RestartError
from gpumagic.system import introspection
from gpumagic.wording import listed, noun

#: Helper processes of Python and torch that end by themselves when their parent does.
_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch_shm_manager",
    "torch/_inductor/compile_worker",
    "torch._inductor.compile_worker",
    "loky.backend.",  # joblib's, and scikit-learn's
)


def check(namespace: Mapping[str, Any]) -> None:
    """Return if a restart would end nothing that runs.

    Raises:
        RestartError: what it would end, by name.
    """
    if found := named(namespace):
        raise RestartError(
            f"a restart would lose the {' and the '.join(found)}; end that first, or add --force"
        )


def named(namespace: Mapping[str, Any]) -> list[str]:
    """Name what runs and would be ended: threads, asyncio tasks, child processes.

    A child that works for a variable of the ``namespace`` is named by it.
    """
    working, awaited = [*threads()], [*tasks()]
    workers = _workers(namespace)
    started = [f"{pid} ({workers.get(pid, name)})" for pid, name in children().items()]
    kinds = (
        (f"running {noun(len(working), 'thread')}", working),
        (f"asyncio {noun(len(awaited), 'task')}", awaited),
        (f"child {noun(len(started), 'process', 'processes')}", started),
    )
    return [f"{kind} {listed(names)}" for kind, names in kinds if names]


def _workers(namespace: Mapping[str, Any]) -> dict[int, str]:
    """Return by pid the loaders of torch's data that keep a process, as a message names them."""
    found, loaders = dict[int, str](), sys.modules.get("torch.utils.data.dataloader")
    kinds = (loaders.DataLoader, loaders._BaseDataLoaderIter) if loaders is not None else ()
    for name, value in namespace.items() if kinds else ():
        if introspection.is_a(value, *kinds):
            each = vars(value).get("_iterator") or value
            for process in vars(each).get("_workers", ()):
                found[process.pid] = f"a worker of {name}, which del {name} ends"
    return found


def threads() -> Iterator[str]:
    """Yield the names of threads that run the user's code, or for which Python would wait."""
    stacks, pools = sys._current_frames(), sys.modules.get("concurrent.futures.thread")
    idle = getattr(getattr(pools, "_worker", None), "__code__", None)
    for thread in threading.enumerate():
        frame = stacks.get(thread.ident or 0)
        if thread is threading.main_thread() or frame is None:
            continue
        if frame.f_code is idle:  # of a pool; it waits for work
            continue
        if not thread.daemon or any(_is_users(each) for each, _ in walk_stack(frame)):
            yield thread.name


def tasks() -> Iterator[str]:
    """Yield the names of the user's asyncio tasks in this thread's loop, but the current one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # a terminal's runs only while a cell waits for it
        return
    current = asyncio.current_task(loop)
    for task in asyncio.all_tasks(loop):
        coroutine = task.get_coro()
        frame = getattr(coroutine, "cr_frame", None)
        if task is not current and frame is not None and _is_users(frame):
            yield getattr(coroutine, "__qualname__", task.get_name())


def _is_users(frame: FrameType) -> bool:
    is_users = tracebacks.is_users(frame.f_code.co_filename)
    return is_users or frame.f_globals.get("__name__") == "__main__"


def children() -> dict[int, str]:
    """Return the pids and names of this process's children, without helpers of libraries.

    A name is that of `multiprocessing`, or of the program and its script, without arguments.
    """
    found = {child.pid: child.name for child in multiprocessing.active_children() if child.pid}
    mine = psutil.Process()
    for child in mine.children():
        try:
            words, name, status = child.cmdline(), child.name(), child.status()
        except psutil.Error:  # it has ended
            continue
        if any(helper in " ".join(words) for helper in _HELPERS):
            found.pop(child.pid, None)
        elif status != psutil.STATUS_ZOMBIE and child.pid not in found:
            forked = words == mine.cmdline()
            found[child.pid] = "a copy of this process" if forked else command_name(words, name)
    return found


def end_children() -> None:
    """Terminate the children; kill those that have not ended after a second."""
    pids = children()
    left = [each for each in psutil.Process().children() if each.pid in pids]
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            try:
                end(process)
            except psutil.Error:  # it has ended
                continue
        _, left = psutil.wait_procs(left, 1.0)
