"""The report on all kinds of machines, and what it must not do."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from gpumagic.memory import report
from gpumagic.memory.report import memory_report
from tests.support.allocator import MIB, empty
from tests.virtual_gpu import GPU, ExternalProcess, Scenario, World
from tests.virtual_gpu.profiles import profile

GIB = 2**30
CONTEXT = round(profile().context_mib * MIB)

#: In a kernel: what has been touched so far.
TOUCHED = """\
import sys
from gpumagic.cuda import driver
from gpumagic.cuda.pytorch import torch_cuda
print([("torch" in sys.modules), driver.state().initialized, torch_cuda.contexts()])
"""


def touched(kernel: Any) -> str:
    shown: str = kernel.run(TOUCHED).stdout
    return shown.strip()


# --- nothing is touched ----------------------------------------------------------------------


def test_from_a_fresh_kernel_to_a_context_on_one_device(kernel: Any) -> None:
    fresh = kernel(Scenario(devices=3))

    # Before torch: the driver's figures alone.
    shown = fresh.run("%gpumem").text
    assert "torch is not imported: these are the driver's figures alone" in shown
    assert "cuda:2" in shown
    assert fresh.run("%%gpumem\n6 * 7").text == "GPU memory: not measured, torch is not imported"
    assert touched(fresh) == "[False, False, ()]"

    # torch, and nothing else.
    fresh.run("import torch")
    shown = fresh.run("%gpumem -v report").text
    assert "0 B" in shown
    reply = fresh.run("%%gpumem\n6 * 7")
    assert reply.text == "GPU memory: not measured, CUDA is not in use in this process"
    assert reply.value == "42"
    assert touched(fresh) == "[True, False, ()]"
    assert (
        fresh.value("[(d.allocated, d.outside, d.context) for d in report.devices.values()]")
        == [(0, 0, False)] * 3
    )

    # The first context is made inside the cell: it counts from 0, and is the only one.
    shown = fresh.run(
        "%%gpumem -v change\n"
        "gone = torch.empty(4 * 2**20, dtype=torch.uint8, device='cuda:1'); del gone\n"
        "kept = torch.empty(2**20, dtype=torch.uint8, device='cuda:1')"
    ).text
    assert "cuda:1" in shown
    assert fresh.value(
        "{i: (d.allocated, d.peak, d.reserved) for i, d in change.devices.items()}"
    ) == {1: (MIB, 4 * MIB, 22 * MIB)}
    fresh.run("%gpumem -v report")
    fresh.run("%gpumem -q 1")
    assert touched(fresh) == "[True, True, (1,)]"
    row = fresh.value("vars(report.devices[1])")
    assert row["allocated"] == row["allocated_change"] == MIB
    assert row["reserved"] == 22 * MIB
    assert row["total"] == 80 * GIB
    other = fresh.value("vars(report.devices[0])")
    assert (other["allocated"], other["context"]) == (0, False)


# --- whose memory ----------------------------------------------------------------------------


def test_outside_the_allocator_and_other_processes(torch: ModuleType, virtual_gpu: World) -> None:
    kept = empty(torch, 30 * MIB)
    before = memory_report()
    outside = virtual_gpu.used(0) - before.devices[0].reserved
    # The context, as large as that of the profile of whichever test began it in this process.
    assert before.devices[0].outside == outside > 100 * MIB
    assert before.devices[0].others == 0
    virtual_gpu.add_process(0, pid=44_000_001, memory_bytes=7 * GIB)
    after = memory_report(before)
    assert after.devices[0].others == 7 * GIB
    assert after.devices[1].others == 0
    assert after.devices[0].outside == outside
    assert before.devices[0].free is not None
    assert after.devices[0].free == before.devices[0].free - 7 * GIB
    assert after.devices[0].allocated_change == 0
    del kept


def test_the_drivers_own_memory(virtual_gpu: Any) -> None:
    report = memory_report()
    assert report.devices[0].driver_reserved == GPU().reserved
    assert "not known by what" not in str(report)


def test_a_remainder_below_zero_is_unknown() -> None:
    """NVML is read before the allocator, and may not include the last segment."""
    assert report._outside(3 * MIB, 2 * MIB, True) == MIB
    assert report._outside(2 * MIB, 2 * MIB, True) == 0
    assert report._outside(2 * MIB, 3 * MIB, True) is None


def test_host_pids(kernel: Any) -> None:
    fresh = kernel(Scenario(devices=1, host_pids=True, processes=[ExternalProcess(0, 77, 2 * GIB)]))
    # torch is imported inside the cell.
    fresh.run("%%gpumem -v change\nimport torch; x = torch.empty(1, device='cuda')")
    assert fresh.value("change.devices[0].allocated") == 512
    fresh.run("%gpumem -v report")
    row = fresh.value("vars(report.devices[0])")
    assert row["allocated"] == 512
    assert row["outside"] is None
    assert row["others"] is None
    assert row["free"] == 80 * GIB - GPU().reserved - 2 * GIB - CONTEXT - 2 * MIB


def test_ordinals_are_those_of_this_kernel(kernel: Any) -> None:
    gpus = [GPU(memory=(index + 1) * 8 * GIB) for index in range(3)]
    fresh = kernel(Scenario(devices=gpus), env={"CUDA_VISIBLE_DEVICES": "2,0"})
    fresh.run("%gpumem -v report")
    assert fresh.value("{i: (d.index, d.total) for i, d in report.devices.items()}") == {
        0: (2, 24 * GIB),
        1: (0, 8 * GIB),
    }
    fresh.run("import torch; x = torch.empty(512, dtype=torch.uint8, device='cuda:1')")
    fresh.run("%gpumem -v report")
    assert fresh.value(
        "{i: (d.index, d.allocated, d.outside) for i, d in report.devices.items()}"
    ) == {0: (2, 0, 0), 1: (0, 512, CONTEXT)}


# --- bad weather -----------------------------------------------------------------------------


def test_without_a_driver(kernel: Any) -> None:
    fresh = kernel(Scenario(driver=False, nvml=False))
    for why in ("torch is not imported", "there is no NVIDIA driver"):
        shown = fresh.run("%gpumem").text
        assert shown.startswith("No GPU memory to show: ")
        assert "\n" not in shown
        reply = fresh.run("%%gpumem\n6 * 7")
        assert reply.text == f"GPU memory: not measured, {why}"
        assert reply.value == "42"
        fresh.run("import torch")  # and once more with it


def test_without_nvml_the_runtime_tells_of_devices_with_a_context(kernel: Any) -> None:
    fresh = kernel(Scenario(devices=2, nvml=False))
    fresh.run("import torch; x = torch.empty(2**20, dtype=torch.uint8, device='cuda:1')")
    reply = fresh.run("%gpumem -v report")
    row = fresh.value("vars(report.devices[1])")
    assert (row["allocated"], row["reserved"]) == (MIB, 2 * MIB)
    assert (row["outside"], row["others"]) == (None, None)
    assert [row["free"], row["total"]] == fresh.value("list(torch.cuda.mem_get_info(1))")
    assert "NVML" in reply.text
    fresh.run("%%gpumem -v change\ny = torch.empty(2**20, dtype=torch.uint8, device='cuda:1')")
    assert fresh.value("change.devices[1].allocated") == MIB
    assert fresh.value(
        "__import__('gpumagic.cuda.pytorch.torch_cuda').cuda.pytorch.torch_cuda.contexts()"
    ) == (1,)


@pytest.mark.parametrize("code", [3, 999])
def test_any_nvml_call_may_fail(torch: ModuleType, virtual_gpu: World, code: int) -> None:
    kept = empty(torch, MIB)
    # More than a context, where another test of this process has left memory of the driver's.
    most = memory_report().devices[0].outside
    assert most is not None
    calls = [name for name in virtual_gpu.all_calls() if name.startswith("nvml")]
    assert {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"} & set(calls)
    for call in calls:
        virtual_gpu.clear_faults()
        virtual_gpu.fault(call, code)
        report = memory_report()
        row = report.devices[0]
        assert (row.allocated, row.reserved) == (MIB, 2 * MIB), call
        assert row.free is not None, call
        for value in (row.outside, row.others):
            assert value is None or 0 <= value <= most, call
    del kept


def test_a_lost_device(kernel: Any) -> None:
    fresh = kernel(Scenario(devices=2, lost=[1]))
    shown = fresh.run("%gpumem").text
    assert shown == (
        "No GPU memory to show: CUDA's ordinals of the GPUs are not known before it starts; "
        "%gpu lists the GPUs"
    )
    fresh.run("import torch; x = torch.empty(2**20, dtype=torch.uint8, device='cuda:0')")
    fresh.run("%gpumem -v report")
    assert fresh.value("(report.devices[0].allocated, report.devices[0].reserved)") == (
        MIB,
        2 * MIB,
    )
    assert fresh.value("report.devices[0].free") is not None


# --- other allocators ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "note"),
    [
        ("expandable_segments:True", "Reserved by the driver"),
        ("backend:cudaMallocAsync", "the driver keeps the counters"),
    ],
)
def test_other_allocators(kernel: Any, setting: str, note: str) -> None:
    """The second case is slow: torch reads which backend it has where it is imported."""
    asynchronous = setting == "backend:cudaMallocAsync"
    # The old name of the variable is read by every torch, the new one by torch >= 2.9 first.
    env = {"PYTORCH_CUDA_ALLOC_CONF": setting} if asynchronous else {}
    late = "" if asynchronous else f"torch.cuda.memory._set_allocator_settings({setting!r})\n"
    fresh = kernel(Scenario(devices=1), env=env)
    fresh.run(
        f"import torch, warnings\n{late}"
        "def empty(n): return torch.empty(n * 2**20, dtype=torch.uint8, device='cuda')\n"
        "empty(64)\ntorch.cuda.synchronize()"
    )
    reply = fresh.run(
        "%%gpumem -v change\ngone = empty(32)\ndel gone\ntorch.cuda.synchronize()\nkept = empty(4)"
    )
    assert fresh.value("(change.devices[0].allocated, change.devices[0].peak)") == (
        4 * MIB,
        32 * MIB,
    )
    assert fresh.value("torch.cuda.max_memory_allocated()") == 64 * MIB
    assert ("the driver keeps the counters" in reply.text) is asynchronous
    no_blocks = "torch's allocator lists no blocks; only its native one does"
    assert (no_blocks in fresh.run("%gpumem vars").text) is asynchronous
    assert note in fresh.run("%gpumem -v report").text
    assert fresh.value("report.devices[0].allocated") == 4 * MIB
    assert fresh.value("report.devices[0].peak") == 64 * MIB
    if asynchronous:
        for line in ("%gpumem record on", "%gpumem snapshot x.pickle"):
            assert "has no history" in fresh.run(line, raising=False).shown


CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"
PLUGGABLE = """
memory = torch.cuda.memory
memory.change_current_allocator(memory.CUDAPluggableAllocator('libc.so.6', 'malloc', 'free'))
"""


@pytest.mark.parametrize(
    ("env", "setup", "said"),
    [
        ({CACHING: "1"}, "", f"{CACHING} is set"),
        ({}, PLUGGABLE, "a pluggable allocator is in use, of which torch keeps no counters"),
    ],
)
def test_an_allocator_that_counts_nothing(
    kernel: Any, env: dict[str, str], setup: str, said: str
) -> None:
    """It has no limit, no history, no blocks and no counters, and says it has them."""
    fresh = kernel(env=env)
    fresh.run(f"import torch{setup or ';'}\nx = torch.empty(2**20, device='cuda')")
    fresh.run("torch.cuda.set_per_process_memory_fraction(0.01)", raising=False)
    for line in (
        *("", "y = x[:1]", "vars", "limit", "limit 1GiB", "on", "record on", "cells"),
        *("snapshot x.pickle", "--fit n=1:2 torch.ones(n, device='cuda')", "free x"),
    ):
        cell = f"%gpumem {line}" if "--fit" not in line else f"%%gpumem {line}".replace(" t", "\nt")
        reply = fresh.run(cell, raising=False)
        assert said in reply.shown, line
        assert "No GPU memory is allocated" not in reply.shown
    assert fresh.run("%%gpumem\n6 * 7").value == "42"
    row = fresh.value("vars(__import__('gpumagic').gpumem().devices[0])")
    assert {row[name] for name in ("allocated", "reserved", "peak", "outside")} == {None}
    assert row["free"] is not None
    assert fresh.value("'x' in globals()") is False, "what it frees is not known, but it deletes"
