"""What a restart would end: the notebook's variables, its threads, asyncio tasks and children."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import sys
import threading
from collections.abc import Iterator
from traceback import walk_stack
from types import FrameType
from typing import Any

import psutil

from gpumagic.cells import tracebacks
from gpumagic.cuda.device_table import command_name
from gpumagic.errors import RestartError
from gpumagic.system.shell import Shell
from gpumagic.system.text import noun

#: Names that Python, a front end or torch's compiler binds in the notebook's namespace, and `_`,
#: which by convention is for what is not needed. IPython's own are known by what they are bound to.
_NOT_USERS = re.compile(
    r"_+|_exit_code|_VSCODE_\w*|__vsc_\w*|___\w*"
    r"|__(name|doc|package|loader|spec|builtins?|warningregistry|(\w+_)?annotat\w+)__"
    r"|__(compiled_fn|resume_at|import|builtins_dict|gen_rand_values|comprehension|warnings_warn)_"
    r"\w*"
)
#: Helper processes of Python and torch that end by themselves when their parent does.
_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch_shm_manager",
    "torch/_inductor/compile_worker",
    "torch._inductor.compile_worker",
)


def check() -> None:
    """Return if a restart would end nothing that runs.

    Raises:
        RestartError: what it would end, by name.
    """
    running, awaited = [*threads()], [*tasks()]
    started = [f"{pid} ({name})" for pid, name in children().items()]
    kinds = (
        (f"running {noun(len(running), 'thread')}", running),
        (f"asyncio {noun(len(awaited), 'task')}", awaited),
        (f"child {noun(len(started), 'process', 'processes')}", started),
    )
    if found := [f"{kind} {', '.join(names)}" for kind, names in kinds if names]:
        raise RestartError(
            f"a restart would lose the {' and the '.join(found)}; "
            f"end {noun(len([*running, *awaited, *started]), 'it', 'them')}, or add --force"
        )


def variables(shell: Shell) -> dict[str, Any]:
    """Return the user's variables, with modules, functions and names that begin with ``_``."""
    found = _assigned(shell).items()
    return {name: value for name, value in found if not _NOT_USERS.fullmatch(name)}


def unnamed(shell: Shell) -> list[str]:
    """Return which of ``_``, ``__`` and ``___`` the user has bound, mostly to what nobody needs."""
    found = [name for name in _assigned(shell) if name in ("_", "__", "___")]
    return [name for name in found if type(shell.user_ns[name]) is not str]  # "" before any output


def _assigned(shell: Shell) -> dict[str, Any]:
    """Return all that IPython has not bound itself: `_5` is `Out[5]`, for example."""
    hidden, missing = shell.user_ns_hidden, object()
    return {
        name: value
        for name, value in shell.user_ns.items()
        if hidden.get(name, missing) is not value
    }


def threads() -> Iterator[str]:
    """Yield the names of threads that run the user's code, or for which Python would wait."""
    stacks = sys._current_frames()
    for thread in threading.enumerate():
        frame = stacks.get(thread.ident or 0)
        if thread is threading.main_thread() or frame is None:
            continue
        if frame.f_code.co_name == "_worker":  # of a pool; it waits for work
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

    A name is that of the program and its script, without arguments.
    """
    found = {child.pid: child.name for child in multiprocessing.active_children() if child.pid}
    for child in psutil.Process().children():
        try:
            words, name, status = child.cmdline(), child.name(), child.status()
        except psutil.Error:  # it has ended
            continue
        if any(helper in " ".join(words) for helper in _HELPERS):
            found.pop(child.pid, None)
        elif status != psutil.STATUS_ZOMBIE:
            found[child.pid] = command_name(words, name)
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
