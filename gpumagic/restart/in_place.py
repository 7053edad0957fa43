"""Restart a kernel, or IPython in a terminal, in place, with another environment.

``os.execve`` keeps the process and its ports, so that front ends notice only broken connections,
which zmq makes again. The old program writes its state to a file (`state_file`); the
new one answers the request that asked for the restart (`resuming`) and runs those queued behind it.

This folder uses IPython's and ipykernel's objects as they are given to it; only `loader`, which
starts them, imports them.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn

from gpumagic.errors import RestartError
from gpumagic.restart import (
    command_line,
    connections,
    execution_count,
    execve,
    exit_functions,
    losses,
    pending_requests,
    shell_queue,
    shutdown,
    signals,
    sockets,
    state_file,
)
from gpumagic.system import import_path


def check(shell: Any, *, force: bool = False) -> None:
    """Return if ``shell`` can be restarted in place.

    Raises:
        RestartError: it cannot, and why; ``force`` overrides what would only be lost.
    """
    if sys.platform == "win32":
        raise RestartError(
            "Windows cannot replace a running process: restart the kernel (Kernel > Restart), and "
            "run this line without --restart in its first cell"
        )
    app = _app(shell)
    if app is None:
        raise RestartError(
            "only a Jupyter kernel or IPython in a terminal of its own can be restarted in place"
        )
    if threading.current_thread() is not threading.main_thread():
        raise RestartError(
            "this cell runs in a subshell, or in another thread; run the line in the main shell"
        )
    command_line.command(app)
    if hasattr(shell, "kernel"):
        try:
            stream = shell_queue.request_stream(shell.kernel)
            known = stream.socket is not None and shell.kernel._parent_ident["shell"]
        except (AttributeError, KeyError, TypeError):
            known = False
        if not known:
            raise RestartError(
                "gpumagic cannot hand on the queued requests of this version of ipykernel"
            )
    if not force:
        losses.check(shutdown.variables(shell), execve.children())


def _app(shell: Any) -> Any:
    """Return IPython's application that runs ``shell``; None if another program does."""
    kernel = getattr(shell, "kernel", None)
    app = getattr(shell if kernel is None else kernel, "parent", None)
    return app if getattr(app, "shell", None) is shell and hasattr(app, "argv") else None


def trial(shell: Any, environment: Mapping[str, str]) -> command_line.Trial:
    """Start a child that finds out whether a process with ``environment`` starts.

    Raises:
        RestartError: Python cannot be started again.
    """
    what = "kernel" if hasattr(shell, "kernel") else "terminal"
    return command_line.Trial(
        command_line.command(_app(shell)), environment, what, shell.starting_dir
    )


def restart(
    shell: Any,
    environment: Mapping[str, str],
    payload: dict[str, Any],
    start_trial: command_line.Trial,
    *,
    files: Sequence[IO[bytes]] = (),
    force: bool = False,
) -> NoReturn:
    """Replace this program by a fresh one with ``environment``; `resuming` continues there.

    ``payload`` is pickled; ``start_trial`` is the `trial` of that environment; ``files`` (of
    `state_file.create`) are inherited.

    Raises:
        RestartError: it is not possible, or was interrupted; nothing has changed.
    """
    requested_at = time.time()
    start_trial.result()
    check(shell, force=force)
    app, kernel = _app(shell), getattr(shell, "kernel", None)
    children = execve.children()
    state = {
        **_state(shell, app),
        "payload": pickle.dumps(payload),
        "requested_at": requested_at,
        "files": [state_file.address(file) for file in files],
    }
    with contextlib.ExitStack() as undo:
        try:
            file = undo.enter_context(state_file.create())
        except OSError as error:
            raise RestartError(
                f"the state for the new process cannot be written: {error}"
            ) from None
        if force:
            execve.terminate(children)
        # Helper processes of libraries end by themselves; the new program reaps them.
        state["children"] = [*execve.children(helpers=True)]
        shutdown.flush_files()
        interrupts = undo.enter_context(signals.interrupts_deferred())
        listening: dict[int, int] = {}
        if kernel is not None:
            state["channels"] = [
                {name: tuple(arrived) for name, arrived in found.items()}
                for found in connections.snapshot(app)
            ]
            state["current_request"] = pending_requests.current_request(kernel)
            state["sockets"] = listening = undo.enter_context(sockets.listening_copies(app))
        pickle.dump(state, file)
        final = {**environment, state_file.VARIABLE: state_file.address(file)}
        if kernel is not None:
            _stop_receiving(app, kernel, file, listening, undo)
        _execute(shell, final, interrupts, listening)
    raise AssertionError("unreachable")


def _state(shell: Any, app: Any) -> dict[str, Any]:
    """Return what the new program needs to know of this one, before anything is changed."""
    is_kernel = hasattr(shell, "kernel")
    return {
        "kernel": is_kernel,
        "lost": shutdown.lost(shell),
        "variables": [*shutdown.variables(shell)],
        "counters": execution_count.capture(shell),
        "module_folders": import_path.module_folders(),
        "removes_connection_file": is_kernel and exit_functions.removes_connection_file(app),
    }


def _execute(
    shell: Any,
    environment: Mapping[str, str],
    interrupts: signals.DeferredInterrupts,
    listening: Mapping[int, int],
) -> NoReturn:
    """Run the exit functions, and replace the program.

    Raises:
        RestartError: it was interrupted before, or the system refuses.
    """
    try:
        if interrupts.pending:
            raise RestartError("interrupted before the restart; everything is as it was")
        interrupts.raising = True
        exit_functions.run_exit_functions(shell)
        interrupts.raising = False
        if interrupts.pending:  # the new program reports it
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            signal.raise_signal(signal.SIGINT)
        execve.replace(
            command_line.command(_app(shell)),
            environment,
            shell.starting_dir,
            defer_interrupts=True,
            inherited=listening.values(),
        )
    except (OSError, TypeError, ValueError) as error:
        raise RestartError(f"the system refuses to start the process again: {error}") from None


def _stop_receiving(
    app: Any,
    kernel: Any,
    file: IO[bytes],
    listening: Mapping[int, int],
    undo: contextlib.ExitStack,
) -> None:
    """Publish what remains, and write the pending requests to the file, until ``undo``."""

    def bind(socket: Any, endpoint: str) -> None:
        sockets.rebind(socket, endpoint, listening)

    undo.callback(connections.wait_for_clients, app, connections.snapshot(app))
    undo.callback(connections.resume_publishing, app, bind)
    connections.finish_publishing(app)
    undo.enter_context(shutdown.original_streams())
    waiting = pending_requests.PendingRequests(kernel, listening)
    undo.callback(waiting.put_back)
    # A request that arrives from here on would be lost: nothing slow may follow.
    try:
        pickle.dump(waiting.take(), file)
    except TimeoutError as error:
        raise RestartError(f"{error}; everything is as it was") from None
    file.flush()
