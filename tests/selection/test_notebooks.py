"""The notebooks of processes: by a small Jupyter server on loopback, by environment, by claims."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumagic.results import Claim, Device, DeviceTable, Process
from gpumagic.results.processes import ProcessRow
from gpumagic.selection import notebooks
from gpumagic.system import jupyter_servers
from tests.support.jupyter_server import TOKEN, FakeServer, model
from tests.support.other_user import UID, needs_root


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    fake = FakeServer(tmp_path)
    yield fake
    fake.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """A process with the command line of the kernel ``id``, and these variables; its pid."""
    started: list[Any] = []

    def start(kernel: str, **variables: str) -> int:
        one = subprocess.Popen(
            [
                *(sys.executable, "-c", "print(flush=True); input()"),
                *("-f", str(tmp_path / f"kernel-{kernel}.json")),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
        )
        started.append(one)
        assert one.stdout is not None
        one.stdout.readline()  # it runs: the system has its environment
        return one.pid

    yield start
    for one in started:
        one.communicate(b"\n")


def test_ones_own_kernels_are_named_by_their_server(
    server: FakeServer, process: Callable[..., int]
) -> None:
    pid, busy, other = process("a"), process("b"), process("c")
    server.sessions = [model("train.ipynb", "a"), model("eval.ipynb", "b", "busy")]
    found = notebooks.of_processes([pid, busy, other, os.getpid()])
    assert found.keys() == {pid, busy}
    assert (found[pid].name, found[pid].folder, found[pid].path) == (
        *("train.ipynb", "/srv/ann"),
        "sub/train.ipynb",
    )
    assert found[pid].idle == pytest.approx(7200, rel=0.2)
    assert found[busy].idle == 0
    assert server.requests == [("GET", "/user/ann/api/sessions", f"token {TOKEN}")]
    assert TOKEN not in repr(found)


def test_this_kernel_is_known_by_its_connection_file(server: FakeServer) -> None:
    server.sessions = [model("train.ipynb", "own", "busy")]
    assert notebooks.this_notebook("/somewhere/kernel-own.json") == "train.ipynb"
    assert notebooks.this_notebook(None) is None


def test_without_a_server_the_name_is_that_of_the_kernels_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: Callable[..., int]
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    path = process("a", JPY_SESSION_NAME="/home/ann/train.ipynb")
    unnamed = process("b", JPY_SESSION_NAME="f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
    in_file = process("c", JPY_SESSION_NAME="")
    connection = tmp_path / "kernel-c.json"
    connection.write_text('{"jupyter_session": "/home/ann/eval.ipynb"}')
    connection.chmod(0o600)
    found = notebooks.of_processes([path, unnamed, in_file])
    assert {pid: kernel.name for pid, kernel in found.items()} == {
        path: "train.ipynb",
        in_file: "eval.ipynb",
    }
    assert found[path].idle is None


@pytest.mark.parametrize(
    "sessions",
    [
        {"message": "Forbidden"},
        [None, 3, {}, {"id": 1, "kernel": {"id": "a"}}, {"id": "x", "kernel": []}],
        ["x" * 2**21],
    ],
    ids=["no list", "no sessions", "too long"],
)
def test_an_invalid_response_names_nothing(server: FakeServer, sessions: Any) -> None:
    server.sessions = sessions
    assert notebooks.all_sessions() == []
    assert len(server.requests) == 1


def test_a_server_that_does_not_respond_is_not_waited_for(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has accepted the connection, and sends nothing."""
    monkeypatch.setattr(jupyter_servers, "_TIMEOUT", 0.01)
    release = threading.Event()

    def wait(request: Any, _: Any) -> None:
        release.wait(300)
        server.http.shutdown_request(request)

    monkeypatch.setattr(server.http, "process_request", wait)
    try:
        assert notebooks.all_sessions() == []
    finally:
        release.set()


def test_a_redirect_is_not_followed(server: FakeServer) -> None:
    server.status = 302
    assert notebooks.all_sessions() == []
    assert [path for _, path, _ in server.requests] == ["/user/ann/api/sessions"]


# --- the token -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": 1},
        {"pid": 2**31},
        {"port": 1},
        {"port": "80"},
        {"base_url": "/a b"},
    ],
    ids=str,
)
def test_the_token_goes_to_no_other_address(server: FakeServer, changes: dict[str, Any]) -> None:
    """Only to one on which the process named in the file listens, which must be this user's."""
    server.describe(**changes)
    assert notebooks.all_sessions() == []
    assert server.requests == []


def test_the_address_in_the_file_is_not_used(server: FakeServer) -> None:
    server.describe(hostname="203.0.113.1", url="http://203.0.113.1/user/ann/")
    server.sessions = [model("train.ipynb", "a")]
    assert [session.server.address for session in notebooks.all_sessions()] == ["127.0.0.1"]


def test_a_file_that_others_can_read_is_not_used(server: FakeServer) -> None:
    server.file.chmod(0o644)
    assert jupyter_servers.running() == []


@needs_root
def test_another_users_file_is_not_used(server: FakeServer) -> None:
    os.chown(server.file, UID, -1)
    assert jupyter_servers.running() == []


def test_a_linked_file_is_not_used(server: FakeServer, tmp_path: Path) -> None:
    server.file.rename(tmp_path / "elsewhere")
    server.file.symlink_to(tmp_path / "elsewhere")
    assert jupyter_servers.running() == []


def test_a_server_that_has_ended_is_sent_nothing(server: FakeServer) -> None:
    (found,) = jupyter_servers.running()
    server.http.socket.close()
    assert found.sessions() == []
    assert jupyter_servers.running() == []


# --- shutting down ---------------------------------------------------------------------------


def test_a_session_is_shut_down_by_its_server(server: FakeServer) -> None:
    server.sessions = [model("train.ipynb", "a", id="../b c")]
    (session,) = notebooks.all_sessions()
    assert session.server.shut_down(session) is None
    assert server.requests[-1] == (
        *("DELETE", "/user/ann/api/sessions/..%2Fb%20c"),
        f"token {TOKEN}",
    )
    server.delete_status = 403
    assert session.server.shut_down(session) == "its server refuses (HTTP status 403)"


# --- tables ----------------------------------------------------------------------------------


def test_others_notebooks_are_named_by_their_claims_of_the_same_user() -> None:
    processes = (
        Process(3, user="ann", mine=False, command="python"),
        Process(4, user="bob", mine=False, command="python"),
        Process(5, user=None, command="python"),
    )
    claims = [
        Claim(("GPU-a",), pid, "ann", f"{pid}.ipynb", idle=60.0, parked=True) for pid in (3, 4, 5)
    ]
    table = DeviceTable((Device(0, uuid="GPU-a", processes=processes),))
    named, same = notebooks.with_notebooks(table, claims)
    assert same == claims
    found = named[0].processes or ()
    assert [(p.notebook, p.idle, p.parked) for p in found] == [
        ("3.ipynb", 60.0, True),
        (None, None, None),
        (None, None, None),
    ]
    assert ProcessRow((), found[:1]).command.text == "3.ipynb, parked, idle 1 min"


def test_ones_own_claims_and_processes_are_named_without_publishing(
    server: FakeServer, process: Callable[..., int]
) -> None:
    pid = process("a")
    server.sessions = [model("train.ipynb", "a", "busy")]
    table = DeviceTable((Device(0, processes=(Process(pid, user="me", mine=True),)),))
    claim = Claim(("GPU-a",), pid, "me", mine=True, parked=True)
    named, claims = notebooks.with_notebooks(table, [claim])
    (found,) = named[0].processes or ()
    assert (found.notebook, found.folder, found.idle) == ("train.ipynb", "/srv/ann", 0.0)
    assert found.parked
    assert str(claims[0]) == "train.ipynb, parked, busy"


def test_kernels_of_the_same_notebook_name_are_shown_by_their_paths(
    server: FakeServer, process: Callable[..., int]
) -> None:
    first, second = process("a"), process("b")
    server.sessions = [model("a.ipynb", "a"), model("a.ipynb", "b", path="a.ipynb")]
    processes = (Process(first, mine=True), Process(second, mine=True))
    table = DeviceTable((Device(0, processes=processes),))
    named, claims = notebooks.with_notebooks(table, [Claim(("GPU-a",), first, "me", mine=True)])
    assert [each.notebook for each in named[0].processes or ()] == ["sub/a.ipynb", "a.ipynb"]
    assert str(claims[0]).startswith("sub/a.ipynb, idle")
