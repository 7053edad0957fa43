"""A kernel, or IPython in a terminal, replaced in place by a fresh one with another environment.

``os.execve`` keeps the process, so that no front end notices more than broken connections, which
zmq mends by itself. The old process image leaves to the new one what it must know (`handover`);
the new one answers the request that asked for the restart and runs those that waited behind it.

``restart`` takes IPython's and ipykernel's objects as they are given to it; only `loader`, which
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
    """Whether ``shell`` can be restarted in place.

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
            stream = shell_queue.inbox(shell.kernel)
            known = stream.socket is not None and shell.kernel._parent_ident["shell"]
        except (AttributeError, KeyError, TypeError):
            known = False
        if not known:
            raise RestartError("this kernel keeps its requests where gpumagic cannot carry them on")
    if not force:
        _check_losses(shell)


def _check_losses(shell: Any) -> None:
    what = losses.named(shutdown.variables(shell))
    if what:
        raise RestartError(
            f"a restart would lose the {' and the '.join(what)}; end them, or add --force"
        )


def _app(shell: Any) -> Any:
    """The application that the process of ``shell`` is."""
    kernel = getattr(shell, "kernel", None)
    app = getattr(shell if kernel is None else kernel, "parent", None)
    return app if getattr(app, "shell", None) is shell and hasattr(app, "argv") else None


def trial(shell: Any, environment: Mapping[str, str]) -> command_line.Trial:
    """Start to find out whether a process with ``environment`` could take the place of this one.

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
    tried: command_line.Trial,
    *,
    files: Sequence[IO[bytes]] = (),
    force: bool = False,
) -> NoReturn:
    """Replace this process by a fresh one with ``environment``; see `resuming` for what follows.

    ``payload`` is pickled; ``tried`` is the `trial` of that environment; ``files`` (of
    `handover.create`) are handed on as they are.

    Raises:
        RestartError: it was not possible, or interrupted; everything is as it was.
    """
    asked = time.time()
    tried.result()
    check(shell, force=force)
    app, kernel = _app(shell), getattr(shell, "kernel", None)
    children = execve.children()
    state: dict[str, Any] = {
        "kernel": kernel is not None,
        "payload": pickle.dumps(payload),
        "asked": asked,
        "lost": shutdown.lost(shell),
        "variables": [*shutdown.variables(shell)],
        "numbering": execution_count.save(shell),
        "places": import_path.module_folders(),
        "files": [state_file.address(file) for file in files],
        "removes_connection_file": kernel is not None
        and exit_functions.removes_connection_file(app),
    }
    with contextlib.ExitStack() as undo:
        try:
            letter = undo.enter_context(state_file.create())
        except OSError as error:
            raise RestartError(f"what is to be handed on cannot be written: {error}") from None
        if force:
            execve.end(children)
        # Helpers of libraries, which end when this process has gone.
        state["children"] = [*execve.children(helpers=True)]
        shutdown.flush_files()
        held = undo.enter_context(signals.interrupts_held())
        listening: dict[int, int] = {}
        if kernel is not None:
            state["channels"] = [
                {name: tuple(arrived) for name, arrived in found.items()}
                for found in connections.everybody(app)
            ]
            state["asking"] = pending_requests.asking(kernel)
            state["sockets"] = listening = undo.enter_context(sockets.kept(app))
        pickle.dump(state, letter)
        final = {**environment, state_file.VARIABLE: state_file.address(letter)}
        if kernel is not None:
            _stop_hearing(app, kernel, letter, listening, undo)
        try:
            if held.came:
                raise RestartError("interrupted before the restart; everything is as it was")
            held.raises = True
            exit_functions.run_exit_functions(shell)
            held.raises = False
            if held.came:  # tell the new process
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                signal.raise_signal(signal.SIGINT)
            execve.replace(
                command_line.command(app),
                final,
                shell.starting_dir,
                hold=True,
                stay=listening.values(),
            )
        except (OSError, TypeError, ValueError) as error:
            raise RestartError(f"the system refuses to start the process again: {error}") from None
    raise AssertionError("unreachable")


def _stop_hearing(
    app: Any,
    kernel: Any,
    letter: IO[bytes],
    listening: Mapping[int, int],
    undo: contextlib.ExitStack,
) -> None:
    """Publish what is left, and write the requests that wait into the letter; until ``undo``."""

    def bind(socket: Any, endpoint: str) -> None:
        sockets.bind_again(socket, endpoint, listening)

    undo.callback(connections.wait_for, app, connections.everybody(app))
    undo.callback(connections.publish_again, app, bind)
    connections.publish_all(app)
    undo.enter_context(shutdown.streams_given_back())
    waiting = pending_requests.Waiting(kernel, listening)
    undo.callback(waiting.give_back)
    # From here on a further request would be lost: quickly, now.
    try:
        pickle.dump(waiting.take(), letter)
    except TimeoutError as error:
        raise RestartError(f"{error}; everything is as it was") from None
    letter.flush()
