"""A process that has imported what kernels import, and forks one in milliseconds.

`tests.support.forks` starts it, as ``python -m tests.support.template OWNER LISTENING``, and
connects to the socket LISTENING for each fork. A request says what the fork is to be: command,
environment, working folder, standard streams; the answer is its pid, or null where a new process
would be another. The connection lives as long as the fork: it ends with the exit code, and a fork
whose connection is closed is killed. At the end of the socket OWNER the template tells what its
forks have left running, ends that, and ends.

torch and what gpumagic imports late are hidden again after their import: ``'torch' in sys.modules``
is false until the fork imports it, which then costs nothing: see `tests.support.hidden`. gpumagic
itself is imported by each fork. The template has one thread, has not initialized CUDA, and has no
context of ZeroMQ. It imports nothing before the first request.
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

from tests.support.hidden import Hidden
from tests.virtual_gpu.build import cache_root
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
    ("pynvml",),
    ("torch._dynamo", "torch._inductor"),
)
#: Read by the dynamic loader, Python, libc, OpenMP or torch before a fork can be told of them.
_AT_START = ("LD_", "PYTHON", "LC_", "LANG", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_")
_AT_IMPORT = ("OPENBLAS_", "TORCH", "PYTORCH", "ATEN_", "JUPYTER_PLATFORM", "PYDEVD_", "IPYTHON_")
#: Set in the process of the tests by torch's compiler, gpumagic and debugpy, and read when they are
#: used; the last one is also set where debugpy is imported, as in the template.
_WHEN_USED = ("TORCHINDUCTOR_", "PYTORCH_NVML_BASED_CUDA_CHECK", "PYDEVD_USE_FRAME_EVAL")
#: The largest environment of a fork.
ROOM = 32 * 1024
#: The longest request, environment included.
MESSAGE = 1 << 17
#: Variables of the template alone: forks are not compared by them.
OWN = {"OPENBLAS_NUM_THREADS": "1", "GPUMAGIC_TESTS_ROOM": "x" * ROOM}
#: Seconds that processes have to end after the last test: a safety net, a machine may be slow.
_PATIENCE = 60.0
_BECOME_SUBREAPER = 36  # of prctl(2)


def _import_everything() -> Hidden:
    # ipykernel reads, when it is imported, whose end is to be a kernel's end.
    os.environ["JPY_PARENT_PID"] = str(os.getpid())
    for name in _PLAIN:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    # Not that of debugpy, which does nothing while no front end debugs.
    sys.breakpointhook = sys.__breakpointhook__
    hidden = Hidden()
    for names in _HIDDEN:
        hidden.hide(*names)
    sys.meta_path.insert(0, hidden)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise RuntimeError(f"the template has {threads} threads: a fork would have one of them")
    # At a fork's end torch would take apart its libraries, and touch 40 MB of memory for that.
    for finalizer in list(vars(weakref.finalize)["_registry"]):
        finalizer.atexit = False
    # Forks do not look through what is here: each collection would write to all of its memory.
    gc.collect()
    gc.freeze()
    return hidden


def serve(
    owner: socket.socket, listening: socket.socket, started_with: Mapping[str, str]
) -> dict[str, Any] | None:
    """Answer requests until the owner is gone; a fork returns the request that it is for."""
    running: dict[socket.socket, int] = {}
    compared = _compared(started_with)
    # A child's end wakes up the loop.
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    while True:
        for ready in select.select([owner, listening, woken, *running], [], [])[0]:
            if ready is owner:
                return None
            if ready == woken:
                os.read(woken, 4096)
            elif ready is not listening:  # its client has closed it
                _kill(running.pop(ready))
                ready.close()
            else:
                client = listening.accept()[0]
                request = _receive(client)
                fits = request is not None and _fits(request["env"], compared)
                pid = os.fork() if fits else None
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (owner, listening, client, *running):
                        each.close()
                    os.close(woken)
                    os.close(wakes)
                    return request
                for fd in request["fds"] if request else ():
                    os.close(fd)
                with contextlib.suppress(ConnectionError):
                    client.send(json.dumps(pid).encode())
                if pid is None:
                    client.close()
                else:
                    running[client] = pid
        _reap(running)


def _receive(client: socket.socket) -> dict[str, Any] | None:
    """Read a request, with its descriptors; None when the other side is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(client, MESSAGE, 3)
    except ConnectionError:
        return None
    return {**json.loads(data), "fds": fds} if data else None


def _fits(wanted: Mapping[str, str], compared: Mapping[str, str]) -> bool:
    """Whether a fork can have this environment as a new process would."""
    room = sum(len(os.fsencode(k + v)) + 2 for k, v in wanted.items())
    return _compared(wanted) == compared and room < ROOM


def _compared(variables: Mapping[str, str]) -> dict[str, str]:
    read = [k for k in variables if k.startswith((*_AT_START, *_AT_IMPORT))]
    compared = {k: variables[k] for k in read if not k.startswith(_WHEN_USED)}
    # Whether there is a driver, and NVML, is settled in the fork.
    path = compared.pop("LD_LIBRARY_PATH", "")
    others = [each for each in path.split(":") if not each.startswith(str(cache_root()))]
    return {**compared, "LD_LIBRARY_PATH": ":".join(others)}


def _reap(running: dict[socket.socket, int]) -> None:
    """Tell the clients of forks that have ended; what forks have left behind is reaped too."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            return
        for client in [each for each, pid in running.items() if pid == ended]:
            del running[client]
            with contextlib.suppress(ConnectionError):
                client.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            client.close()


def _kill(pid: int) -> None:
    """End a fork, and what is in its session; it may have none yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _end_all() -> str:
    """End what forks have left running, and return it: a line for each process."""
    import psutil

    this, deadline = psutil.Process(), time.monotonic() + _PATIENCE
    while (left := this.children(recursive=True)) and time.monotonic() < deadline:
        _reap({})
        time.sleep(0.1)
    lines = []
    for each in left:
        with contextlib.suppress(psutil.Error):
            lines.append(f"{each.pid}: {' '.join(each.cmdline())[:500]}")
            each.kill()
    return "\n".join(lines)


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
    if "JPY_PARENT_PID" in os.environ:  # a kernel ends when its parent has ended
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
    _rewrite_start(dict(os.environ))
    if "VIRTUAL_GPU_STATE" in os.environ:
        remap(Path(old), Path(os.environ["VIRTUAL_GPU_STATE"]))
    _load_driver()
    os.chdir(request["cwd"])
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
    owner, listening = (socket.socket(fileno=int(word)) for word in sys.argv[1:])
    # The owner says nothing; when it is gone, it is readable too.
    if owner in select.select([owner, listening], [], [])[0]:
        os._exit(0)
    started_with = {name: text for name, text in os.environ.items() if name not in OWN}
    # What its forks have started, and not ended, becomes its own.
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
    hidden = _import_everything()
    request = serve(owner, listening, started_with)
    if request is None:
        with contextlib.suppress(ConnectionError):
            owner.send(_end_all().encode()[:MESSAGE] or b"\n")
        os._exit(0)
    become(request, hidden)
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
