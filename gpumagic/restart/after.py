"""In the new program: answer the cell that asked, then those behind it.

The request that asked is replayed like the others, but instead of its code IPython runs a report:
so ipykernel itself counts it, shows what it prints, displays its value, and replies.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import zmq

from gpumagic.restart import handover, ports, request_queue
from gpumagic.restart.handover import State
from gpumagic.system import text
from gpumagic.system.shell import Shell

#: Reports the restart, by print and display. Called with the payload, the file, if there is one,
#: and a note for each IPython extension that could not be loaded again; returns the cell's value.
Report = Callable[[Any, "IO[bytes] | None", list[str]], Any]

#: Seconds for the clients to connect and subscribe again; for zmq to read their subscriptions.
_PATIENCE, _SUBSCRIPTION = 5.0, 0.1

#: What the cell that asked calls in place of its code.
report: Callable[[], Any]
#: Event loops have only weak references to their tasks.
_tasks: list[Any] = []


def go_on(shell: Shell, make_report: Report, prepare: Callable[[], None]) -> None:
    """Go on where the old program stopped; do nothing in a process that replaces none.

    Called while IPython loads its extensions: the user's startup files are run after it.
    ``prepare`` imports what the report needs, while the clients subscribe.
    """
    global report
    state = handover.take()
    if state is None:
        return
    for descriptor in state.inherited:
        with suppress(OSError):  # an exit function has closed it
            os.set_inheritable(descriptor, False)
    notes = [*_restore_folders(shell, state), *_load_extensions(shell, state)]
    shell.execution_count = state.count
    report = lambda: _report(shell, state, make_report, notes)  # noqa: E731
    if hasattr(shell, "kernel"):
        _answer_first(shell, state, prepare)
        _replay(shell.kernel, state.requests)
    else:
        _run_first(shell, state)


def _restore_folders(shell: Shell, state: State) -> list[str]:
    """Enter the working folder, and restore the import path; return what is to be said."""
    notes = []
    for name, value in state.searched.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    sys.path[:] = state.path
    try:
        if state.folder is None:
            raise FileNotFoundError
        os.fchdir(state.folder)
        os.close(state.folder)
        Path.cwd()
    except OSError:  # it was removed, or closed to this user
        with suppress(OSError, RuntimeError):  # there is no home: it stays where Python is
            os.chdir(Path.home())
        notes.append(f"The working folder was removed: this process is in {Path.cwd()}.")
    shell.starting_dir = state.started_in
    visited: list[Any] = shell.user_ns["_dh"]  # for ``%cd -``; of strings before IPython 8
    visited[:] = map(type(visited[0]), state.visited)
    return notes


def _load_extensions(shell: Shell, state: State) -> list[str]:
    """Load the IPython extensions of the old process; return a note for each that fails."""
    notes = []
    with state.imports.alone():
        for name in state.extensions:
            if name not in shell.extension_manager.loaded:
                try:
                    shell.extension_manager.load_extension(name)
                except Exception as error:
                    notes.append(f"Not loaded again: {name} ({text.named(error)}).")
    return notes


def _report(shell: Shell, state: State, make_report: Report, notes: list[str]) -> Any:
    """Report in the cell that asked; return the cell's value."""
    del shell.transform_cell
    history = shell.history_manager  # the lists are also the notebook's `In` and `_ih`
    history.input_hist_parsed[:], history.input_hist_raw[:] = state.inputs
    opened = nullcontext() if state.file is None else handover.opened(state.file)
    with opened as file, state.imports.alone():
        return make_report(pickle.loads(state.payload), file, notes)


def _replace_code(shell: Shell, state: State) -> None:
    """Have the next cell run the report; for that time an attribute hides the shell's method."""
    target = "" if state.target is None else f"{state.target} = "
    code = f"{target}__import__('sys').modules[{__name__!r}].report()\n"
    shell.transform_cell = lambda _: code


# --- in a kernel ----------------------------------------------------------------------------------


def _answer_first(shell: Shell, state: State, prepare: Callable[[], None]) -> None:
    """Have the first request run the report, when the clients are connected again."""
    kernel, app = shell.kernel, shell.kernel.parent
    run = kernel.shell_handlers["execute_request"]

    async def answer(stream: Any, identities: Any, request: dict[str, Any]) -> None:
        kernel.shell_handlers["execute_request"] = run
        deadline = time.monotonic() + _PATIENCE
        while ports.clients(app) < state.clients and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        subscribed = time.monotonic() + _SUBSCRIPTION
        with suppress(Exception), state.imports.alone():
            prepare()  # what fails here fails in the report, too, which shows it
        await asyncio.sleep(max(0.0, subscribed - time.monotonic()))
        _replace_code(shell, state)
        try:
            await run(stream, identities, request)
        finally:
            del kernel.pre_handler_hook

    # Before the report an interrupt would leave it to the next cell, in place of its own code.
    request_queue.ignore_interrupts(kernel)
    kernel.shell_handlers["execute_request"] = answer


def _replay(kernel: Any, messages: list[list[bytes]]) -> None:
    """Hand the requests to the kernel before it reads any from its socket."""
    thread = getattr(kernel, "shell_channel_thread", None)
    if thread is not None:
        _ = thread.manager  # it is made when it is first used, by the main thread alone

    def replay() -> None:
        for parts in messages:
            frames = [zmq.Frame(part) for part in parts]
            if thread is None:  # ipykernel 6
                kernel.schedule_dispatch(kernel.dispatch_shell, frames)
            else:
                task = asyncio.ensure_future(kernel.shell_channel_thread_main(frames))
                _tasks.append(task)

    kernel.shell_stream.io_loop.add_callback(replay)


# --- in a terminal --------------------------------------------------------------------------------


def _run_first(shell: Shell, state: State) -> None:
    """Run the report before the first prompt, when the user's startup files were run."""
    loop = shell.mainloop

    def mainloop() -> None:
        del shell.mainloop
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored across ``execve``
        _replace_code(shell, state)
        shell.run_cell(state.inputs[1][-1], store_history=True)
        loop()

    shell.mainloop = mainloop
