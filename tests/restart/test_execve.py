"""Child processes by name, their end, and what ``execve`` inherits."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda import devices
from gpumagic.restart import execve, losses
from tests.support.gpu_processes import running

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows restarts nothing")

SECRET = "--token=hunter2"


@pytest.fixture(autouse=True)
def _same_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "in_first_pid_namespace", lambda: True)


def test_children_have_names_without_arguments(virtual_gpu: Any) -> None:
    program = Path(sys.executable).name
    with running(virtual_gpu, SECRET) as pid, running(virtual_gpu, "forkserver") as other:
        refused = " ".join(losses.named({}, execve.children()))
        assert f"{pid} ({program} -c)" in refused
        assert f"{other} ({program} -c)" in refused
        assert SECRET not in refused
    helper = [sys.executable, "-c", "print(flush=True); input()", "torch_shm_manager"]
    pipe = subprocess.PIPE
    with subprocess.Popen(helper, stdin=pipe, stdout=pipe) as ends_by_itself:
        assert ends_by_itself.stdout is not None
        ends_by_itself.stdout.readline()  # before, the system may not show its arguments yet
        assert ends_by_itself.pid not in execve.children()
        assert ends_by_itself.pid in execve.children(helpers=True)
        ends_by_itself.communicate(b"\n")
    assert ends_by_itself.pid not in execve.children(helpers=True)


IGNORES = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
signal.pause()
"""


def test_children_are_terminated_or_killed_and_reaped() -> None:
    commands = ["print(flush=True); input()", IGNORES]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for command in commands
    ]
    for each in started:
        assert each.stdout is not None
        each.stdout.readline()
    found = execve.children()
    assert {each.pid for each in started} <= found.keys()
    execve.terminate([each.pid for each in started], timeout=0.2)
    for each in started:
        with pytest.raises(ChildProcessError):
            os.waitpid(each.pid, 0)
        each.communicate()
    execve.terminate([each.pid for each in started])  # they are gone


def test_working_in_a_folder_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path)
    with execve.working_in("/"):
        assert Path.cwd() == Path("/")
    assert Path.cwd() == tmp_path
    with execve.working_in("/nowhere"):
        assert Path.cwd() == tmp_path
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with execve.working_in("/nowhere"):
        assert Path.cwd() == Path(sys.prefix)
    with pytest.raises(FileNotFoundError):
        Path.cwd()


def test_what_is_inherited(tmp_path: Path) -> None:
    """Pipes, Unix sockets and unnamed files that are inheritable; what is named to be."""
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.1", 0)) as kept_open,
        (tmp_path / "file").open("w") as file,
    ):
        (tmp_path / "unnamed").touch()
        unnamed = os.open(tmp_path / "unnamed", os.O_RDWR)
        (tmp_path / "unnamed").unlink()
        inheritable = [writer, ours.fileno(), server.fileno(), file.fileno(), unnamed]
        for descriptor in inheritable:
            os.set_inheritable(descriptor, True)
        before = {
            descriptor: os.get_inheritable(descriptor)
            for descriptor in map(int, os.listdir("/dev/fd"))  # noqa: PTH208
            if os.path.exists(f"/dev/fd/{descriptor}")  # noqa: PTH110
        }
        try:
            execve.close_at_exec([kept_open.fileno()])
            assert [os.get_inheritable(d) for d in inheritable] == [True, True, False, False, True]
            assert os.get_inheritable(kept_open.fileno())
            assert not os.get_inheritable(reader)
        finally:
            for descriptor, was in before.items():
                os.set_inheritable(descriptor, was)
            for descriptor in (reader, writer, unnamed):
                os.close(descriptor)
            ours.close()
            theirs.close()


def test_a_refused_execve_changes_nothing(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    folder = Path.cwd()
    for defer in (True, False):
        with pytest.raises(FileNotFoundError):
            execve.replace(["/nowhere/python"], {}, str(tmp_path), defer_interrupts=defer)
        assert (signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == (
            before
        )
        assert Path.cwd() == folder
