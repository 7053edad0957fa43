"""Memory that is parked comes back bit for bit, whole or not at all, and nothing touches it."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gpumagic.cuda.storages import PARKED
from gpumagic.errors import DeviceError
from gpumagic.memory import parking_checks
from gpumagic.memory.host_copies import HostCopies
from gpumagic.memory.parkable_storages import IN_USE, NO_OBJECT, TWICE
from gpumagic.memory.parking import PARKING
from gpumagic.system import host_memory
from tests.support.device import ROOT
from tests.support.parking import needs_parking

pytestmark = needs_parking

MIB, GIB = 2**20, 2**30


@pytest.fixture(autouse=True)
def _nothing_stays_parked(torch: Any) -> Iterator[None]:
    yield
    PARKING.bring_back()


def training(torch: Any) -> dict[str, Any]:
    """A model after a step, with a graph that waits for backward, and views of what it uses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 64)
    )
    model[3].weight = torch.nn.Parameter(torch.randn(64, 32))
    model = model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(16, 64).cuda()
    model(batch).sum().backward()
    optimizer.step()
    loss = model(batch).sigmoid().sum()
    tied = torch.nn.Parameter(model[0].weight)
    return {
        "model": model,
        "optimizer": optimizer,
        "batch": batch,
        "loss": loss,
        "view": batch[3:9].t(),
        "detached": model[0].weight.detach(),
        "tied": tied,
        "elsewhere": torch.arange(5).to("cuda:1"),
        "mask": torch.ones(7, dtype=torch.bool).to("cuda"),
        "sparse": torch.eye(4).to_sparse().cuda(),
        "storage": torch.arange(300).to("cuda").untyped_storage(),
    }


def contents(torch: Any, made: dict[str, Any]) -> list[Any]:
    """Every tensor of `training`, on the host."""
    parameters = [*made["model"].parameters()]
    tensors = [*parameters, *(p.grad for p in parameters)]
    tensors += [s["exp_avg"] for s in made["optimizer"].state.values()]
    tensors += [made[name] for name in ("batch", "view", "detached", "elsewhere", "mask")]
    tensors.append(made["sparse"].to_dense())
    tensors.append(torch.empty(0, dtype=torch.int64, device="cuda").set_(made["storage"]))
    return [each.detach().cpu().clone() for each in tensors]


def allocated(torch: Any) -> list[int]:
    return [torch.cuda.memory_allocated(ordinal) for ordinal in (0, 1)]


def test_everything_comes_back(torch: Any) -> None:
    """Bytes, aliases, devices, gradients, optimizer states, and a graph that waits for backward."""
    made = training(torch)
    before, sizes = contents(torch, made), allocated(torch)
    parked = PARKING.park()
    assert [torch.cuda.memory_reserved(i) for i in (0, 1)] == [0, 0]
    for ordinal, device in parked.devices.items():
        assert device.stays == ()
        assert device.parked == device.allocated_before == sizes[ordinal] - device.workspaces
        assert (device.allocated_after, device.reserved_after) == (0, 0)
        assert device.outside
    assert f"{parked}".count("cuda:") == 2
    back = PARKING.bring_back()
    assert sum(back.devices.values()) == parked.copied
    assert back.storages == parked.storages
    assert allocated(torch) == [sizes[i] - parked.devices[i].workspaces for i in (0, 1)]
    after = contents(torch, made)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert made["view"].data_ptr() == made["batch"].data_ptr() + 3 * 64 * 4
    assert made["detached"].data_ptr() == made["model"][0].weight.data_ptr()
    assert made["tied"].untyped_storage()._cdata == made["detached"].untyped_storage()._cdata
    assert made["elsewhere"].device.index == 1
    made["loss"].backward()
    made["optimizer"].step()


def test_memory_of_another_stream_comes_back_for_it(torch: Any) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = torch.ones(3 * MIB).to("cuda")
    PARKING.park()
    PARKING.bring_back()
    streams = {
        segment["stream"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["address"] == tensor.data_ptr()
    }
    assert streams == {stream.cuda_stream}
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_what_is_deleted_while_parked_stays_gone(torch: Any) -> None:
    kept, gone = torch.ones(MIB).to("cuda"), torch.ones(2 * MIB).to("cuda")
    PARKING.park()
    assert PARKING.size() == {0: 12 * MIB}
    del gone
    assert PARKING.size() == {0: 4 * MIB}
    assert "4.00 MiB of cuda:0" in str(PARKING.note())
    assert PARKING.bring_back().devices == {0: 4 * MIB}
    assert torch.cuda.memory_allocated() == 4 * MIB
    assert bool((kept.cpu() == 1).all())
    assert PARKING.note() is None


def test_memory_that_stays_is_named_and_adds_up(torch: Any) -> None:
    """What other libraries may use is not taken from them."""
    exported = torch.ones(MIB).to("cuda")
    capsule = torch.utils.dlpack.to_dlpack(exported)
    shared = torch.ones(2 * MIB).to("cuda")
    imported = torch.from_dlpack(torch.utils.dlpack.to_dlpack(shared))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch prefers torch.export
        scripted = torch.jit.script(torch.nn.Linear(4, 4)).cuda()
    hidden = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, 0)
    parked = torch.ones(3 * MIB).to("cuda")
    addresses = [each.data_ptr() for each in (exported, shared, imported)]
    result = PARKING.park().devices[0]
    reasons = {each.reason: each for each in result.stays}
    assert reasons.keys() == {IN_USE, TWICE, NO_OBJECT}
    assert reasons[TWICE].size == 8 * MIB
    assert reasons[NO_OBJECT].size == MIB
    assert reasons[IN_USE].number == 3
    assert result.parked == 12 * MIB
    assert result.parked + sum(each.size for each in result.stays) == result.allocated_before
    assert torch.cuda.memory_allocated() == result.allocated_before - 12 * MIB
    assert [each.data_ptr() for each in (exported, shared, imported)] == addresses
    PARKING.bring_back()
    torch._C._cuda_cudaCachingAllocator_raw_delete(hidden)
    del capsule, scripted
    assert bool((parked.cpu() == 1).all())


# --- whole or not at all -------------------------------------------------------------------------


def interrupt(after: float) -> Callable[[float], None]:
    def progress(done: float) -> None:
        if done > after:
            raise KeyboardInterrupt

    return progress


def test_interrupted_while_parking_nothing_has_changed(torch: Any) -> None:
    tensors = [torch.full((MIB,), float(i)).to("cuda") for i in range(4)]
    addresses = [each.data_ptr() for each in tensors]
    with pytest.raises(KeyboardInterrupt):
        PARKING.park(progress=interrupt(0.5))
    assert not PARKING.active
    assert [each.data_ptr() for each in tensors] == addresses


@pytest.mark.parametrize("step", ["exchange", "guard"])
def test_interrupted_while_memory_is_taken_each_gets_it_again(
    torch: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tensors = [torch.full((MIB,), float(i)).to("cuda") for i in range(4)]
    addresses = [each.data_ptr() for each in tensors]
    from gpumagic.cuda import storages

    original, calls = getattr(storages, step), []

    def interrupted(*owners: Any) -> None:
        calls.append(step)
        if len(calls) == (1 if step == "exchange" else 2):  # the placeholders are guarded first
            for pair in zip(*(each[:2] for each in owners), strict=True):
                original(*([each] for each in pair))
            raise KeyboardInterrupt
        original(*owners)

    with monkeypatch.context() as patch:
        patch.setattr(storages, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            PARKING.park()
    assert not PARKING.active
    assert [each.data_ptr() for each in tensors] == addresses
    assert [float(each.cpu()[7]) for each in tensors] == [0, 1, 2, 3]


def test_interrupted_when_it_has_come_back_the_rest_follows(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has its memory again may have been changed since, and is left alone."""
    tensors = [torch.full((MIB,), float(i)).to("cuda") for i in range(4)]
    PARKING.park()
    from gpumagic.cuda import storages

    exchange = storages.exchange

    def interrupted(owners: Any, others: Any) -> None:
        exchange(owners[:2], others[:2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storages, "exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            PARKING.bring_back()
    assert PARKING.active
    back = [each for each in tensors if storages.has_memory(each.untyped_storage())]
    assert len(back) == 2
    for each in back:
        each.copy_(torch.full((MIB,), 9.0))
    PARKING.bring_back()
    expected = [9 if any(each is b for b in back) else i for i, each in enumerate(tensors)]
    assert [float(each.cpu()[7]) for each in tensors] == expected
    assert not PARKING.active


def test_interrupted_while_coming_back_all_stays_parked(torch: Any) -> None:
    tensors = [torch.full((MIB,), float(i)).to("cuda") for i in range(4)]
    PARKING.park()
    with pytest.raises(KeyboardInterrupt):
        PARKING.bring_back(progress=interrupt(0.5))
    assert PARKING.active
    assert torch.cuda.memory_reserved() == 0
    with pytest.raises(RuntimeError, match="parked in host memory"):
        tensors[0].data_ptr()
    PARKING.bring_back()
    assert [float(each.cpu()[7]) for each in tensors] == [0, 1, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS")
@pytest.mark.parametrize("pinned", [True, False])
def test_out_of_host_memory_on_the_way_nothing_has_changed(
    torch: Any, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    """The system itself refuses the second chunk; one line, and the memory can be parked later."""
    import resource

    from gpumagic.cuda import storages

    storages.release_pinned_memory()
    tensors = [torch.full((12 * MIB,), float(i)).to("cuda") for i in range(6)]
    addresses = [each.data_ptr() for each in tensors]
    monkeypatch.setattr(parking_checks, "check_host", lambda needed: pinned)
    begun: list[float] = []
    limits = resource.getrlimit(resource.RLIMIT_AS)

    def limit(done: float) -> None:
        if not begun:
            used = psutil.Process().memory_info().vms
            resource.setrlimit(resource.RLIMIT_AS, (used + 40 * MIB, limits[1]))
        begun.append(done)

    try:
        with pytest.raises(
            DeviceError, match=r"^nothing was parked: the host has no 64\.0 MiB more .* 288 MiB"
        ):
            PARKING.park(progress=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert begun
    assert not PARKING.active
    assert [each.data_ptr() for each in tensors] == addresses
    assert [float(each.cpu()[7]) for each in tensors] == [0, 1, 2, 3, 4, 5]
    assert PARKING.park().storages == 6
    PARKING.bring_back()
    assert [float(each.cpu()[7]) for each in tensors] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("step", ["_new", "read"])
def test_a_memory_error_leaves_everything_here_or_there(
    torch: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tensors = [torch.full((20 * MIB,), float(i)).to("cuda") for i in range(4)]
    original, calls = getattr(HostCopies, step), []

    def refused_third(copies: HostCopies, *arguments: Any) -> Any:
        calls.append(step)
        if len(calls) == 3:
            raise MemoryError
        return original(copies, *arguments)

    if step == "read":
        PARKING.park()
    with monkeypatch.context() as patch:
        patch.setattr(HostCopies, step, refused_third)
        with pytest.raises(MemoryError):
            PARKING.bring_back() if step == "read" else PARKING.park()
    assert PARKING.active == (step == "read")
    assert (torch.cuda.memory_reserved() == 0) == PARKING.active
    PARKING.bring_back()
    assert [float(each.cpu()[7]) for each in tensors] == [0, 1, 2, 3]


def test_no_room_on_the_device(torch: Any, virtual_gpu: Any) -> None:
    tensor = torch.ones(64 * MIB).to("cuda")
    PARKING.park()
    free = torch.cuda.mem_get_info(0)[0]
    virtual_gpu.add_process(0, os.getppid(), free - 100 * MIB)
    with pytest.raises(DeviceError, match=r"needs 256 MiB and has 100 MiB free; .* holds") as told:
        PARKING.bring_back()
    assert f"pid {os.getppid()}" in str(told.value)
    assert "\n" not in str(told.value)
    assert PARKING.active
    said, shares = [], []

    def waiting(error: DeviceError) -> None:
        assert PARKING.active
        said.append(str(error))
        if len(said) == 3:
            virtual_gpu.end_process(os.getppid())

    back = PARKING.wait_and_bring_back(waiting, progress=shares.append, seconds=0)
    assert ["everything stays parked" in each for each in said] == [True] * 3
    assert back.devices == {0: 256 * MIB}
    assert shares[-1] == 1
    assert not PARKING.active
    assert float(tensor.cpu()[-1]) == 1


# --- nothing touches it --------------------------------------------------------------------------


#: What a thread may do with a parked tensor: a figure, or the error's first line.
FIGURES: dict[str, Callable[[Any, Any], Any]] = {
    "shape": lambda torch, x: tuple(x.shape),
    "elements": lambda torch, x: x.numel(),
    "bytes": lambda torch, x: x.nbytes,
    "device": lambda torch, x: str(x.device),
    "bytes of the storage": lambda torch, x: x.untyped_storage().nbytes(),
    "size of the storage": lambda torch, x: len(x.untyped_storage()),
    "device of the storage": lambda torch, x: str(x.untyped_storage().device),
    "a row": lambda torch, x: tuple(x[3].shape),
    "a view": lambda torch, x: (tuple(x.view(-1).shape), x[3:5].storage_offset()),
    "transposed": lambda torch, x: tuple(x.t().stride()),
}
USES: dict[str, Callable[[Any, Any], Any]] = {
    "operation": lambda torch, x: x + 1,
    "in place": lambda torch, x: x.mul_(2),
    "sum": lambda torch, x: x.sum(),
    "item of a row": lambda torch, x: x[3, 0].item(),
    "address": lambda torch, x: x.data_ptr(),
    "address of the storage": lambda torch, x: x.untyped_storage().data_ptr(),
    "to the host": lambda torch, x: x.cpu(),
    "the storage to the host": lambda torch, x: x.untyped_storage().cpu(),
    "print": lambda torch, x: repr(x),
    "list": lambda torch, x: x.tolist(),
    "save": lambda torch, x: torch.save(x, io.BytesIO()),
    "copy": lambda torch, x: copy.deepcopy(x),
    "DLPack": lambda torch, x: x.__dlpack__(),
    "CUDA array interface": lambda torch, x: x.__cuda_array_interface__,
    "written over": lambda torch, x: x.copy_(torch.ones(8, 16)),
    "optimizer": lambda torch, x: torch.optim.SGD([x], lr=0.1).step(),
}


def test_another_thread_gets_true_figures_or_one_clear_line(torch: Any) -> None:
    x = torch.arange(128.0).view(8, 16).to("cuda")
    # As a parameter has one; made here, where it may allocate.
    x.grad = torch.ones(8, 16).to("cuda")
    expected = {name: figure(torch, x) for name, figure in FIGURES.items()}
    found: dict[str, Any] = {}
    said: dict[str, str] = {}

    def work() -> None:
        for name, figure in FIGURES.items():
            found[name] = figure(torch, x)
        for name, use in USES.items():
            try:
                said[name] = f"nothing: {use(torch, x)!r}"
            except RuntimeError as error:
                said[name] = str(error).splitlines()[0]

    PARKING.park()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert PARKING.active
    assert found == expected
    assert {name: line for name, line in said.items() if line != PARKED} == {}
    assert said.keys() == USES.keys()
    PARKING.bring_back()
    assert torch.equal(x.cpu(), torch.arange(128.0).view(8, 16))


def test_a_view_that_a_thread_has_made_meanwhile_comes_back_too(torch: Any) -> None:
    x, views = torch.arange(128.0).to("cuda"), []
    PARKING.park()
    thread = threading.Thread(target=lambda: views.append(x[3:9]))
    thread.start()
    thread.join()
    PARKING.bring_back()
    assert views[0].tolist() == [3, 4, 5, 6, 7, 8]
    assert views[0].data_ptr() == x.data_ptr() + 12


def test_a_fork_cannot_bring_it_back(torch: Any) -> None:
    tensor = torch.ones(MIB).to("cuda")
    PARKING.park()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
        child = os.fork()
    if not child:
        try:
            assert tensor.shape == (MIB,)
            for use in (PARKING.bring_back, tensor.cpu, tensor.data_ptr):
                try:
                    use()
                except RuntimeError as error:
                    os.write(writer, f"{str(error).splitlines()[0]}\n".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        own, *others = told.read().splitlines()
    assert own.startswith("this is a fork of the process that has parked GPU memory")
    assert others == [PARKED] * 2
    PARKING.bring_back()
    assert bool((tensor.cpu() == 1).all())


# --- refused -------------------------------------------------------------------------------------


def refused(torch: Any, match: str) -> None:
    tensor = torch.ones(100).to("cuda")
    address = tensor.data_ptr()
    with pytest.raises(DeviceError, match=match) as told:
        PARKING.park()
    assert "\n" not in str(told.value)
    assert not PARKING.active
    assert tensor.data_ptr() == address


def test_refused_while_a_thread_of_the_users_runs(torch: Any) -> None:
    ends, runs = threading.Event(), threading.Event()

    def train() -> None:
        runs.set()
        ends.wait()

    thread = threading.Thread(target=train, name="trainer")
    thread.start()
    try:
        assert runs.wait(300)
        refused(torch, "the running thread trainer is in .*train")
    finally:
        ends.set()
        thread.join()


def captured(torch: Any, pool: Any = None) -> tuple[Any, Any]:
    """A graph, and the tensor that it writes to, in its own pool."""
    graph = torch.cuda.CUDAGraph()
    inputs = torch.ones(2 * MIB).to("cuda")
    with torch.cuda.graph(graph, pool=pool):
        scratch = inputs * 2  # its memory stays in the pool
        outputs = scratch[:MIB] + 1
    del scratch
    return graph, outputs


@pytest.mark.parametrize("in_shared_pool", [False, True])
def test_refused_with_a_captured_graph_until_it_is_deleted(
    torch: Any, in_shared_pool: bool
) -> None:
    """Then the pool's cache goes back to the device, and a tensor that lies in it is parked."""
    pool = torch.cuda.graph_pool_handle() if in_shared_pool else None
    first, outputs = captured(torch, pool)
    second = captured(torch, pool)[0]
    outputs.copy_(torch.arange(float(MIB)))
    refused(torch, "a CUDA graph is captured")
    first.reset()
    del first
    refused(torch, "a CUDA graph is captured")
    cycle = [second]
    cycle.append(cycle)
    del second, cycle
    parked = PARKING.park().devices[0]
    assert parked.parked == parked.allocated_before == 4 * MIB
    assert parked.reserved_before >= 12 * MIB
    assert (parked.stays, parked.reserved_after) == ((), 0)
    PARKING.bring_back()
    assert torch.equal(outputs.cpu(), torch.arange(float(MIB)))


def test_refused_with_a_graph_without_memory_of_its_own(torch: Any) -> None:
    """The addresses in it are those of other tensors. One that captured nothing has none."""
    tensor, graph = torch.ones(MIB).to("cuda"), torch.cuda.CUDAGraph()
    PARKING.park()
    PARKING.bring_back()
    with torch.cuda.graph(graph):
        tensor.add_(1)
    refused(torch, "a CUDA graph is captured")
    del graph
    assert PARKING.park().devices[0].reserved_after == 0
    with pytest.raises(RuntimeError, match="parked in host memory"):
        tensor.data_ptr()


def test_refused_with_a_graph_that_no_object_of_python_shows(torch: Any) -> None:
    """As C++ code holds them: Python's collector does not list this one."""
    graph, stream = torch._C._CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=None, capture_error_mode="global")
        tensor = torch.zeros(MIB, device="cuda")
        graph.capture_end()
    refused(torch, "a CUDA graph is captured")
    graph.reset()
    assert PARKING.park().devices[0].reserved_after == 0
    with pytest.raises(RuntimeError, match="parked in host memory"):
        tensor.data_ptr()


def test_refused_with_a_pool_of_the_users(torch: Any) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.ones(MIB).to("cuda")
        refused(torch, "MemPool")
    refused(torch, "MemPool")
    assert pool.use_count() == 1
    del pool
    assert PARKING.park().devices[0].reserved_after == 0
    PARKING.bring_back()
    assert bool((tensor.cpu() == 1).all())


def test_refused_within_a_mode(torch: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        refused(torch, "FlopCounterMode is active; park outside")
    with torch.device("cpu"):
        PARKING.park()


def test_refused_for_another_process(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(100).to("cuda")
    reductions = torch.multiprocessing.reductions
    reference = reductions.StorageWeakRef(tensor.untyped_storage())
    monkeypatch.setattr(reductions, "shared_cache", {"sent": reference})
    refused(torch, "another process uses tensors")


_SENDER = """
import os, pickle, sys, time, torch
from torch.multiprocessing.reductions import reduce_tensor
from gpumagic.errors import DeviceError
from gpumagic.memory.parking import PARKING
os.chdir(sys.argv[1])
tensor = torch.ones(5 * 2**18).to('cuda')
with open('sent.new', 'wb') as file:
    pickle.dump(reduce_tensor(tensor), file)
try:
    PARKING.park()
except DeviceError as error:
    with open('refused', 'w') as file:
        file.write(str(error))
os.rename('sent.new', 'sent')
while not os.path.exists('received'):
    time.sleep(0.01)
"""


def test_what_was_received_from_another_process_stays_as_it_is(torch: Any, tmp_path: Path) -> None:
    """It is that process's memory: it is named, and the rest is parked. The sender is refused."""
    command = [sys.executable, "-c", _SENDER, str(tmp_path)]
    sender = subprocess.Popen(command, cwd=ROOT)
    try:
        while not (tmp_path / "sent").exists():
            assert sender.poll() is None
            time.sleep(0.02)
        assert "another process uses tensors" in (tmp_path / "refused").read_text()
        function, arguments = pickle.loads((tmp_path / "sent").read_bytes())
        received, own = function(*arguments), torch.ones(MIB).to("cuda")
        address = received.data_ptr()
        parked = PARKING.park(SimpleNamespace(user_ns={"received": received, "own": own}))
        assert parked.storages == 1
        assert parked.devices[0].stays == ()
        assert parked.notes == (
            "received (5.00 MiB on cuda:0): another process's memory, received from it, "
            "stays as it is",
        )
        assert received.data_ptr() == address
        received.add_(1)
        PARKING.bring_back()
        assert bool((own.cpu() == 1).all())
        del received
    finally:
        (tmp_path / "received").touch()
        sender.wait()


def test_refused_with_nccl(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.distributed_c10d as c10d  # type: ignore[import-not-found]

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setitem(c10d._world.pg_map, object(), ("cuda:nccl", None))
    refused(torch, "process group of NCCL")


def test_refused_where_the_host_has_no_room(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available", lambda: 200 * MIB)
    assert parking_checks.check_host(50 * MIB) is True
    assert parking_checks.check_host(150 * MIB) is False
    tensor = torch.empty(64 * MIB, device="cuda")
    refused(torch, r"256 MiB of GPU memory do not fit .*\(200 MiB\)")
    del tensor


def test_refused_twice_and_nothing_to_do(torch: Any) -> None:
    assert PARKING.park().storages == 0
    assert not PARKING.active
    assert PARKING.bring_back().storages == 0
    tensor = torch.ones(100).to("cuda")
    PARKING.park()
    with pytest.raises(DeviceError, match="parked already"):
        PARKING.park()
    PARKING.bring_back()
    assert bool((tensor.cpu() == 1).all())
