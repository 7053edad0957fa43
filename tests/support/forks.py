"""Python processes, forked from a template where that makes no difference, else started.

See `tests.support.template`. One template, for each run of pytest and all of its workers, starts
and ends with it: a pytest plugin. A run fails whose forks have left a process behind.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import device, template

#: The address of the template of this run.
_ADDRESS = "GPUMAGIC_TESTS_TEMPLATE"
#: A safety net, not a measure: a machine may be slow.
_PATIENCE = 600.0

_address: str | None = None
#: In the process that has started it: the template, and the socket at whose end it ends.
_started: tuple[subprocess.Popen[bytes], socket.socket] | None = None
_left = ""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before xdist, which is told of the start later, starts workers: they use the same one."""
    global _address, _started
    _address = os.environ.get(_ADDRESS)
    # Nothing is forked for a real GPU.
    if _address is not None or "VIRTUAL_GPU_STATE" not in os.environ:
        return
    owner, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _address = f"gpumagic-tests-template-{os.getpid()}-{time.time_ns()}"
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0{_address}")  # a name that is no file
        listening.listen(64)
        _started = _start(theirs.fileno(), listening.fileno()), owner
    os.environ[_ADDRESS] = _address


def _start(*sockets: int) -> subprocess.Popen[bytes]:
    from tests.support.kernels import python_environment
    from tests.virtual_gpu import Scenario, environment

    # What is loaded cannot be missed again: each fork loads what its scenario has.
    variables = environment(Scenario(driver=False, nvml=False))
    if "VIRTUAL_GPU_HIDE" in variables:  # from all forks: a scenario without a driver is started
        variables = environment(Scenario())
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.template", *map(str, sockets)],
        env={**python_environment(variables), **template.OWN},
        cwd=device.ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=sockets,
        start_new_session=True,
    )


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Looks once everything has been torn down, also where that has failed."""
    global _started, _left
    try:
        yield
    finally:
        if _started is not None:
            (process, owner), _started = _started, None
            with owner, suppress(OSError):
                owner.shutdown(socket.SHUT_WR)
                _left = owner.recv(template.MESSAGE).decode().strip()
            process.wait()
            del os.environ[_ADDRESS]
            if _left and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left:
        terminalreporter.section("processes left behind, ended now", red=True)
        terminalreporter.write_line(_left)


class ForkedProcess:
    """A fork, with the interface of `subprocess.Popen`; it leads a session of its own.

    It ends with its object: the template kills it when the connection is closed.
    """

    stdin = stdout = stderr = None

    def __init__(self, connection: socket.socket, pid: int, arguments: Sequence[str]) -> None:
        self._connection = connection
        self.pid = pid
        self.args = list(arguments)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            with suppress(TimeoutError, BlockingIOError):
                self.returncode = _receive(self._connection)
                self._connection.close()
        return self.returncode

    def __del__(self) -> None:
        self._connection.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _receive(connection: socket.socket) -> Any:
    data = connection.recv(template.MESSAGE)
    if not data:
        raise RuntimeError("the template process has ended; see above for why")
    return json.loads(data)


def fork(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    **streams: Any,
) -> ForkedProcess | None:
    """Fork the template; None where a new process with this command would be another one.

    ``stdin``, ``stdout`` and ``stderr`` are as `subprocess.Popen` takes them.
    """
    module_or_code = command[0] == sys.executable and [*command[1:2]] in (["-m"], ["-c"])
    if _address is None or "VIRTUAL_GPU_STATE" not in env or not module_or_code:
        return None
    request = {"command": list(command), "env": dict(env), "cwd": os.fspath(cwd)}
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * template.MESSAGE)
    connection.connect(f"\0{_address}")
    with Path(os.devnull).open("r+b") as null:
        fds: list[int] = []
        for default, name in enumerate(("stdin", "stdout", "stderr")):
            stream = streams.get(name)
            if stream is subprocess.DEVNULL:
                stream = null
            elif stream is subprocess.STDOUT:
                stream = fds[1]
            elif stream is None:
                stream = default
            fds.append(stream if isinstance(stream, int) else stream.fileno())
        socket.send_fds(connection, [json.dumps(request).encode()], fds)
    pid = _receive(connection)
    if pid is None:
        connection.close()
        return None
    return ForkedProcess(connection, pid, command)


def popen(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    fresh: bool = False,
    **streams: Any,
) -> Any:
    """A process that leads a session of its own: a fork where that is the same, else a new one.

    The streams are as `subprocess.Popen` takes them, but for pipes.
    """
    forked = None if fresh else fork(command, env=env, cwd=cwd, **streams)
    if forked is not None:
        return forked
    return subprocess.Popen(command, env=dict(env), cwd=cwd, start_new_session=True, **streams)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] = device.ROOT,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a process as `popen` starts it, to its end; what it writes is captured."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": errors}
        process = popen(command, env=env, cwd=cwd, fresh=fresh, **streams)
        try:
            process.wait(_PATIENCE)
        finally:
            process.kill()
            process.wait()
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, out.read(), errors.read())


def output(command: Sequence[str], **options: Any) -> str:
    """What a process writes to its standard output, started as `run` does it.

    Raises:
        AssertionError: it has failed; with all that it has written.
    """
    done = run(command, **options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
