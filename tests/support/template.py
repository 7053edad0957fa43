"""A process that has imported what kernels import, and forks one in milliseconds.

``python -m tests.support.template FD [LISTENING]`` reads requests from the socket FD, and from
those who connect to the socket LISTENING, and answers each; `tests.support.forks` sends them. With
LISTENING it imports nothing before the first one connects. A fork becomes what the request says:
command, environment, working folder, standard streams. It differs from a process that was started
in what it need not import any more; `tests/support/test_forks.py` lists the differences.

torch, gpumagic and what comes with them are hidden again after their import: ``'torch' in
sys.modules`` is false until the fork imports it, which then costs nothing: see
`tests.support.hidden`. The template has one thread, has not
initialized CUDA, and has no context of ZeroMQ.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import termios
import threading
import time
import types
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support import nanny
from tests.support.hidden import Hidden, OneByOne
from tests.virtual_gpu.remap import remap

#: What a kernel, an engine and a terminal import before they run anything.
_PLAIN = (
    "ipykernel.kernelapp",
    "ipykernel.debugger",
    "ipykernel.zmqshell",
    "IPython.core.completer",
    "IPython.terminal.ipapp",
    "ipyparallel.engine.app",
    # What the first kernel of a process imports when it starts.
    "faulthandler",
    "sqlite3",
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)
#: Imported and hidden again, each with what came along: tests ask whether these are loaded.
#: torch's compiler is what the first optimizer of a process imports.
_HIDDEN = (
    ("torch",),
    ("rich.console", "rich.table"),
    ("cloudpickle",),
    ("torch._dynamo", "torch._inductor"),
)
#: The largest environment of a fork.
ROOM = 32 * 1024
#: The longest request, environment included.
MESSAGE = 1 << 17
#: Variables of the template alone: forks are not compared by them.
OWN = {"OPENBLAS_NUM_THREADS": "1", "GPUMAGIC_TESTS_ROOM": "x" * ROOM}


def _import_everything() -> Hidden:
    # ipykernel reads, when it is imported, whose end is to be a kernel's end.
    os.environ["JPY_PARENT_PID"] = str(os.getpid())
    for name in _PLAIN:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    hidden = Hidden()
    for names in _HIDDEN:
        hidden.hide(*names)
    ours = OneByOne()
    hidden.hide("gpumagic", by=ours.hide)
    sys.meta_path[:0] = [ours, hidden]
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise RuntimeError(f"the template has {threads} threads: a fork would have one of them")
    return hidden


def serve(
    owner: socket.socket, listening: socket.socket | None, started_with: Mapping[str, str]
) -> dict[str, Any] | None:
    """Answer requests until the owner is gone; a fork returns the request that it is for."""
    forks: dict[socket.socket, set[int]] = {}
    hello = json.dumps({"pid": os.getpid(), "environment": started_with}).encode()

    def begin(client: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):
            client.send(hello)
        forks[client] = set()

    begin(owner)
    sockets = [] if listening is None else [listening]
    while True:
        for ready in select.select([*sockets, *forks], [], [])[0]:
            if ready is listening:
                begin(listening.accept()[0])
                continue
            request = _receive(ready)
            if request is None:
                if ready is owner:
                    return None
                _end_forks(forks.pop(ready))
                ready.close()
                continue
            if "leave" in request:
                # What is still running is found by whoever looks for processes left behind.
                forks[ready].clear()
                continue
            if "poll" in request:
                answer = _poll(request["poll"])
                if answer is not None:
                    forks[ready].discard(request["poll"])
            else:
                answer = os.fork()
                if answer == 0:
                    for each in (*sockets, *forks):
                        each.close()
                    return request
                forks[ready].add(answer)
            for fd in request["fds"]:
                os.close(fd)
            with contextlib.suppress(ConnectionError):
                ready.send(json.dumps(answer).encode())


def _receive(channel: socket.socket) -> dict[str, Any] | None:
    """Read a request, with its descriptors; None when the other side is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(channel, MESSAGE, 3)
    except ConnectionError:
        return None
    return {**json.loads(data), "fds": fds} if data else None


def _end_forks(pids: set[int]) -> None:
    """End the forks of a process that is gone, killed perhaps."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _poll(pid: int) -> int | None:
    """The exit code of a fork as `subprocess.Popen.returncode` has it; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def become(request: dict[str, Any], hidden: Hidden) -> None:
    """Make this fork what the request describes, all but running it."""
    os.setsid()
    for target, fd in enumerate(request["fds"]):
        os.dup2(fd, target)
        os.close(fd)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C there is for this process
    signal.signal(signal.SIGINT, signal.default_int_handler)
    old = os.environ["VIRTUAL_GPU_STATE"]
    os.environ.clear()
    os.environ.update(request["env"])
    _rewrite_start(dict(os.environ))
    if "VIRTUAL_GPU_STATE" in os.environ:
        remap(Path(old), Path(os.environ["VIRTUAL_GPU_STATE"]))
    _load_driver()
    os.chdir(request["cwd"])
    _work_where_started()
    time.tzset()
    tempfile.tempdir = None
    numpy_random = hidden.module("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    for name, fd in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        _reopen(name, fd)


def _load_driver() -> None:
    """Load the driver and NVML where this fork's scenario has them: the template has neither.

    Later searches for them find what is loaded. The search path is that of the template, where
    there are none.
    """
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
            if (Path(folder) / name).exists():
                ctypes.CDLL(str(Path(folder) / name))
                break


def _work_where_started() -> None:
    """Correct the default of ipyparallel's ``work_dir``: the folder in which it was imported."""
    module = sys.modules.get("ipyparallel.apps.baseapp")
    classes = [] if module is None else [module.BaseParallelApplication]
    for each in classes:
        classes.extend(each.__subclasses__())
        each.work_dir.default_value = each._static_immutable_initial_values["work_dir"] = str(
            Path.cwd()
        )


def _reopen(name: str, fd: int) -> None:
    """A standard stream anew, since its buffering depends on what the descriptor is."""
    old = getattr(sys, name)
    stream = open(  # noqa: SIM115
        fd,
        "r" if fd == 0 else "w",
        buffering=1 if fd == 2 or os.isatty(fd) else -1,
        encoding=old.encoding,
        errors=old.errors,
        closefd=False,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _rewrite_start(environment: dict[str, str]) -> None:
    """Write the environment where /proc/self/environ shows that of the process's start.

    The template was started with an environment large enough, of which libc uses nothing any more.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start, env_end of proc(5)
    text = b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in environment.items())
    if len(text) > end - start:
        raise RuntimeError(f"an environment of {len(text)} bytes; at most {end - start} fit")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def run(command: list[str], cwd: str) -> None:
    """Run ``PYTHON -m MODULE ARGUMENT…`` or ``PYTHON -c CODE ARGUMENT…`` as Python would."""
    kind, what, *arguments = command[1:]
    sys.orig_argv[:] = command
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    # What `python -m` made of this process's own path.
    sys.path[0] = "" if kind == "-c" else cwd
    sys.argv[:] = [kind, *arguments]
    if kind == "-m":
        runpy._run_module_as_main(what)  # type: ignore[attr-defined]
    else:
        exec(compile(what, "<string>", "exec"), main.__dict__)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest; forks end with it
    owner, *others = (socket.socket(fileno=int(word)) for word in sys.argv[1:])
    # The owner says nothing; when it is gone, it is readable too.
    if others and owner in select.select([owner, *others], [], [])[0]:
        os._exit(0)
    started_with = {name: text for name, text in os.environ.items() if name not in OWN}
    hidden = _import_everything()
    # At a fork's end torch would take apart its libraries, and touch 40 MB of memory for that.
    for finalizer in list(vars(weakref.finalize)["_registry"]):
        finalizer.atexit = False
    # Forks do not look through what is here: each collection would write to all of its memory.
    gc.collect()
    gc.freeze()
    request = serve(owner, others[0] if others else None, started_with)
    if request is None:
        os._exit(0)
    become(request, hidden)
    if request["command"][1:3] == ["-m", "ipyparallel.engine"]:
        nanny.prepare()
    _end(run, request["command"], request["cwd"])


def _end(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function and end this process as Python does, but for clearing every module.

    That takes a second where the modules are those of torch, and touches all of their memory.
    """
    code: Any = 0
    try:
        function(*arguments)
    except SystemExit as exit_:
        code = exit_.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    main()
