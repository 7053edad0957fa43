"""A kernel, or IPython in a terminal, replaced in place by a fresh one with another environment.

``os.execve`` keeps the process, so that no front end notices more than broken connections, which
zmq mends by itself. The old process image leaves to the new one what it must know (`handover`);
the new one answers the request that asked for the restart and runs those that waited behind it.

``restart`` may import IPython's and ipykernel's objects only as they are given to it.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from gpumagic.errors import RestartError
from gpumagic.restart import clients, handover, leaving, losses, numbering, process, requests

#: Loads gpumagic at the start of a kernel or of IPython.
LOAD = "--InteractiveShellApp.extra_extensions=gpumagic"


@dataclass(frozen=True)
class Resumed:
    """What a process knows of the one that it replaced."""

    #: Whatever the caller of `restart` wanted to be carried over.
    payload: dict[str, Any]
    #: ``time.time()`` when the restart was asked for.
    asked: float
    #: The files that `restart` was given, at their beginning; closed after the report.
    files: list[IO[bytes]]
    #: What was lost beside variables, a phrase each.
    lost: list[str]
    #: The names of the variables that there were.
    variables: list[str]

    @property
    def seconds(self) -> float:
        """How long the restart has taken until now."""
        return time.time() - self.asked


#: Tells what became of a restart, in the new process, by print and display. Returns the value of
#: the cell that asked, or None.
Report = Callable[[Resumed], Any]


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
    if process.is_fork(shell):
        raise RestartError("this is a forked copy of the kernel; restart the kernel itself")
    app = _app(shell)
    if app is None:
        raise RestartError(
            "only a Jupyter kernel or IPython in a terminal of its own can be restarted in place"
        )
    if threading.current_thread() is not threading.main_thread():
        raise RestartError(
            "this cell runs in a subshell, or in another thread; run the line in the main shell"
        )
    _command(shell)
    if hasattr(shell, "kernel"):
        try:
            stream = requests.inbox(shell.kernel)
            known = stream.socket is not None and shell.kernel._parent_ident["shell"]
        except (AttributeError, KeyError, TypeError):
            known = False
        if not known:
            raise RestartError("this kernel keeps its requests where gpumagic cannot carry them on")
    if not force:
        _check_losses(shell)


def _check_losses(shell: Any) -> None:
    what = losses.named(leaving.variables(shell))
    if what:
        raise RestartError(
            f"a restart would lose the {' and the '.join(what)}; end them, or add --force"
        )


def _app(shell: Any) -> Any:
    """The application that the process of ``shell`` is."""
    kernel = getattr(shell, "kernel", None)
    app = getattr(shell if kernel is None else kernel, "parent", None)
    return app if getattr(app, "shell", None) is shell and hasattr(app, "argv") else None


def restart(
    shell: Any,
    environment: Mapping[str, str],
    payload: dict[str, Any],
    *,
    files: Sequence[IO[bytes]] = (),
    force: bool = False,
) -> NoReturn:
    """Replace this process by a fresh one with ``environment``; see `resume` for what follows.

    ``payload`` is pickled; ``files`` (of `handover.create`) are handed on as they are.

    Raises:
        RestartError: it was not possible; everything is as it was.
    """
    asked = time.time()
    check(shell, force=force)
    app, kernel = _app(shell), getattr(shell, "kernel", None)
    state: dict[str, Any] = {
        "payload": payload,
        "asked": asked,
        "lost": leaving.lost(shell),
        "variables": [*leaving.variables(shell)],
        "numbering": numbering.save(shell),
        "files": [handover.address(file) for file in files],
    }
    with contextlib.ExitStack() as undo:
        letter = undo.enter_context(handover.create())
        if force:
            process.end(process.children())
        leaving.flush_files()
        if kernel is not None:
            state["channels"] = clients.channels(app)
            state["asking"] = requests.asking(kernel)
        pickle.dump(state, letter)
        final = {**environment, handover.VARIABLE: handover.address(letter)}
        if kernel is not None:
            undo.callback(clients.wait_for, app, state["channels"])
            undo.callback(clients.publish_again, app)
            clients.publish_all(app)
            undo.enter_context(leaving.streams_given_back())
            waiting = requests.Waiting(kernel)
            undo.callback(waiting.give_back)
            # From here on a further request would be lost: quickly, now.
            pickle.dump(waiting.take(), letter)
            letter.flush()
        try:
            process.replace(_command(shell), final, shell.starting_dir, kernel=kernel is not None)
        except OSError as error:
            raise RestartError(f"the system refuses to start the process again: {error}") from None
    raise AssertionError("unreachable")


def _command(shell: Any) -> list[str]:
    extra = () if hasattr(shell, "kernel") else ("--TerminalIPythonApp.display_banner=False",)
    return process.command(_app(shell), (LOAD, *extra))


def resume(shell: Any, report: Report) -> None:
    """If this process has replaced another one: answer its request, then run those that waited.

    For when gpumagic is loaded. ``report`` is called when the clients are back, or, in a terminal,
    at once; what it prints and displays are outputs of the cell that asked.
    """
    state = handover.take()
    if state is None:
        return
    from gpumagic.restart import arriving

    arriving.resume(shell, state, report)
