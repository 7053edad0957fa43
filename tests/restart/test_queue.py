"""The cells behind a restart, as Run All sends them: each is answered once, in order."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import zmq

from gpumagic.restart import request_queue
from tests.restart import FREEZE, PID, answers, run_all
from tests.support.kernels import Kernel, end_client
from tests.support.waiting import until

Kernels = Callable[..., Kernel]


def test_run_all(kernel: Kernels) -> None:
    """Twenty cells behind the restart, and another restart behind them: same pid, same order."""
    k = kernel()
    k.run(f"{FREEZE}; pid = {PID}; kept = [1]")
    cells = [f"print({number}, {PID} == pid, kept)" for number in range(20)]
    again = [FREEZE, "%gpu 1 --restart --keep kept pid -q", "print(kept, 'os' in globals())"]
    found = run_all(
        k, "import time; time.sleep(0.3)", "%gpu 0 --restart --keep kept pid -q", *cells, *again
    )
    assert [each for each in found if not each.is_fine] == []
    assert [each.text for each in found[2:22]] == [f"{n} True [1]\n" for n in range(20)]
    assert found[-1].text == "[1] False\n"
    assert [each.order for each in found] == [*range(25)]
    assert [each.count for each in found] == [
        *range(found[0].count or 0, 25 + (found[0].count or 0))
    ]


def test_an_error_behind_it_aborts_what_follows(kernel: Kernels) -> None:
    k = kernel()
    k.run(FREEZE)
    found = run_all(k, "%gpu off --restart", "1 / 0", "print(2)", "print(3)")
    assert [each.status for each in found] == ["ok", "error", "aborted", "aborted"]
    assert [each.idle for each in found] == [1, 1, 1, 1]


def test_another_client_and_other_requests(kernel: Kernels) -> None:
    from jupyter_client.blocking.client import BlockingKernelClient

    k = kernel()
    k.run(FREEZE)
    other: Any = BlockingKernelClient(connection_file=k.manager.connection_file)
    other.load_connection_file()
    other.start_channels()
    other.wait_for_ready(timeout=300)
    mine = [k.submit("import time; time.sleep(0.3)"), k.submit("%gpu off --restart")]
    theirs = [other.execute("print('theirs')"), other.execute("print('again')")]
    mine += [
        k.client.complete("impor", 5),
        k.submit("print('mine')"),
        k.client.kernel_info(),
        k.client.inspect("print"),
        k.client.history(hist_access_type="tail", n=1),
    ]
    found = answers(k.client, [*mine, *theirs], other)
    received = found[len(mine) :]
    end_client(other)
    assert [(each.status, each.idle) for each in found] == [("ok", 1)] * 9
    assert [(each.text, each.is_fine) for each in received] == [
        *(("theirs\n", True), ("again\n", True)),
    ]


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside one that does not leave"])
def test_a_client_that_sends_all_the_time(kernel: Kernels, others: int) -> None:
    """No reply, no output and no order is lost, whatever the moment in which a request arrives."""
    k = kernel()
    k.run(FREEZE)
    address = (k.client.ip, k.client.shell_port)
    silent = [socket.create_connection(address) for _ in range(others)]
    requests, end = [k.submit("%gpu off --restart")], time.monotonic() + 2.5
    while time.monotonic() < end:
        requests.append(k.client.execute(f"print({len(requests)})", store_history=False))
        k.client.iopub_channel.socket.get(zmq.EVENTS)  # asked, zmq subscribes anew
        time.sleep(0.01 if len(requests) % 4 else 0.06)
    found = answers(k.client, requests)
    assert [each.text for each in found[1:]] == [f"{n}\n" for n in range(1, len(found))]
    assert [each.order for each in found] == [*range(len(found))]
    for each in silent:
        each.close()


def test_a_client_that_subscribes_late(kernel: Kernels) -> None:
    """A front end that is busy (it saves a notebook) asks for the output after it is connected."""
    k = kernel()
    process = psutil.Process(k.value(PID))

    def connections() -> set[Any]:
        found = getattr(process, "net_connections", process.connections)("tcp")
        return {each.raddr for each in found if each.laddr.port == k.client.iopub_port} - {()}

    k.run(FREEZE)
    before = connections()
    request = k.submit("print('before')\n%gpu off --restart")
    until(lambda: connections() - before)
    time.sleep(1.5)  # in which zmq does not subscribe, since nobody asks the client's socket
    (found,) = answers(k.client, [request])
    assert found.is_fine
    assert found.text.startswith("before\nrestarted: ")


def test_what_is_sent_while_the_clients_are_disconnected_arrives() -> None:
    """Thousands of messages a second: none may be between the sockets when the connection ends."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        old = context.socket(zmq.ROUTER)
        # Neither side is full, nor the client back, before a slow machine has come to the end.
        old.rcvhwm = client.sndhwm = old.linger = client.linger = 0
        client.reconnect_ivl = 2000
        port = old.bind_to_random_port("tcp://127.0.0.1")
        client.connect(f"tcp://127.0.0.1:{port}")
        sent, ends = [0], threading.Event()

        def send() -> None:
            while not ends.is_set():
                client.send(b"%d" % sent[-1])
                sent.append(sent[-1] + 1)
                time.sleep(0.0001)

        received = []
        thread = threading.Thread(target=send)
        thread.start()
        received.append(int(old.recv_multipart()[1]))
        asyncio.run(request_queue._disconnect(old, port))
        time.sleep(0.05)
        ends.set()
        thread.join()
        while old.poll(100):
            received.append(int(old.recv_multipart()[1]))
        old.close()
        with context.socket(zmq.ROUTER) as new:
            new.bind(f"tcp://127.0.0.1:{port}")
            while len(received) < sent[-1] and new.poll(60_000):
                received.append(int(new.recv_multipart()[1]))
        assert received == sent[:-1]


def test_much_output_and_figures(kernel: Kernels) -> None:
    k = kernel()
    k.run(f"{FREEZE}\nimport matplotlib.pyplot as plt\n%matplotlib inline")
    (found,) = run_all(k, "print('x' * 300_000); plt.plot([1, 2])\n%gpu off --restart")
    assert found.is_fine
    assert found.text.count("x") >= 300_000
    assert found.figures == 1
    assert "restarted: " in found.text
    (found,) = run_all(k, "import matplotlib.pyplot as plt; _ = plt.plot([1, 2])")
    assert found.figures == 1


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("print('before')\n%gpu off --restart -q", "before\n"),
        ("import asyncio\nawait asyncio.sleep(0.1)\n%gpu off --restart -q", ""),
        ("# a comment\n\nr = %gpu off --restart -q -o", ""),
        ("%gpu off --restart -q -o;", ""),
    ],
)
def test_what_the_cell_that_asks_shows(kernel: Kernels, cell: str, shown: str) -> None:
    k = kernel()
    k.run(FREEZE)
    (found,) = run_all(k, cell)
    assert (found.is_fine, found.text) == (True, shown)
    assert k.value("In[-2]").startswith(k.value(f"{cell!r}").partition("%")[0])


def test_a_report_that_fails_is_answered(kernel: Kernels) -> None:
    """The error is the cell's, and what follows is aborted; the variables are there."""
    k = kernel()
    k.run(f"{FREEZE}\nkept = [1]")
    k.run("from gpumagic.selection import environment\nenvironment.at_process_start = lambda: 5")
    failed, behind = run_all(k, "%gpu off --restart", "print(1)")
    assert (failed.status, failed.idle, behind.status) == ("error", 1, "aborted")
    assert k.run("print(kept)").stdout == "[1]\n"


def test_interrupts_in_the_middle_do_not_end_the_process(kernel: Kernels) -> None:
    k = kernel()
    pid = k.value(PID)
    k.run(FREEZE)
    k.submit("%gpu off --restart")
    for _ in range(40):
        time.sleep(0.05)
        k.interrupt()
    assert k.value(PID) == pid


HIT = """
class Hit:
    def __setstate__(self, state):
        import os, signal
        if os.getpid() == state["pid"]:  # not in the trial, which is another process
            os.kill(os.getpid(), signal.SIGINT)
        self.__dict__.update(state)
hit = Hit(); hit.x = 5; hit.pid = __import__("os").getpid()
"""


def test_an_interrupt_while_variables_come_back_loses_none(kernel: Kernels) -> None:
    k = kernel()
    k.run(f"{FREEZE}\n{HIT}")
    assert k.run("%gpu off --restart --keep hit").text.startswith("restarted: ")
    assert k.value("hit.x") == 5
    assert k.run("raise KeyboardInterrupt", raising=False).error is not None
    k.run("import signal")
    assert k.value("signal.getsignal(signal.SIGINT) is signal.default_int_handler") is True
