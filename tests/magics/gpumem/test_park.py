"""``%gpumem park`` and ``unpark``: cells before and after, the table, a kernel that idles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.cuda.storages import PARKED
from gpumagic.magics.gpumem.park import leaves_parked
from gpumagic.magics.output import Progress
from gpumagic.memory.parking import PARKING
from tests.support.kernels import PATIENCE
from tests.support.own_files import names_our_files
from tests.support.parking import needs_parking
from tests.support.shells import second_shell

pytestmark = needs_parking

MIB = 2**20
SETUP = """
import torch
x = torch.arange(1000.).cuda()
def uses(): return x.cpu().sum().item()
"""


@pytest.fixture
def cells(torch: Any, run_cell: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    run_cell(SETUP)
    yield run_cell
    run_cell("%gpumem unpark -q")
    run_cell("del x, uses")


@pytest.mark.parametrize(
    ("cell", "leaves"),
    [
        ("%gpumem\n\n%gpu 0", True),
        ("  %gpumem vars", True),
        ("", True),
        ("%gpumem -v r -q\nr", False),
        ("%%gpumem\nx", False),
        ("%%gpu off\nx", False),
        ("%gpumemory", False),
        ("%cudatime x", False),
        ("# %gpumem", False),
    ],
)
def test_cells_that_leave_memory_parked(cell: str, leaves: bool) -> None:
    assert leaves_parked(cell) == leaves


def test_it_comes_back_before_any_other_cell(cells: Callable[..., Any]) -> None:
    shown = cells("%gpumem park").text
    assert "cuda:0" in shown
    assert "and by %gpumem unpark" in shown
    for source in ("%gpumem", "%gpu", "%gpumem vars", "%gpumem -v r -q"):
        cells(source)
        assert PARKING.active, source
    with pytest.raises(UsageError, match="GPU memory is parked already"):
        cells("%gpumem park")
    assert "Parked in host memory" in cells("%gpu").text
    assert "3.91 KiB of cuda:0" in cells("%gpumem").text
    used = cells("uses()")
    assert used.value == 499500.0
    assert used.text.startswith("Brought back 3.91 KiB to cuda:0")
    for source in ("torch.cuda.memory_allocated()", "n = 1", "%%gpumem\nn = uses()", "!true"):
        cells("%gpumem park -q")
        assert cells(source).text.startswith("Brought back"), source
        assert not PARKING.active
    cells("del n, r")
    ran = cells("%gpumem park -q\nx + 1", raising=False)
    assert str(ran.error).splitlines()[0] == PARKED, "in the cell that parks"
    assert cells("uses()").value == 499500.0


def test_a_statement_of_ours_brings_it_back(cells: Callable[..., Any]) -> None:
    cells("%gpumem park -q")
    assert cells("%gpumem total = uses()").text.startswith("Brought back")
    assert not PARKING.active
    cells("%gpumem park -q\n%gpumem total += uses()")
    assert cells("total").value == 2 * 499500.0
    cells("del total")


def test_what_is_parked_is_said_where_memory_is_listed_and_freed(cells: Callable[..., Any]) -> None:
    cells("big = torch.zeros(2**20, device='cuda')")
    cells("%gpumem park -q")
    shown = cells("%gpumem vars").text
    assert "Parked in host memory for" in shown
    assert "4.00 MiB of cuda:0" in shown
    shown = cells("%gpumem free big").text
    assert "of what was parked in host memory, 4.00 MiB are deleted" in shown
    assert "3.91 KiB of cuda:0" in shown
    assert PARKING.active


@pytest.mark.parametrize("interrupted", ["park", "unpark"])
def test_an_interrupted_copy_is_not_kept_alive(
    cells: Callable[..., Any], torch: Any, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    """By the exception that IPython keeps: the tensor's memory is free when it is deleted."""
    cells("big = [torch.ones(2**20).cuda() for _ in range(8)]")
    before = torch.cuda.memory_allocated(0)
    if interrupted == "unpark":
        cells("%gpumem park -q")

    def interrupt(progress: Progress, done: float, *_: Any) -> None:
        if done > 0.5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", interrupt)
        shown = cells(f"%gpumem {interrupted}", raising=False)
    where = "is parked; %gpumem unpark brings it back" if interrupted == "unpark" else "is on the"
    assert f"KeyboardInterrupt: the memory {where}" in shown.stderr
    cells("%gpumem unpark -q")
    assert torch.cuda.memory_allocated(0) == before
    cells("del big")
    assert torch.cuda.memory_allocated(0) <= before - 8 * 4 * MIB


def test_no_room_before_a_cell_which_runs_nevertheless(
    cells: Callable[..., Any], ip: Any, torch: Any, virtual_gpu: Any
) -> None:
    """One line says what is missing; what the cell does to parked memory is an error."""
    cells("big, begun = torch.zeros(64 * 2**20).cuda(), []")
    cells("%gpumem park -q")
    another = 42424242
    virtual_gpu.add_process(0, another, torch.cuda.mem_get_info(0)[0] - MIB)
    try:
        ran = cells("begun.append(1)\nuses()", raising=False)
        assert ip.user_ns["begun"] == [1]
        (line,) = ran.stderr.strip().splitlines()
        assert line.startswith("%gpumem: parked memory cannot come back: cuda:0 needs 256 MiB ")
        assert "%gpu -p says who holds memory" in line
        assert str(ran.error).splitlines()[0] == PARKED
        assert not names_our_files(ran.stdout)
        for line in ("%unload_ext gpumagic", "%reload_ext gpumagic"):
            with pytest.raises(UsageError, match="gpumagic stays loaded: parked memory cannot "):
                cells(line)
        assert PARKING.active
    finally:
        virtual_gpu.end_process(another)
    assert cells("uses()").value == 499500.0
    cells("del big, begun")


def test_unloading_brings_it_back(cells: Callable[..., Any], ip: Any) -> None:
    before = {event: [*functions] for event, functions in ip.events.callbacks.items()}
    cells("%gpumem park -q")
    cells("%unload_ext gpumagic")
    assert not PARKING.active
    assert ip.events.callbacks["pre_execute"] == before["pre_execute"]
    cells("%load_ext gpumagic")
    assert cells("uses()").value == 499500.0


def test_two_shells_in_one_process(cells: Callable[..., Any], ip: Any) -> None:
    """What one has parked comes back when the other is unloaded, too."""
    with second_shell() as other:
        cells("%gpumem park -q")
        with pytest.raises(UsageError, match="parked already"):
            other.run_line_magic("gpumem", "park -q")
        other.extension_manager.unload_extension("gpumagic")
        assert not PARKING.active
        cells("%gpumem park -q")
        assert cells("uses()").value == 499500.0


# --- in a kernel ---------------------------------------------------------------------------------


def test_a_kernel_that_idles(kernel: Callable[..., Any]) -> None:
    """It parks by itself, not while a cell runs; what is parked outlasts a restart."""
    one = kernel()
    one.run(SETUP)
    one.run("%gpumem park --after 50ms")
    one.run("import asyncio\nawait asyncio.sleep(0.3)\nassert torch.cuda.memory_reserved()")
    deadline = time.monotonic() + PATIENCE
    while "Parked in host memory" not in one.run("%gpumem").text:
        assert time.monotonic() < deadline, "it did not park"
        time.sleep(0.1)
    ran = one.run("print(uses())\n%gpumem park off")  # in another cell it may be parked again
    assert "Brought back 3.91 KiB" in ran.text
    assert ran.stdout.startswith("499500.0\n")
    assert "Automatic parking is off" in ran.text
    one.run("%gpumem park -q")
    one.run("%gpu reset --restart --keep x")
    assert one.value("__import__('torch') and x.cpu().sum().item()") == 499500.0


CALLBACKS = """
import asyncio, threading
def opened(comm, message):
    @comm.on_msg
    def _(message):
        comm.send({"sum": x.cpu().sum().item()})
get_ipython().kernel.comm_manager.register_target("use", opened)
stop = threading.Event()
def train():
    weight = torch.ones(8, 8, device="cuda", requires_grad=True)
    while not stop.wait(0.001):
        (weight @ weight).sum().backward()
async def later():
    while not stop.is_set():
        await asyncio.sleep(0.01)
thread = threading.Thread(target=train)
"""


def test_threads_tasks_and_callbacks_of_widgets(kernel: Callable[..., Any]) -> None:
    """Code of the user's that runs meanwhile refuses it; a widget's message has its memory."""
    k = kernel()
    k.run(SETUP)
    k.run(CALLBACKS)
    begins = {
        "thread.start()": "the thread Thread-",
        "task = asyncio.ensure_future(asyncio.wait_for(later(), None))": "the task Task-",
        "timer = threading.Timer(600, lambda: 0); timer.start()": "the timer Thread-",
        "call = asyncio.get_running_loop().call_later(600, lambda: 0)": "a callback of the event",
    }
    ends = ("stop.set(); thread.join()", "await task", "timer.cancel(); timer.join()")
    for begin, end in zip(begins, (*ends, "call.cancel()"), strict=True):
        k.run(f"stop.clear(); {begin}")
        (line,) = k.run("%gpumem park", raising=False).shown.strip().splitlines()
        assert f"nothing was parked: {begins[begin]}" in line
        assert "may use the GPU; end it first" in line
        k.run(f"stop.set(); {end}")
    client = k.client

    def send(kind: str, **content: Any) -> str:
        message = client.session.msg(kind, {"comm_id": "one", **content})
        client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    k.wait_idle(send("comm_open", target_name="use", data={}))
    k.run("%gpumem park -q")
    assert "Parked in host memory" in k.run("%gpumem").text
    answers = k.wait_idle(send("comm_msg", data={}))
    assert [each["data"] for each in answers if each.get("comm_id")] == [{"sum": 499500.0}]
    assert k.run("%gpumem unpark").text == "Nothing is parked."
