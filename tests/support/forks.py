"""Python processes, forked from a template where that makes no difference, else started.

See `tests.support.template`. A template is started when it is first wanted, one for each run of
pytest, whose workers share it, and ends with it.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

from tests.support import device, ports, template
from tests.virtual_gpu.build import cache_root

#: Read by the dynamic loader, Python, libc, OpenMP or torch before a fork can be told of them.
_AT_START = ("LD_", "PYTHON", "LC_", "LANG", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_")
_AT_IMPORT = ("OPENBLAS_", "TORCH", "PYTORCH", "ATEN_", "JUPYTER_PLATFORM", "PYDEVD_", "IPYTHON_")
#: Set in the process of the tests by torch's compiler, gpumagic and debugpy, and read when they are
#: used; the last one is also set where debugpy is imported, as in the template.
_WHEN_USED = ("TORCHINDUCTOR_", "PYTORCH_NVML_BASED_CUDA_CHECK", "PYDEVD_USE_FRAME_EVAL")
#: The address of the template that the workers of this run share.
_SHARED = "GPUMAGIC_TESTS_TEMPLATE"
#: A safety net, not a measure: a machine may be slow.
_PATIENCE = 300.0


class ForkedProcess:
    """A fork, with the interface of `subprocess.Popen`; it leads a session of its own."""

    stdin = stdout = stderr = None

    def __init__(self, origin: Template, pid: int, arguments: Sequence[str]) -> None:
        self._template = origin
        self.pid = pid
        self.args = list(arguments)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._template.poll(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        # `poll` alone reaps it: until then no other process can have the pid.
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Template:
    """A running template process: its owner's, or one that the owner shares with others."""

    def __init__(self, channel: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        self._channel = channel
        self._process = process
        self.owner = os.getpid()
        data = channel.recv(template.MESSAGE)
        if not data:
            raise RuntimeError("the template process did not start; see above for why")
        hello = json.loads(data)
        self.pid: int = hello["pid"]
        self._compared = _compared(hello["environment"])

    def fits(self, command: Sequence[str], wanted: Mapping[str, str]) -> bool:
        """Whether a fork is what a process started with this command and environment would be."""
        return (
            len(command) > 2
            and command[0] == sys.executable
            and command[1] in ("-m", "-c")
            and _compared(wanted) == self._compared
            and sum(len(os.fsencode(k + v)) + 2 for k, v in wanted.items()) < template.ROOM
        )

    def fork(
        self, command: Sequence[str], env: Mapping[str, str], cwd: str, fds: Sequence[int]
    ) -> ForkedProcess:
        request = {"command": list(command), "env": dict(env), "cwd": cwd}
        socket.send_fds(self._channel, [json.dumps(request).encode()], fds)
        return ForkedProcess(self, self._answer(), command)

    def poll(self, pid: int) -> int | None:
        self._channel.send(json.dumps({"poll": pid}).encode())
        return self._answer()

    def _answer(self) -> Any:
        data = self._channel.recv(template.MESSAGE)
        if not data:
            raise RuntimeError("the template process has ended")
        return json.loads(data)

    def close(self) -> None:
        if os.getpid() == self.owner:
            with suppress(ConnectionError):
                self._channel.send(b'{"leave": true}')
        self._channel.close()
        if self._process is not None and os.getpid() == self.owner:
            self._process.wait()


def _compared(variables: Mapping[str, str]) -> dict[str, str]:
    read = [k for k in variables if k.startswith((*_AT_START, *_AT_IMPORT))]
    compared = {k: variables[k] for k in read if not k.startswith(_WHEN_USED)}
    # Whether there is a driver, and NVML, is settled in the fork.
    path = compared.pop("LD_LIBRARY_PATH", "")
    others = [each for each in path.split(":") if not each.startswith(str(cache_root()))]
    return {**compared, "LD_LIBRARY_PATH": ":".join(others)}


def _start(*others: socket.socket) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a template, for this process and for those who connect to another socket."""
    from tests.support.kernels import python_environment
    from tests.virtual_gpu import Scenario, environment

    base = device.ENVIRONMENT or dict(os.environ)
    # What is loaded cannot be missed again: each fork loads what its scenario has.
    variables = environment(Scenario(driver=False, nvml=False), base)
    if "VIRTUAL_GPU_HIDE" in variables:  # from all forks: a scenario without a driver is started
        variables = environment(Scenario(), base)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        passed = [_roomy(each).fileno() for each in (theirs, *others)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.template", *map(str, passed)],
            env={**python_environment(variables), **template.OWN},
            cwd=device.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,
        )
    return _roomy(ours), process


def _roomy(channel: socket.socket) -> socket.socket:
    """Let this socket send the longest message."""
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * template.MESSAGE)
    return channel


def _connected(address: str) -> socket.socket:
    channel = _roomy(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    channel.connect(f"\0{address}")
    return channel


_running: list[Template] = []
_shared: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []


def _template() -> Template:
    """The template of this process, or of its run; started now if there is none."""
    # Not that of a process which has forked this one.
    _running[:] = [each for each in _running if each.owner == os.getpid()]
    if not _running:
        address = os.environ.get(_SHARED)
        channel, process = (_connected(address), None) if address else _start()
        _running.append(Template(channel, process))
        atexit.register(close)
    return _running[0]


def share() -> None:
    """Start the template of all processes that this one starts, which have its environment."""
    address = f"gpumagic-tests-template-{os.getpid()}-{time.time_ns()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0{address}")  # a name that is no file
        listening.listen(64)
        _shared.append(_start(listening))
    os.environ[_SHARED] = address


def close() -> None:
    """End this process's templates."""
    for each in _running:
        each.close()
    _running.clear()
    for channel, process in _shared:
        channel.close()
        process.wait()
        del os.environ[_SHARED]
    _shared.clear()


def are_the_same(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a fork is what a process started with this command and environment would be."""
    # Nothing is forked for a real GPU.
    return "VIRTUAL_GPU_STATE" in env and _template().fits(command, env)


def popen(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    fresh: bool = False,
) -> Any:
    """A process that leads a session of its own: a fork where that is the same, else a new one.

    The streams are as `subprocess.Popen` takes them, but for pipes.
    """
    wanted = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    command = list(command)
    if fresh or subprocess.PIPE in wanted.values() or not are_the_same(command, env):
        return subprocess.Popen(command, env=dict(env), cwd=cwd, start_new_session=True, **wanted)
    with Path(os.devnull).open("r+b") as null:
        fds = []
        for default, (name, stream) in enumerate(wanted.items()):
            if stream is subprocess.DEVNULL:
                stream = null
            elif stream is subprocess.STDOUT and name == "stderr":
                stream = fds[1]
            elif stream is None:
                stream = default
            fds.append(stream if isinstance(stream, int) else stream.fileno())
        return _template().fork(command, env, os.fspath(cwd), fds)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] = device.ROOT,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a process as `popen` starts it, to its end; what it writes is captured."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            fresh=fresh,
        )
        try:
            process.wait(_PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, out.read(), errors.read())


class ForkProvisioner(LocalProvisioner):
    """Forks kernels for a `KernelManager`, where a fork is the same as a fresh process."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        env, cwd = kwargs.get("env"), kwargs.get("cwd")
        others = kwargs.keys() - {"env", "cwd", "stdout", "stderr", "log"}
        if env is None or others or not are_the_same(cmd, env):
            return await super().launch_kernel(cmd, **kwargs)
        # As jupyter_client does: a kernel ends when its parent has ended.
        env = {**env, "JPY_PARENT_PID": str(_template().pid)}
        self.process = popen(
            cmd,
            env=env,
            cwd=cwd or Path.cwd(),
            stdin=subprocess.DEVNULL,
            stdout=kwargs.get("stdout"),
            stderr=kwargs.get("stderr"),
        )
        self.pid = self.pgid = self.process.pid
        return self.connection_info


def manage(manager: Any, *, fresh: bool = False) -> Any:
    """Have this `KernelManager` use ports of ours, and fork its kernels; returns it."""
    manager.cache_ports = False
    names = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")
    for name, port in zip(names, ports.take(len(names)), strict=True):
        setattr(manager, name, port)
    if fresh:
        return manager
    name = "forked"
    KernelProvisionerFactory.instance().provisioners[name] = EntryPoint(
        name, f"{__name__}:{ForkProvisioner.__name__}", KernelProvisionerFactory.GROUP_NAME
    )
    manager.kernel_spec.metadata["kernel_provisioner"] = {"provisioner_name": name}
    return manager
