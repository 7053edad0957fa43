"""Memory that is parked comes back bit for bit, whole or not at all, and nothing touches it."""

from __future__ import annotations

import io
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpumagic.cuda import storages
from gpumagic.cuda.storages import PARKED
from gpumagic.errors import DeviceError
from gpumagic.memory.parkable import IN_USE, NO_OBJECT
from gpumagic.memory.parking import PARKING
from gpumagic.system import system_files
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
        assert device.stays == {}
        assert 0 < device.parked <= sizes[ordinal], "without cuBLAS's workspaces"
        assert device.reserved_after == 0
        assert device.outside
    assert f"{parked}".count("cuda:") == 2
    PARKING.bring_back()
    assert allocated(torch) == [parked.devices[i].parked for i in (0, 1)]
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


def test_what_others_may_use_stays_where_it_is(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other libraries and processes have its address; the figures add up."""
    exported = torch.ones(MIB).to("cuda")
    capsule = torch.utils.dlpack.to_dlpack(exported)
    sent = torch.ones(MIB).to("cuda")  # to another process, which may not have it yet
    reference = torch.multiprocessing.reductions.StorageWeakRef(sent.untyped_storage())
    monkeypatch.setattr(torch.multiprocessing.reductions, "shared_cache", {"sent": reference})
    shared = torch.ones(2 * MIB).to("cuda")
    imported = torch.from_dlpack(torch.utils.dlpack.to_dlpack(shared))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch prefers torch.export
        scripted = torch.jit.script(torch.nn.Linear(4, 4)).cuda()
    hidden = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, 0)
    parked = torch.ones(3 * MIB).to("cuda")
    others = (exported, shared, imported, sent)
    addresses = [each.data_ptr() for each in others]
    result = PARKING.park().devices[0]
    small = 2 * 512  # the scripted module's weight and bias
    assert result.stays == {IN_USE: (4 + 4 + 8) * MIB + small, NO_OBJECT: MIB}
    assert result.parked == 12 * MIB
    assert torch.cuda.memory_allocated() == sum(result.stays.values())
    assert [each.data_ptr() for each in others] == addresses
    PARKING.bring_back()
    torch._C._cuda_cudaCachingAllocator_raw_delete(hidden)
    del capsule, scripted
    assert bool((parked.cpu() == 1).all())


# --- whole or not at all -------------------------------------------------------------------------


def four(torch: Any) -> list[Any]:
    """Tensors of 4 MiB, each full of its number."""
    return [torch.full((MIB,), float(i)).to("cuda") for i in range(4)]


def values(tensors: list[Any]) -> list[float]:
    return [float(each.cpu()[7]) for each in tensors]


def half_way(done: float) -> None:
    if done > 0.5:
        raise KeyboardInterrupt


def interrupted(function: Callable[..., None], call: int) -> Callable[..., None]:
    """``function``, which is interrupted after two storages of this call."""
    calls = itertools.count(1)

    def interrupting(*storages: Any) -> None:
        last = next(calls) == call
        function(*(each[:2] if last else each for each in storages))
        if last:
            raise KeyboardInterrupt

    return interrupting


@pytest.mark.parametrize(("step", "call"), [("copy", 0), ("exchange", 1), ("guard", 2)])
def test_interrupted_while_parking_each_has_its_memory_again(
    torch: Any, monkeypatch: pytest.MonkeyPatch, step: str, call: int
) -> None:
    """The guard's first call is for the placeholders."""
    tensors = four(torch)
    addresses = [each.data_ptr() for each in tensors]
    with monkeypatch.context() as patch:
        if step != "copy":
            patch.setattr(storages, step, interrupted(getattr(storages, step), call))
        with pytest.raises(KeyboardInterrupt):
            PARKING.park(progress=half_way)
    assert not PARKING.active
    assert [each.data_ptr() for each in tensors] == addresses
    assert values(tensors) == [0, 1, 2, 3]


def test_interrupted_when_it_has_come_back_the_rest_follows(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has its memory again may have been changed since, and is left alone."""
    tensors = four(torch)
    PARKING.park()
    with monkeypatch.context() as patch:
        patch.setattr(storages, "exchange", interrupted(storages.exchange, 1))
        with pytest.raises(KeyboardInterrupt):
            PARKING.bring_back()
    assert PARKING.active
    back = [storages.has_memory(each.untyped_storage()) for each in tensors]
    assert sum(back) == 2
    for tensor in itertools.compress(tensors, back):
        tensor.copy_(torch.full((MIB,), 9.0))
    PARKING.bring_back()
    assert values(tensors) == [9 if changed else i for i, changed in enumerate(back)]
    assert not PARKING.active


def test_interrupted_while_coming_back_all_stays_parked(torch: Any) -> None:
    tensors = four(torch)
    PARKING.park()
    with pytest.raises(KeyboardInterrupt):
        PARKING.bring_back(progress=half_way)
    assert PARKING.active
    assert torch.cuda.memory_reserved() == 0
    with pytest.raises(RuntimeError, match="parked in host memory"):
        tensors[0].data_ptr()
    PARKING.bring_back()
    assert values(tensors) == [0, 1, 2, 3]


def test_no_room_on_the_device(torch: Any, virtual_gpu: Any) -> None:
    tensor = torch.ones(64 * MIB).to("cuda")
    PARKING.park()
    free = torch.cuda.mem_get_info(0)[0]
    virtual_gpu.add_process(0, os.getppid(), free - 100 * MIB)
    with pytest.raises(DeviceError, match="needs 256 MiB and has 100 MiB free; ") as told:
        PARKING.bring_back()
    assert "\n" not in str(told.value)
    assert PARKING.active
    assert "everything stays parked" in str(told.value)
    virtual_gpu.end_process(os.getppid())
    assert PARKING.bring_back().devices == {0: 256 * MIB}
    assert float(tensor.cpu()[-1]) == 1


# --- nothing touches it --------------------------------------------------------------------------


#: What a thread may do with a parked tensor: a figure, or the error's first line.
FIGURES: dict[str, Callable[[Any, Any], Any]] = {
    "shape": lambda torch, x: tuple(x.shape),
    "device": lambda torch, x: str(x.device),
    "bytes of the storage": lambda torch, x: x.untyped_storage().nbytes(),
    "a row": lambda torch, x: tuple(x[3].shape),
    "a view": lambda torch, x: (tuple(x.view(-1).shape), x[3:5].storage_offset()),
}
USES: dict[str, Callable[[Any, Any], Any]] = {
    "operation": lambda torch, x: x + 1,
    "sum": lambda torch, x: x.sum(),
    "address": lambda torch, x: x.data_ptr(),
    "address of the storage": lambda torch, x: x.untyped_storage().data_ptr(),
    "to the host": lambda torch, x: x.cpu(),
    "print": lambda torch, x: repr(x),
    "save": lambda torch, x: torch.save(x, io.BytesIO()),
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


def captured(torch: Any, pool: Any = None) -> tuple[Any, Any]:
    """A graph, and the tensor that it writes to, in its own pool."""
    graph = torch.cuda.CUDAGraph()
    inputs = torch.ones(2 * MIB).to("cuda")
    with torch.cuda.graph(graph, pool=pool):
        scratch = inputs * 2  # its memory stays in the pool
        outputs = scratch[:MIB] + 1
    del scratch
    return graph, outputs


def test_refused_with_a_captured_graph_until_it_is_deleted(torch: Any) -> None:
    graph, outputs = captured(torch)
    outputs.copy_(torch.arange(float(MIB)))
    refused(torch, "a CUDA graph or a MemPool has fixed addresses; delete it")
    outputs = outputs.clone()
    graph.reset()
    del graph
    assert PARKING.park().devices[0].reserved_after == 0
    PARKING.bring_back()
    assert torch.equal(outputs.cpu(), torch.arange(float(MIB)))


def test_refused_with_a_graph_without_memory_of_its_own(torch: Any) -> None:
    """The addresses in it are those of other tensors. One that captured nothing has none."""
    tensor, graph = torch.ones(MIB).to("cuda"), torch.cuda.CUDAGraph()
    PARKING.park()
    PARKING.bring_back()
    with torch.cuda.graph(graph):
        tensor.add_(1)
    refused(torch, "a CUDA graph or a MemPool has fixed addresses")


def test_refused_with_nccl(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.distributed_c10d as c10d  # type: ignore[import-not-found]

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setitem(c10d._world.pg_map, object(), ("cuda:nccl", None))
    refused(torch, "a process group of NCCL")


def test_refused_where_the_host_has_no_room(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_files, "available_memory", lambda: 200 * MIB)
    tensor = torch.empty(64 * MIB, device="cuda")
    refused(torch, r"256 MiB of GPU memory do not fit .*\(200 MiB\)")
    del tensor


def test_refused_twice_and_nothing_to_do(torch: Any) -> None:
    assert PARKING.park().parked == 0
    assert not PARKING.active
    assert PARKING.bring_back().storages == 0
    tensor = torch.ones(100).to("cuda")
    PARKING.park()
    with pytest.raises(DeviceError, match="parked already"):
        PARKING.park()
    PARKING.bring_back()
    assert bool((tensor.cpu() == 1).all())
