"""In the old program: take the queued requests, end as a kernel ends, execute the command again."""

from __future__ import annotations

import atexit
import gc
import io
import os
import pickle
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from gpumagic.errors import RestartError
from gpumagic.restart import handover, ports, program, request_queue, running
from gpumagic.system import import_path
from gpumagic.system.shell import Shell

#: Seconds in which the last output is sent.
_PATIENCE = 5.0


class Restarting(BaseException):
    """Ends the cell that asks for the restart; nothing is shown of it."""

    def _render_traceback_(self) -> list[str]:
        """Have IPython 9 keep no traceback: it would format one, for half a second or more."""
        return []


def check(shell: Shell, *, force: bool = False) -> None:
    """Return if the process of ``shell`` can be replaced.

    Raises:
        RestartError: it cannot, and why; ``force`` overrides what would only be lost.
    """
    if sys.platform != "linux":
        raise RestartError(
            "only Linux can replace a running process by itself: restart the notebook process "
            "(Kernel > Restart), and choose its GPUs in the first cell"
        )
    program.check(shell)
    if threading.current_thread() is not threading.main_thread():
        raise RestartError(
            "this cell runs in a subshell, or in another thread; run the line in the main shell"
        )
    if hasattr(shell, "kernel"):
        ports.check(shell.kernel.parent)
    if not force:
        running.check(shell.user_ns)


def restart(
    shell: Shell,
    extension: str,
    environment: Mapping[str, str],
    payload: object,
    *,
    file: IO[bytes] | None = None,
    inherited: Collection[int] = (),
    target: str | None = None,
    last: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Replace this program by a fresh one with ``environment``, when the cell has ended.

    There the IPython extension named ``extension`` goes on, with ``payload``, which is pickled, and
    ``file``; the value of its report is assigned to ``target``. The descriptors ``inherited`` stay
    open. ``last`` is called when nothing can fail any more and interrupts are ignored. Children
    are ended: call `check` before.

    Raises:
        Restarting: in a kernel, always: what is behind it in the cell is not run.
    """
    app, history = program.application(shell), shell.history_manager
    state = handover.State(
        payload=pickle.dumps(payload),  # what cannot be pickled raises here
        target=target,
        file=None if file is None else file.fileno(),
        inherited=[*inherited],
        searched={name: environment.get(name) for name in import_path.SEARCHED},
        count=shell.displayhook.prompt_count,
        inputs=([*history.input_hist_parsed], [*history.input_hist_raw]),
        path=[*sys.path],
        imports=import_path.Imports.of_this_process(shell.starting_dir),
        started_in=shell.starting_dir,
        visited=[*map(str, shell.user_ns.get("_dh", ()))],
        extensions=sorted(shell.extension_manager.loaded - {extension}),
    )
    told, words = handover.in_memory(), program.command(app, extension)
    environment = import_path.environment(environment, shell.starting_dir)

    def finish() -> NoReturn:
        files = [each.fileno() for each in (told, file) if each is not None]
        with suppress(OSError):  # another folder may have its name by now: the descriptor is kept
            state.folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
            files.append(state.folder)
        try:
            variables = {**environment, handover.VARIABLE: handover.give(told, state)}
            _replace(shell, words, variables, {*files, *inherited, *state.listening.values()})
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:  # there is no way back: the front end sees a dead kernel, not a silent one
            os._exit(1)

    if not hasattr(shell, "kernel"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        last()
        finish()
    state.clients = ports.clients(app)
    state.listening = ports.hold(app)
    state.connection = app.get_connection_info()
    request_queue.ignore_interrupts(shell.kernel)  # from here on there is no way back
    last()
    request_queue.take(shell.kernel, state.requests, finish)
    shell.set_custom_exc((Restarting,), lambda *_, **__: [])  # nothing is shown
    raise Restarting


# --- the end --------------------------------------------------------------------------------------


def _replace(
    shell: Shell, words: list[str], environment: Mapping[str, str], inherited: Collection[int]
) -> None:
    """End as a kernel, or IPython, ends, and execute ``words``."""
    import posix

    running.end_children()  # Python's end would wait for them
    app = program.application(shell)
    if hasattr(shell, "kernel"):
        atexit.unregister(app.cleanup_connection_file)  # the new program uses it
    files = _flush(getattr(app, "iopub_thread", None))
    try:
        Path.cwd()
    except OSError:  # it was removed; IPython's own exit function asks for it
        os.chdir("/")
    # An object that goes on would be finalised: IPython's end deletes the variables.
    app.shell.reset = lambda *_, **__: None
    for each in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        each.atexit = False
    with suppress(Exception):  # the user's functions, then ipykernel's own, which close the sockets
        atexit._run_exitfuncs()
    for each in files:  # ipykernel's replace the descriptors 1 and 2 by pipes to their threads
        with suppress(AttributeError, OSError, TypeError):  # newer ones have done it
            os.dup2(each._original_stdstream_copy, each._original_stdstream_fd)
    for entry in [*Path("/proc/self/fd").iterdir()]:  # those of GPUs would hold their memory
        number = int(entry.name)
        with suppress(OSError):  # that of the folder itself
            os.set_inheritable(number, number <= 2 or number in inherited)
    # All three are inherited: an interrupt would end the interpreter that starts, a timer later.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Python imports from there, so never where the notebook is now, or began.
    for folder in ("/", sys.prefix):
        with suppress(OSError):  # it is closed to this user
            os.chdir(folder)
    # Not os.execve: debuggers replace that.
    posix.execve(words[0], words, dict(environment))


def _flush(iopub_thread: Any) -> list[Any]:
    """Write out the open files, as Python does at its end, and what is left to publish.

    Returns the files, with ipykernel's streams.
    """
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    files = [
        each
        for each in gc.get_objects()
        if type(each) in kinds or type(each).__name__ == "OutStream"
    ]
    for each in [*files, sys.stdout, sys.stderr]:
        with suppress(Exception):  # it may be closed, or the user's own
            each.flush()
    if iopub_thread is None:
        return files
    sent = threading.Event()

    def last() -> None:
        iopub_thread.socket.linger = int(_PATIENCE * 1000)
        sent.set()

    iopub_thread.schedule(last)
    sent.wait(_PATIENCE)
    return files
