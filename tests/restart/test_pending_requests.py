"""Requests that wait while the kernel restarts: none is lost, none is run twice."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.restart import FREEZE, SEES
from tests.support.kernels import PATIENCE, Kernel

#: ``GPUMAGIC_TEST_RESTARTS=100`` for the full number.
ROUNDS = int(os.environ.get("GPUMAGIC_TEST_RESTARTS", "6"))


@pytest.mark.parametrize(
    "before",
    [
        "1",  # the queue waits in sockets
        "import asyncio; await asyncio.sleep(0.5)",  # it is read meanwhile, and waits in coroutines
    ],
)
def test_run_all(kernel: Callable[..., Kernel], before: str) -> None:
    """Everything is sent at once, the extension's loading included."""
    k = kernel(load=False)
    first = [k.submit(c) for c in (before, "%load_ext gpumagic", FREEZE, "gone = 1")]
    asking = k.submit("%gpu off --restart")
    rest = [k.submit(f"print({n}); {SEES}") for n in range(20)]
    count = 0
    for message in first:
        reply = k.wait(message)
        assert reply.status == "ok"
        count = reply.execution_count or 0
    restarted = k.wait(asking)
    assert (restarted.status, restarted.execution_count) == ("ok", count + 1)
    assert restarted.text.startswith("restarted: this kernel sees no GPU")
    replies = [k.wait(message) for message in rest]
    assert [r.stdout for r in replies] == [f"{n}\n-1 False\n" for n in range(20)]
    assert [r.execution_count for r in replies] == list(range(count + 2, count + 22))
    assert k.run(SEES).execution_count == count + 22


def test_an_error_behind_a_restart_stops_the_rest(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(FREEZE)
    asking = k.submit("%gpu off --restart")
    failing, rest = k.submit("1 / 0"), [k.submit("print('run')") for _ in range(3)]
    assert k.wait(asking).status == "ok"
    assert k.wait(failing).status == "error"
    assert [k.wait(message).status for message in rest] == ["aborted"] * 3
    assert k.run("1 + 1").value == "2"


def test_a_refusal_stops_the_rest(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """It is an error of its cell, as any other."""
    k = kernel()
    k.run(FREEZE)
    go = tmp_path / "go"
    first = k.submit(
        f"print('begun', flush=True)\nimport os, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    )
    k.until(first, "begun")
    asking = k.submit("%gpu off --restart\n1 + 1")
    rest = k.submit("print('run')")
    # When the kernel has answered what was sent last, it has the rest: one that came only after the
    # refusal would be run.
    client = k.client
    client.control_channel.send(client.session.msg("kernel_info_request"))
    client.get_control_msg(timeout=PATIENCE)
    go.touch()
    refused = k.wait(asking)
    assert refused.status == "error"
    assert "must" not in refused.shown or refused.shown.count("\n") <= 2
    assert "last line of its cell" in refused.shown
    assert k.wait(rest).status == "aborted"
    assert k.run(SEES).stdout == "None False\n"


@pytest.fixture
def second_client() -> Iterator[Callable[[Kernel], Any]]:
    """A further client of a kernel, and what it reads of what is published, by request."""
    ended, threads, clients = threading.Event(), [], []

    def read(client: Any, published: dict[str, list[str]]) -> None:
        while not ended.is_set():
            if not client.iopub_channel.socket.poll(100):
                continue
            _, message = client.session.recv(client.iopub_channel.socket)
            content = message["content"]
            kind = content.get("execution_state") or content.get("text") or message["msg_type"]
            published.setdefault(message["parent_header"].get("msg_id", ""), []).append(kind)

    def connect(kernel: Kernel) -> Any:
        client = kernel.manager.blocking_client()
        client.session = type(client.session)(key=kernel.manager.session.key)
        client.start_channels()
        clients.append(client)
        client.wait_for_ready(timeout=300)
        published: dict[str, list[str]] = {}
        threads.append(threading.Thread(target=read, args=(client, published)))
        threads[-1].start()
        return client, published

    yield connect
    ended.set()
    for thread in threads:
        thread.join()
    for client in clients:
        client.stop_channels()


def test_two_clients(kernel: Callable[..., Kernel], second_client: Callable[[Kernel], Any]) -> None:
    """The other client's requests are carried over too, and it sees all that is published."""
    k = kernel()
    k.run(FREEZE)
    other, published = second_client(k)
    asking = k.submit("import time; time.sleep(0.5)\n%gpu off --restart")
    time.sleep(0.1)
    theirs = [other.execute(f"print('theirs', {n}); {SEES}", allow_stdin=False) for n in range(5)]
    ours = [k.submit(f"print('ours', {n}); {SEES}") for n in range(5)]
    assert k.wait(asking).text.startswith("restarted")
    for n, message in enumerate(ours):
        assert k.wait(message).stdout == f"ours {n}\n-1 False\n"
    for message in theirs:
        deadline = time.monotonic() + 300
        assert k._next(other.get_shell_msg, message, deadline)["content"]["status"] == "ok"
    while any(published.get(m, [""])[-1] != "idle" for m in (asking, *theirs, *ours)):
        time.sleep(0.01)
    for n, message in enumerate(theirs):
        assert f"theirs {n}\n-1 False\n" in "".join(published[message])
    assert "display_data" in published[asking]


def _leftovers(kernel: Kernel) -> dict[str, Any]:
    """What a process has open, and what lies in the folder for temporary files."""
    shown: dict[str, Any] = kernel.value(
        "(lambda os, threading, tempfile: {"
        "'pid': os.getpid(),"
        "'descriptors': len(os.listdir('/dev/fd')),"
        "'inheritable': sorted(int(d) for d in os.listdir('/dev/fd')"
        "   if int(d) > 2 and os.path.exists('/dev/fd/' + d) and os.get_inheritable(int(d))),"
        "'threads': sorted(t.name.split('-')[0] for t in threading.enumerate()),"
        "'files': sorted(f for f in os.listdir(tempfile.gettempdir()) if 'gpumagic' in f)"
        "})(__import__('os'), __import__('threading'), __import__('tempfile'))"
    )
    return shown


@pytest.mark.timeout(1200 + 20 * ROUNDS)
def test_many_restarts(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """One after the other, with a queue each: no reply lost, nothing left open."""
    k = kernel(env={"TMPDIR": str(tmp_path)})
    k.run(FREEZE)
    k.run("%gpu 1 --restart")
    k.run(SEES)
    first = _leftovers(k)
    for n in range(ROUNDS):
        device = n % 2
        k.run(FREEZE)
        asking = k.submit(f"%gpu {device} --restart")
        rest = [k.submit(f"print({i}); import os") for i in range(5)]
        restarted = k.wait(asking)
        assert restarted.text.startswith("restarted: this kernel sees 1 GPU"), restarted
        assert f"is GPU {device}" in restarted.text
        assert [k.wait(message).stdout for message in rest] == [f"{i}\n" for i in range(5)]
    k.run(SEES)
    last = _leftovers(k)
    # A connection of a client may have been made twice at that moment.
    assert abs(last.pop("descriptors") - first.pop("descriptors")) <= 2
    assert last == first


def test_requests_that_keep_coming(kernel: Callable[..., Kernel]) -> None:
    """Before, during and after the exec, every few milliseconds: each is answered, once.

    Except perhaps some in a row: zmq acknowledges nothing, so what is under way at the moment when
    the connection is closed is lost: one of them, or what a busy machine has left unread.
    """
    k = kernel()
    k.run(FREEZE)
    asking, rest = k.submit("%gpu off --restart"), []
    answers: dict[str, list[str]] = {}

    def receive() -> None:
        reply = k.client.get_shell_msg(timeout=PATIENCE)
        answers.setdefault(reply["parent_header"]["msg_id"], []).append(reply["content"]["status"])

    began = time.monotonic()
    while asking not in answers:  # from there on no connection is closed
        rest.append(k.submit("1"))
        # The restart waits a second at most for a pause; a slow machine then takes a while.
        time.sleep(0.004 if time.monotonic() - began < 1.5 else 0.05)
        assert time.monotonic() - began < PATIENCE
        while k.client.shell_channel.socket.poll(0):
            receive()
    rest.append(k.submit("1"))
    while rest[-1] not in answers:
        receive()
    assert answers[asking] == ["ok"]
    lost = [n for n, message in enumerate(rest) if message not in answers]
    assert len(lost) <= 5, f"{lost} of {len(rest)}"
    assert lost == [*range(lost[0], lost[0] + len(lost))] if lost else True, "at one moment"
    assert {tuple(statuses) for statuses in answers.values()} == {("ok",)}


def test_when_the_system_refuses(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """At the last moment: the kernel and its clients are unchanged, and it may be asked again.

    So it does although exit functions have run: its history, logs and finalizers still work.
    """
    k = kernel()
    k.run(FREEZE)
    k.run(
        "import posix\nexecve = posix.execve\ndef refuse(*_): raise OSError('no memory')\n"
        "posix.execve = refuse"
    )
    k.run(
        "import logging, weakref\n"
        f"log = logging.FileHandler({str(tmp_path / 'log')!r})\n"
        f"at_end = weakref.finalize(log, open({str(tmp_path / 'end')!r}, 'a').write, 'once ')"
    )
    asking, rest = k.submit("%gpu off --restart"), [k.submit("1") for _ in range(5)]
    refused = k.wait(asking)
    assert refused.status == "error"
    assert "the system refuses to start the process again: no memory" in refused.shown
    assert {k.wait(message).status for message in rest} <= {"ok", "aborted"}
    assert k.run("refuse.__name__").value == "'refuse'"
    assert k.run(SEES).stdout == "None False\n"
    k.run("log.emit(logging.makeLogRecord({'msg': 'still open'}))")
    assert (tmp_path / "log").read_text() == "still open\n"
    k.run(
        "class Thing: pass\nthing, gone = Thing(), []\n"
        "of_thing = weakref.finalize(thing, gone.append, 1); del thing"
    )
    assert k.run("gone, at_end.alive").value == "([1], False)"
    assert "no memory" in k.run("%gpu off --restart", raising=False).shown
    k.run("posix.execve = execve")
    restarted = k.run("%gpu off --restart")
    assert restarted.text.startswith("restarted")
    assert "history" not in restarted.shown
    assert "def refuse" in k.run("%history -l 20").stdout
