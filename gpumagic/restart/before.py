"""In the old program: take the queued requests, end as a kernel ends, execute the command again.

The cell that asks ends at once, without a reply. From then on the kernel hands each request that it
has queued anywhere (its socket, its threads, its locks, its queue) to its handlers, one by one and
in order, as always; but the handlers are ours, and write it down. So nothing needs to be known of
where requests wait, and ipykernel 6 and 7 need no different code.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import io
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, Any, NoReturn

import zmq

from gpumagic.errors import RestartError
from gpumagic.restart import handover, losses, ports
from gpumagic.system import import_path
from gpumagic.system.shell import Shell

#: The option that names the connection file, with its value or before it.
_CONNECTION = re.compile(r"(?:--?f|--IPKernelApp\.connection_file)(=.*)?")
#: So many looks, 10 ms apart, without a new request: all that have arrived are taken.
_QUIET_LOOKS = 5
#: Seconds in which the cell that asks ends, and the last output is sent.
_PATIENCE = 5.0
#: Seconds in which a client ends its connection, if it is not stopped itself.
_LONGEST_LEAVE = 1.0


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
    app = _app(shell)
    if app is None:
        raise RestartError(
            "only a Jupyter kernel or IPython in a terminal of its own can be restarted in place"
        )
    given = list(app.argv)
    program = Path(sys.orig_argv[-1]).stem.lower()
    if given != sys.orig_argv[len(sys.orig_argv) - len(given) :] or not (
        given or program.startswith("ipython")
    ):
        raise RestartError("this shell is part of another program, which would start again")
    if app.file_to_run or app.code_to_run or app.module_to_run:
        raise RestartError(
            "IPython has run a file or a command at its start, which would be run again: make the "
            "choice at its top, or start it with CUDA_VISIBLE_DEVICES"
        )
    _check_program(sys.orig_argv[: len(sys.orig_argv) - len(given)], shell.starting_dir)
    if not sys.executable or not os.access(sys.executable, os.X_OK):
        raise RestartError(f"the Python interpreter cannot be started again: {sys.executable!r}")
    if threading.current_thread() is not threading.main_thread():
        raise RestartError(
            "this cell runs in a subshell, or in another thread; run the line in the main shell"
        )
    if hasattr(shell, "kernel"):
        ports.check(app)
    if not force:
        losses.check(shell.user_ns)


def _check_program(words: Sequence[str], folder: str) -> None:
    """Return if Python finds the program, a module or a file, when it starts in another folder.

    Raises:
        RestartError: it does not; the process would end.
    """
    name, places = words[-1], import_path.trusted(sys.path, folder)
    if words[-2:-1] == ["-m"]:
        is_there = any(  # another finder is that of a package which is developed elsewhere
            each.find_spec(name.partition(".")[0], places if each is PathFinder else None)
            for each in sys.meta_path
        )
    else:
        is_there = name.startswith("-") or Path(folder, name).exists()
    if not is_there:
        raise RestartError(
            f"{name}, which has started this process, is found in {folder} alone, if it is still "
            "there: restart the notebook process (Kernel > Restart)"
        )


def _app(shell: Shell) -> Any:
    """Return IPython's application that runs ``shell``; None if another program does."""
    app = getattr(getattr(shell, "kernel", shell), "parent", None)
    return app if getattr(app, "shell", None) is shell and hasattr(app, "argv") else None


def command(app: Any, extension: str) -> list[str]:
    """Return the command line of this process, with ``extension`` as the last one to be loaded.

    The user's own are given again: a list on the command line replaces that of a config file.
    """
    name = "IPKernelApp" if hasattr(app, "kernel") else "TerminalIPythonApp"
    option = f"--{name}.extra_extensions="
    added = [option + each for each in app.extra_extensions if each != extension]
    added.append(option + extension)
    given = _from_anywhere(sys.orig_argv[1:], len(app.argv), app.shell.starting_dir)
    if not hasattr(app, "kernel"):
        added.append(f"--{name}.display_banner=False")
    else:
        given = [*_without(_CONNECTION, given)]
        # A name alone ipykernel looks for in the working folder first.
        added += ["-f", str(Path(app.shell.starting_dir, app.abs_connection_file))]
        added += ports.option(app)
    given = [word for word in given if word not in added and not word.startswith(option)]
    return [sys.executable, *given, *added]


def _from_anywhere(words: Sequence[str], arguments: int, folder: str) -> list[str]:
    """Return a command line, of which the last words are ``arguments``, for another folder."""
    found, last = [*words], len(words) - arguments - 1
    if last == 0 or (last > 0 and words[last - 1] not in ("-m", "-c")):  # the program's file
        path = Path(folder, words[last])
        if path.exists():
            found[last] = str(path)
    return found


def _without(option: re.Pattern[str], words: Iterable[str]) -> Iterator[str]:
    """Yield the words without an option and its value."""
    remaining = iter(words)
    for word in remaining:
        match = option.fullmatch(word)
        if match is None:
            yield word
        elif match[1] is None:
            next(remaining, None)


def restart(
    shell: Shell,
    extension: str,
    environment: Mapping[str, str],
    payload: Mapping[str, Any],
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
    app, history = _app(shell), shell.history_manager
    state: dict[str, Any] = {
        "payload": pickle.dumps(payload),  # what cannot be pickled raises here
        "target": target,
        "file": None if file is None else file.fileno(),
        "inherited": [*inherited],
        "python_path": environment.get("PYTHONPATH"),
        "count": shell.displayhook.prompt_count,
        "inputs": (list(history.input_hist_parsed), list(history.input_hist_raw)),
        "path": list(sys.path),
        "imports": import_path.Imports.of_this_process(shell.starting_dir),
        "started_in": shell.starting_dir,
        "visited": [*map(str, shell.user_ns.get("_dh", ()))],
        "extensions": sorted(shell.extension_manager.loaded - {extension}),
        "requests": [],
    }
    told, words, held = handover.in_memory(), command(app, extension), dict[int, int]()
    environment = import_path.environment(environment, shell.starting_dir)

    def finish() -> NoReturn:
        files = [each.fileno() for each in (told, file) if each is not None]
        with suppress(OSError):  # another folder may have its name by now: the descriptor is kept
            state["folder"] = os.open(".", os.O_PATH | os.O_DIRECTORY)
            files.append(state["folder"])
        try:
            variables = {**environment, handover.VARIABLE: handover.give(told, state)}
            _replace(shell, words, variables, {*files, *inherited, *held.values()})
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:  # there is no way back: the front end sees a dead kernel, not a silent one
            os._exit(1)

    if not hasattr(shell, "kernel"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        last()
        finish()
    # On the ports on which the kernel sends.
    state["clients"] = len(clients(app.shell_port, app.iopub_port))
    held = state["listening"] = ports.hold(app)
    state["connection"] = app.get_connection_info()
    ignore_interrupts(shell.kernel)  # from here on there is no way back
    last()
    _take_requests(shell.kernel, state["requests"], finish)
    shell.set_custom_exc((Restarting,), lambda *_, **__: [])  # nothing is shown
    raise Restarting


# --- the queued requests --------------------------------------------------------------------------


def _take_requests(kernel: Any, requests: list[list[bytes]], end: Callable[[], None]) -> None:
    """Call ``end`` when the cell has ended, and its request and all behind it are taken."""
    send, ended = kernel.session.send, asyncio.Event()

    def record(stream: object, identities: list[bytes], request: dict[str, Any]) -> None:
        parts = kernel.session.serialize(request, ident=identities)
        requests.append([*parts, *map(bytes, request.get("buffers", ()))])

    def without_reply(stream: object, kind: Any, *arguments: Any, **named: Any) -> Any:
        if kind not in ("execute_reply", "error"):
            return send(stream, kind, *arguments, **named)
        if kind == "execute_reply":
            ended.set()
        return {"content": {"status": "ok"}}  # ipykernel looks whether to abort the queue

    async def drain() -> None:
        with suppress(asyncio.TimeoutError):  # no reply comes where a stream cannot be flushed
            await asyncio.wait_for(ended.wait(), _PATIENCE)
        stream = kernel.shell_stream  # ipykernel 7 reads it in a thread, which alone may touch it
        leaving = _disconnect(stream.socket, kernel.parent.shell_port)
        loop = stream.io_loop.asyncio_loop
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(leaving, loop))
        looks = 0
        while looks < _QUIET_LOOKS:
            seen = len(requests)
            await asyncio.sleep(0.01)
            looks = looks + 1 if len(requests) == seen else 0
        end()

    record(None, kernel._parent_ident["shell"], kernel.get_parent("shell"))
    kernel.io_loop.add_callback(drain)
    kernel.session.send = without_reply
    kernel.shell_handlers = dict.fromkeys(kernel.shell_handlers, record)
    # "busy" and "idle" are for the new program to say: an early "idle" ends a client's cell.
    kernel._publish_status = lambda *_, **__: None


def ignore_interrupts(kernel: Any) -> None:
    """Ignore SIGINT also while ipykernel handles a request, until its hook is its own again."""

    def stay_ignored() -> None:
        kernel.saved_sigint_handler = signal.SIG_IGN  # what ipykernel restores

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.pre_handler_hook = stay_ignored


async def _disconnect(shell: zmq.Socket[Any], port: int) -> None:
    """Have the clients end their connections: what they have sent until then arrives.

    They connect again after 100 ms or more, and keep what they send until then.
    """
    end = time.monotonic() + _LONGEST_LEAVE
    while (found := clients(port)) and time.monotonic() < end:
        for each in found:
            with suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as connection:
                connection.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.01)
    with suppress(zmq.ZMQError):
        endpoint: Any = shell.getsockopt(zmq.LAST_ENDPOINT)
        shell.unbind(endpoint)  # it cuts off who is connected


def clients(*numbers: int) -> list[Any]:
    """Return the connections of clients to ports of this process."""
    return [each for each in ports.connections(*numbers) if each.raddr]


# --- the end --------------------------------------------------------------------------------------


def _replace(
    shell: Shell, words: list[str], environment: Mapping[str, str], inherited: Collection[int]
) -> None:
    """End as a kernel, or IPython, ends, and execute ``words``."""
    import posix

    losses.end_children()  # Python's end would wait for them
    app = _app(shell)
    if hasattr(shell, "kernel"):
        atexit.unregister(app.cleanup_connection_file)  # the new program uses it
    files = _flush(getattr(app, "iopub_thread", None))
    try:
        Path.cwd()
    except OSError:  # it was removed; IPython's own exit function asks for it
        os.chdir("/")
    # IPython's would delete the variables: an object that goes on would be finalised (`__del__`).
    app.shell.reset = lambda *_, **__: None
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
    # Python imports from there, so never where the notebook is now, or began: others may write to
    # these, or have made them anew.
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
