"""``%gpumem park`` and ``unpark``: cells before and after, the table, a kernel that idles."""

from __future__ import annotations

import builtins
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.cuda.storages import PARKED
from gpumagic.magics.gpumem.park import _exact, _where
from gpumagic.magics.progress import Progress
from gpumagic.memory.host_copies import HostCopies
from gpumagic.memory.parkable_storages import IN_USE, NO_OBJECT, ON_STREAM
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
n = 3
def plain(a): return a + n
def uses(): return x.cpu().sum().item()
"""


@pytest.fixture
def cells(torch: Any, run_cell: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    run_cell(SETUP)
    yield run_cell
    run_cell("%gpumem unpark -q")
    run_cell("del x, uses, plain")


def parked() -> bool:
    from gpumagic.memory.parking import PARKING

    return PARKING.active


def test_park_and_a_cell_that_uses_it(cells: Callable[..., Any]) -> None:
    shown = cells("%gpumem park").text
    assert "cuda:0" in shown
    assert "0 B" in shown
    assert parked()
    used = cells("uses()")
    assert used.value == 499500.0
    assert used.text.startswith("Brought back 3.91 KiB to cuda:0")
    assert not parked()


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
    assert "interrupted" in shown.stderr
    cells("%gpumem unpark -q")
    assert torch.cuda.memory_allocated(0) == before
    cells("del big")
    gc.collect()
    assert torch.cuda.memory_allocated(0) <= before - 8 * 4 * MIB
    assert not [each for each in gc.get_objects() if type(each) is HostCopies]


def test_a_cell_that_uses_none_leaves_it_parked(cells: Callable[..., Any]) -> None:
    cells("%gpumem park -q")
    for source in ("plain(2)", "import math; math.sqrt(n)", "%gpumem vars", "!true", "n = 4"):
        cells(source)
        assert parked(), source
    assert "Parked in host memory" in cells("%gpu").text
    assert "3.91 KiB of cuda:0" in cells("%gpumem").text
    assert parked()


def test_what_is_parked_is_said_where_memory_is_listed_and_freed(cells: Callable[..., Any]) -> None:
    cells("big = torch.zeros(2**20, device='cuda')")
    cells("%gpumem park -q")
    shown = cells("%gpumem vars").text
    assert "Parked in host memory for" in shown
    assert "4.00 MiB of cuda:0" in shown
    shown = cells("%gpumem free big --dry-run").text
    assert "big holds no GPU memory" in shown
    assert "4.00 MiB of cuda:0" in shown
    shown = cells("%gpumem free big").text
    assert "of what was parked in host memory, 4.00 MiB are deleted" in shown
    assert "Parked in host memory for" in shown
    assert "3.91 KiB of cuda:0" in shown
    assert parked()


def test_ones_own_notebook_is_said_to_be_parked_without_publishing(
    cells: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpumagic.magics.gpu import device_table, notebooks
    from gpumagic.results import Claim, Device, DeviceTable, Process
    from gpumagic.selection.notebooks import Kernel

    own = Claim(("GPU-a",), os.getpid(), own=True, mine=True)
    other = Claim(("GPU-a",), 7, notebook="b.ipynb", mine=True, parked=True)
    processes = (Process(os.getpid(), MIB, own=True), Process(7, MIB, mine=True))
    found = DeviceTable((Device(0, uuid="GPU-a", processes=processes, claims=(own, other)),))
    kernels = {pid: Kernel(pid, f"{pid}.ipynb", idle=60.0) for pid in (os.getpid(), 7)}
    for module in (device_table, notebooks):
        monkeypatch.setattr(module, "devices", lambda **_: found)
    monkeypatch.setattr(notebooks.notebooks, "of_processes", lambda *_: kernels)
    monkeypatch.setattr(notebooks.notebooks, "all_sessions", list)

    def claims() -> list[str]:
        return [str(claim) for claim in cells("%gpu -o -q").value[0].claims]

    def states() -> dict[int, bool | None]:
        return {each.pid: each.parked for each in cells("%gpu ps --mine -o -q").value}

    assert claims()[0] == "this kernel"
    cells("%gpumem park -q")
    assert claims() == ["this kernel, parked", "b.ipynb, parked"]
    assert [each.parked for each in cells("%gpu -p -o -q").value[0].processes] == [True, None]
    assert states() == {os.getpid(): True, 7: True}
    assert "parked, idle 1 min" in cells("%gpu ps --mine").text
    cells("%gpumem unpark -q")
    assert states() == {os.getpid(): False, 7: True}


def test_within_the_cell_that_parks(cells: Callable[..., Any]) -> None:
    ran = cells("%gpumem park -q\nr = uses(), repr(x)[:6]\nr")
    assert ran.value == (499500.0, "tensor")
    assert not parked()
    cells("%gpumem park -q\nr = uses()\n%gpumem park -q")
    assert parked()


def test_errors_and_warnings_in_the_cell_that_parks_are_the_cells_own(
    cells: Callable[..., Any],
) -> None:
    for use, error in {"x.view(7)": RuntimeError, "x.numpy()": TypeError}.items():
        ran = cells(f"%gpumem park -q\n{use}", raising=False)
        assert isinstance(ran.error, error)
        assert not names_our_files(ran.stdout)
        assert not parked()
    cells("torch.storage._set_always_warn_typed_storage_removal(True)")
    ran = cells(
        "import sys, warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    get_ipython().run_line_magic('gpumem', 'park -q')\n"
        "    x.storage()\n"
        "    here = sys._getframe().f_code.co_filename\n"
        "torch.storage._set_always_warn_typed_storage_removal(False)\n"
        "[(each.filename == here, each.lineno) for each in caught if 'Typed' in str(each.message)]"
    )
    assert ran.value == [(True, 5)]
    assert not parked()


def test_nothing_is_said_where_all_that_was_parked_is_deleted(cells: Callable[..., Any]) -> None:
    cells("x_kept, x = x.cpu(), None; gc = __import__('gc').collect; gc()")
    cells("only = torch.ones(9, device='cuda')")
    cells("%gpumem park -q")
    cells("del only")
    assert cells("torch.randn(2).shape; None").text == ""
    assert not parked()
    cells("x = x_kept.cuda(); del x_kept, gc")


def test_unpark(cells: Callable[..., Any]) -> None:
    assert cells("%gpumem unpark").text == "Nothing is parked."
    result = cells("p = %gpumem park -o -q\np").value
    assert result.devices[0].parked == 4096
    assert "ParkedMemory" in repr(result)
    back = cells("%gpumem unpark -o -q").value
    assert back.devices == {0: 4000}
    assert not parked()


def test_what_stays_is_named_and_adds_up(
    cells: Callable[..., Any], torch: Any, with_stacks: None
) -> None:
    """By its variables; without any by the line that allocated it, else by what it is."""
    allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
    stream = torch.cuda.Stream()
    cells(
        "shared = [torch.ones(2**18 * (1 + i)).cuda() for i in range(2)]\n"
        "capsules = [torch.utils.dlpack.to_dlpack(each) for each in shared]\n"
        "exported = torch.ones(2**20).cuda()\n"
        "capsules.append(torch.utils.dlpack.to_dlpack(exported))"
    )
    hidden = [allocate(MIB, 0), allocate(3 * MIB, stream.cuda_stream)]
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=100)
    cells("made = torch._C._cuda_cudaCachingAllocator_raw_alloc(2**21, 0)")
    torch.cuda.memory._record_memory_history(enabled=None)
    parked = cells("p = %gpumem park -o\np")
    device = parked.value.devices[0]
    stays = {each.reason: (each.names, each.size, each.number) for each in device.stays}
    assert stays.pop(IN_USE) == (("exported", "shared"), 7 * MIB, 3)
    ((line,), *sizes) = stays.pop(NO_OBJECT)
    assert line.startswith("allocated at In[")
    assert sizes == [3 * MIB, 2]
    assert stays == {ON_STREAM: ((), 3 * MIB, 1)}
    assert "cuda:0: 7.00 MiB stay (exported, shared): C++ code or another" in parked.text
    total = sum(each.size for each in device.stays)
    assert device.parked + total == device.allocated_before
    assert device.allocated_after == total == torch.cuda.memory_allocated(0)
    assert device.unused_after > 0
    assert device.reserved_after == total + device.unused_after == torch.cuda.memory_reserved(0)
    cells("%gpumem unpark -q")
    for each in (*hidden, cells("made").value):
        torch._C._cuda_cudaCachingAllocator_raw_delete(each)
    cells("del shared, capsules, exported, made, p")


@contextmanager
def no_room(cells: Callable[..., Any], torch: Any, virtual_gpu: Any) -> Iterator[None]:
    """256 MiB and ``x`` are parked, and another process has taken the memory."""
    cells("big, begun = torch.zeros(64 * 2**20).cuda(), []")
    cells("%gpumem park -q")
    virtual_gpu.add_process(0, 42424242, torch.cuda.mem_get_info(0)[0] - MIB)
    try:
        yield
    finally:
        virtual_gpu.end_process(42424242)
        cells("%gpumem unpark -q")
        cells("del big, begun")
        cells("%gpumem free -q")


def test_no_room_before_a_cell_which_is_not_run(
    cells: Callable[..., Any], ip: Any, torch: Any, virtual_gpu: Any
) -> None:
    """One line, with who holds the memory; the cell has done nothing, and all stays parked."""
    with no_room(cells, torch, virtual_gpu):
        ran = cells("begun.append(1)\nuses()", raising=False)
        assert ip.user_ns["begun"] == []
        (line,) = ran.stdout.strip().splitlines()
        assert line.startswith("%gpumem: the cell was not run: parked memory cannot come back: ")
        assert "(pid 42424242" in line
        assert "everything stays parked, and %gpumem unpark --wait brings it back" in line
        assert ran.error is not None
        assert str(ran.error) in line
        assert parked()
        # What needs no GPU memory runs, also where the cell before was rejected, or no Python.
        cells("1 +", raising=False)
        assert cells("plain(1)").value == 4
        assert ip.ast_transformers == []
    assert cells("uses()").value == 499500.0


def test_no_room_and_cells_that_need_none(
    cells: Callable[..., Any], ip: Any, torch: Any, virtual_gpu: Any, tmp_path: Path
) -> None:
    """They run: what is parked tells its shape, not its content, and definitions run nothing."""
    cells("from torch import nn\nmodel, host = nn.Linear(3, 4).cuda(), torch.arange(3)")
    runs = {
        "x.shape": (1000,),
        "x.device.type, x.dtype is torch.float32, len(x)": ("cuda", True, 1000),
        "print('…', type(x), x.shape)": None,
        "model": None,
        "type(model)": torch.nn.Linear,
        "model?": None,
        "host.sum().item()": 3,
        "import torch, torch.nn.functional as F": None,
        "def step(a: torch.Tensor): return model(a) + x": None,
        "class Net(nn.Module):\n    def forward(self, a): return a + x": None,
        f'%%writefile "{tmp_path}/a.py"\nx + 1': None,
        "%gpumem vars": None,
        "%gpu ps": None,
        "y = x": None,
        "del y": None,
    }
    with no_room(cells, torch, virtual_gpu):
        for source, value in runs.items():
            ran = cells(source)
            if value is not None:
                assert ran.value == value, source
            assert "not run" not in ran.stdout
            assert parked(), source
        for source in ("y = x\ny.sum()", "print(x.shape, x)", "step(3)", "model(x)", "Net()"):
            assert "the cell was not run" in cells(source, raising=False).stdout
            assert parked()
        assert cells("x.grad_fn is None", raising=False).error is not None
    assert (tmp_path / "a.py").read_text() == "x + 1\n"
    assert cells("uses()").value == 499500.0
    cells("del model, host, step, Net, nn, F")


def test_no_room_within_a_cell(
    cells: Callable[..., Any], ip: Any, torch: Any, virtual_gpu: Any
) -> None:
    """What it does to a parked tensor fails; our frames are not in the traceback."""
    cells("import builtins\nbuiltins.use = uses")  # by a name that says nothing of tensors
    with no_room(cells, torch, virtual_gpu):
        try:
            ran = cells("use()", raising=False)
        finally:
            del builtins.use  # type: ignore[attr-defined]
        assert "everything stays parked" in str(ran.error)
        assert "def uses(): return x.cpu()" in ran.stdout
        assert not names_our_files(ran.stdout)
        assert parked()


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_limit_that_leaves_no_room(cells: Callable[..., Any], torch: Any, is_ours: bool) -> None:
    """It is named, with what lifts it; to wait for room would not end."""
    cells("big = torch.empty(3 * 2**28, dtype=torch.int8, device='cuda:0')")
    cells("%gpumem park -q")
    total = torch.cuda.get_device_properties(0).total_memory
    if is_ours:
        cells("%gpumem limit 640MiB -q")
    else:
        torch.cuda.set_per_process_memory_fraction(5 * 2**27 / total, 0)
    ran = cells("big.cpu()", raising=False)
    says = "'%gpumem limit' of 640 MiB leaves" if is_ours else "memory fraction leaves 640 MiB"
    assert says in str(ran.error)
    with pytest.raises(UsageError, match="everything stays parked, and after"):
        cells("%gpumem unpark --wait")
    assert parked()
    if is_ours:
        cells("%gpumem limit off -q")
    else:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    cells("del big\n%gpumem unpark -q")


def test_no_room_to_unload(cells: Callable[..., Any], torch: Any, virtual_gpu: Any) -> None:
    """Nothing is undone, and one line says what to type."""
    with no_room(cells, torch, virtual_gpu):
        for line in ("%unload_ext gpumagic", "%reload_ext gpumagic"):
            with pytest.raises(UsageError, match="gpumagic stays loaded: parked memory cannot "):
                cells(line)
            assert parked()
        assert "Parked in host memory" in cells("%gpumem").text
    assert cells("uses()").value == 499500.0
    cells("%gpumem park -q")
    cells("%unload_ext gpumagic")
    assert not parked()
    cells("%load_ext gpumagic")


@pytest.mark.parametrize("verb", ["park", "unpark"])
def test_out_of_host_memory_is_one_line(
    cells: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def refused(*_: Any) -> Any:
        raise MemoryError

    if verb == "unpark":
        cells("%gpumem park -q")
    with monkeypatch.context() as patch:
        patch.setattr(HostCopies, "_new" if verb == "park" else "read", refused)
        ran = cells(f"%gpumem {verb}", raising=False)
    what = "nothing was parked" if verb == "park" else "parked memory cannot come back"
    assert ran.stderr.strip() == f"UsageError: {what}: MemoryError"
    assert parked() == (verb == "unpark")
    assert cells("uses()").value == 499500.0


def test_refused_in_one_line(cells: Callable[..., Any]) -> None:
    cells("g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g): x.add_(0)")
    ran = cells("%gpumem park", raising=False)
    assert "nothing was parked: a CUDA graph is captured" in f"{ran.error}{ran.stderr}"
    cells("del g")


def test_unloading_brings_it_back(cells: Callable[..., Any]) -> None:
    cells("%gpumem park -q")
    cells("%unload_ext gpumagic")
    assert not parked()
    cells("%load_ext gpumagic")
    assert cells("uses()").value == 499500.0


def test_by_itself_only_in_a_kernel(cells: Callable[..., Any]) -> None:
    ran = cells("%gpumem park --after 15min", raising=False)
    assert "needs a kernel" in f"{ran.error}{ran.stderr}"
    assert "does not park by itself" in cells("%gpumem park off").stdout
    ran = cells("%gpumem park off --after 15min", raising=False)
    assert "either off or --after" in f"{ran.error}{ran.stderr}"


WATCH = """
import asyncio, pathlib
async def watch(path):
    while torch.cuda.memory_reserved():
        await asyncio.sleep(0.01)
    pathlib.Path(path).touch()
task = asyncio.ensure_future(watch({path!r}))
"""


def test_a_kernel_that_idles(kernel: Callable[..., Any], tmp_path: Path) -> None:
    """It parks by itself, not while a cell runs; variables come back and outlast a restart."""
    one = kernel()
    one.run(SETUP)
    one.run("%gpumem park --after 50ms")
    one.run("import asyncio\nawait asyncio.sleep(0.2)\nassert torch.cuda.memory_reserved()")
    path = tmp_path / "parked"
    message = one.submit(WATCH.format(path=str(path)))
    one.wait(message)
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, "it did not park"
        time.sleep(0.02)
    ran = one.run("print(uses())")
    assert "Brought back 3.91 KiB" in ran.text
    assert ran.stdout == "499500.0\n"
    one.run("%gpumem park --after 1h")
    one.run("uses()")  # on a busy machine it has parked again meanwhile
    one.run("%gpumem park -q")
    one.run("%gpu reset --restart --keep x")
    assert one.value("__import__('torch') and x.cpu().sum().item()") == 499500.0
    assert "parks no more by itself" in one.run("%gpumem park off").stdout


def test_the_first_park_of_a_shell_lasts_in_a_cell_that_names_tensors(
    ip: Any, run_cell: Callable[..., Any], virtual_gpu: Any
) -> None:
    import torch

    ip.user_ns["x"] = torch.zeros(2**20, device="cuda:0")
    run_cell("y = x.shape\n%gpumem park -q")
    assert PARKING.active
    run_cell("%gpumem unpark -q")
    assert not PARKING.active


def test_a_timer_of_the_users_is_not_parked_away_from(
    ip: Any, run_cell: Callable[..., Any], virtual_gpu: Any
) -> None:
    import torch

    ip.user_ns["x"] = torch.zeros(2**20, device="cuda:0")
    run_cell("import threading\ntimer = threading.Timer(600, lambda: x.sum())\ntimer.start()")
    try:
        with pytest.raises(UsageError, match="is a timer that may use the GPU; cancel it first"):
            run_cell("%gpumem park")
    finally:
        run_cell("timer.cancel(); timer.join()")
    run_cell("%gpumem park -q")
    run_cell("%gpumem unpark -q")


def test_an_interrupt_says_where_the_memory_is(
    ip: Any, run_cell: Callable[..., Any], virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    ip.user_ns["x"] = torch.zeros(2**20, device="cuda:0")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PARKING, "_park", interrupted)
        with pytest.raises(UsageError, match="interrupted; the memory is on the GPU"):
            run_cell("%gpumem park")
    run_cell("%gpumem park -q")
    with monkeypatch.context() as patch:
        patch.setattr(PARKING, "_bring_back", interrupted)
        with pytest.raises(UsageError, match="interrupted; the memory is parked"):
            run_cell("%gpumem unpark")
        ran = run_cell("total = x.sum()", raising=False)
        assert ran.stdout == (
            "%gpumem: the cell was not run: interrupted; the memory is parked; %gpumem unpark "
            "brings it back\n"
        )
        assert "shape" not in ip.user_ns
        with pytest.raises(UsageError, match="stays loaded: interrupted; the memory is parked"):
            run_cell("%unload_ext gpumagic")
    run_cell("%gpumem unpark -q")


def test_waiting_says_what_came_back(
    cells: Callable[..., Any],
    torch: Any,
    virtual_gpu: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As plain unpark does, also after another process has really held the memory."""
    from gpumagic.memory import parking

    cells("%gpumem park -q")
    assert cells("%gpumem unpark --wait").text.startswith("Brought back 3.91 KiB to cuda:0")
    with no_room(cells, torch, virtual_gpu):

        def sleep(seconds: float) -> None:
            virtual_gpu.end_process(42424242)

        monkeypatch.setattr(parking.time, "sleep", sleep)
        ran = cells("w = %gpumem unpark --wait -o\nw.storages")
        monkeypatch.undo()
        assert ran.value == 2
        assert ran.stdout.startswith("Waiting (interrupt to stop): parked memory cannot come back")
        assert "Brought back 256 MiB to cuda:0" in ran.text
        assert not parked()


@pytest.mark.parametrize(("seconds", "told"), [(900, "15 min"), (3600, "1 h"), (90, "1 min 30 s")])
def test_the_idle_time_is_told_as_typed(seconds: float, told: str) -> None:
    assert _exact(seconds) == told


def test_with_a_dead_context_a_restart_is_named(
    cells: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a restart takes along what is parked then."""
    from gpumagic.cuda.process_state import STATE

    cells("%gpumem park -q")
    assert "%gpumem unpark brings it back." in cells("%gpumem").text
    monkeypatch.setattr(STATE, "dead_context", "a kernel failed on the device")
    for source in ("%gpumem", "%gpu"):
        shown = " ".join(cells(source).text.split())
        assert "%gpu reset --restart --keep all takes it along" in shown
        assert "unpark brings it back" not in shown
    assert "--restart --keep all" in _where()


CALLBACKS = """
import threading
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1); pool.submit(int).result()
said = []
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
thread = threading.Thread(target=train)
"""


def test_training_in_a_thread_and_callbacks_of_widgets(kernel: Callable[..., Any]) -> None:
    """A thread that trains refuses it; what a front end calls has its memory at the first use."""
    k = kernel()
    k.run(SETUP)
    k.run(f"{CALLBACKS}\nthread.start()")
    (line,) = k.run("%gpumem park", raising=False).shown.strip().splitlines()
    assert "nothing was parked: the running thread " in line
    assert "and may use the GPU; end it first" in line
    k.run("stop.set(); thread.join()")
    k.run(
        "from torch.utils.data import DataLoader\n"
        "batches = iter(DataLoader(range(8), num_workers=1, pin_memory=True))\nnext(batches)"
    )
    (line,) = k.run("%gpumem park", raising=False).shown.strip().splitlines()
    assert "finish the loop or delete the iterator first" in line
    k.run("del batches")
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
    # A thread that waits in a library is not seen; a cell that names its pool brings all back.
    k.run("%gpumem park -q")
    ran = k.run("print(pool.submit(uses).result())")
    assert ran.stdout == "499500.0\n"
    assert "Brought back" in ran.text
    # What such a thread is told by a callback is refused in one line, and all stays parked.
    k.run(
        "def later():\n    try:\n        pool.submit(uses).result()\n"
        "    except RuntimeError as error:\n        said.append(str(error))\n"
        "def calls(comm, message): comm.on_msg(lambda message: later())\n"
        "get_ipython().kernel.comm_manager.register_target('thread', calls)"
    )
    k.wait_idle(send("comm_close", data={}))
    k.wait_idle(send("comm_open", target_name="thread", data={}))
    k.run("%gpumem park -q")
    k.wait_idle(send("comm_msg", data={}))
    assert "Parked in host memory" in k.run("%gpumem").text
    (said,) = k.value("said")
    assert said.splitlines()[0] == PARKED
    # Sent as torch.multiprocessing sends it; no other process has to have it yet.
    k.run("sent = torch.multiprocessing.reductions.reduce_tensor(x)")
    # torch counts there who has it, and removes the file when Python ends; this kernel is killed.
    counted = k.value("__import__('glob').glob(f'/dev/shm/torch_{__import__(\"os\").getpid()}_*')")
    assert counted
    for file in counted:
        Path(file).unlink()
    (line,) = k.run("%gpumem park", raising=False).shown.strip().splitlines()
    assert "nothing was parked: another process uses tensors of this one" in line


DEBUGGED = """
import asyncio, pathlib
from gpumagic.magics.gpumem import park
idle, ended = park.of_shell(get_ipython())._idle, []
restart = idle._restart
idle._restart = lambda: (ended.append(idle._busy), restart())
async def watch(path, done):
    while not done():
        await asyncio.sleep(0.01)
    pathlib.Path(path).write_text(str(torch.cuda.memory_reserved()))
"""


def test_no_parking_by_itself_while_a_debugger_is_attached(
    kernel: Callable[..., Any], tmp_path: Path
) -> None:
    """debugpy, as a front end starts it; after it has gone the memory is parked."""
    k = kernel(fresh=True)
    k.run(SETUP)
    client, number = k.client, iter(range(1, 100))

    def debug(command: str, **arguments: Any) -> None:
        request = {"type": "request", "command": command, "arguments": arguments}
        message = client.session.msg("debug_request", {**request, "seq": next(number)})
        client.control_channel.send(message)
        reply = client.get_control_msg(timeout=PATIENCE)["content"]
        assert reply.get("success"), reply

    def waits_for(path: Path) -> int:
        deadline = time.monotonic() + PATIENCE
        while not path.exists() or not path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return int(path.read_text())

    debug(
        "initialize",
        **{"clientID": "test", "clientName": "test", "adapterID": "", "pathFormat": "path"},
        **{"linesStartAt1": True, "columnsStartAt1": True, "supportsVariableType": True},
    )
    debug("attach")
    debug("configurationDone")
    k.run("%gpumem park --after 50ms")
    k.run(DEBUGGED)
    seen = tmp_path / "seen"
    k.run(f"ended.clear(); task = asyncio.ensure_future(watch({str(seen)!r}, lambda: ended[3:]))")
    assert waits_for(seen) > 0
    debug("disconnect", restart=False, terminateDebuggee=False)
    done = tmp_path / "done"
    gone = "lambda: not torch.cuda.memory_reserved()"
    k.run(f"task = asyncio.ensure_future(watch({str(done)!r}, {gone}))")
    assert waits_for(done) == 0
    assert k.run("print(uses())").stdout == "499500.0\n"


def test_two_shells_in_one_process(cells: Callable[..., Any], ip: Any) -> None:
    """What one has parked comes back for the other, and when that is unloaded."""
    with second_shell() as other:
        other.user_ns["x"] = ip.user_ns["x"]
        cells("%gpumem park -q")
        with pytest.raises(UsageError, match="parked already"):
            other.run_line_magic("gpumem", "park -q")
        result = other.run_cell("y = x.cpu().sum().item()")
        assert result.success
        assert other.user_ns["y"] == 499500.0
        assert not parked()
        cells("%gpumem park -q")
        other.extension_manager.unload_extension("gpumagic")
        assert not parked()
        cells("%gpumem park -q")
        assert cells("uses()").value == 499500.0
