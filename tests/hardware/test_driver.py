"""What we infer of the driver: when the choice of devices freezes, and what a restart gives back.

A test ``test_inferred_…`` checks a belief that no document states; one that fails on hardware means
that the code which relies on it, and the virtual GPU, must change.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.hardware.record import Figure
from tests.support.kernels import Kernel

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

MIB = 2**20
#: What the driver itself answers, without being initialised by the question.
ASK = """
import ctypes, os
def ask():
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    count = ctypes.c_int(-1)
    return driver.cuDeviceGetCount(ctypes.byref(count)), count.value
"""
NO_NVML_CHECK = {"PYTORCH_NVML_BASED_CUDA_CHECK": "0"}


@pytest.fixture
def plain(kernel: Callable[..., Kernel]) -> Kernel:
    """A kernel in which ``is_available()`` initialises the driver, as without gpumagic."""
    fresh = kernel(env=NO_NVML_CHECK, load=False)
    fresh.run(ASK)
    return fresh


def test_is_available_freezes_the_choice_and_importing_torch_does_not(
    plain: Kernel, figure: Figure
) -> None:
    plain.run("import torch")
    before = plain.value("ask()")
    assert plain.value("(torch.cuda.is_available(), torch.cuda.is_initialized())") == (True, False)
    after = plain.value("ask()")
    figure("driver's answer after import torch, after is_available()", (before, after))
    assert before is None or before[0] == 3
    assert after[0] == 0
    assert after[1] >= 1
    plain.run("os.environ['CUDA_VISIBLE_DEVICES'] = ''")
    assert plain.value("torch.cuda.is_available()") is True
    assert plain.value("str(torch.empty(1, device='cuda').device)") == "cuda:0"


def test_asking_the_driver_does_not_start_it(kernel: Callable[..., Kernel], figure: Figure) -> None:
    """On Windows this is the only check of how the driver's library is found there."""
    fresh = kernel(load=False)
    fresh.run("import torch; from gpumagic.cuda import driver")
    before = fresh.value("driver.is_initialized()")
    fresh.run("x = torch.ones(1).cuda()")
    after = fresh.value("driver.is_initialized()")
    figure("driver.is_initialized(): before and after the first tensor", (before, after))
    assert (before, after) == (False, True)


def test_inferred_after_a_failed_start_the_driver_says_so(plain: Kernel, figure: Figure) -> None:
    """With no device visible ``cuInit`` fails; the probe then still answers 3, or 100."""
    plain.run("os.environ['CUDA_VISIBLE_DEVICES'] = '-1'\nimport torch; torch.cuda.is_available()")
    answer = plain.value("ask()")
    figure("driver's answer after a failed start", answer)
    assert answer[0] in (3, 100) or answer == (0, 0)


def test_inferred_a_failed_start_is_remembered(
    kernel: Callable[..., Kernel], figure: Figure
) -> None:
    """From off to on can be too late although no GPU was ever used; ``%gpu on`` knows."""
    fresh = kernel(env=NO_NVML_CHECK)
    fresh.run("%gpu off -q\nimport torch; torch.cuda.is_available()")
    fresh.run("selection = %gpu on -o -q")
    status = fresh.value("selection.status")
    available = fresh.value("torch.cuda.is_available()")
    figure("after a failed start: is_available(), and what %gpu on says", (available, status))
    assert (status == "applied") == available


def test_a_fork_that_asks_leaves_cuda_usable(kernel: Callable[..., Kernel]) -> None:
    """From off to on under a loaded torch, a fork of the kernel starts CUDA to see if it can."""
    fresh = kernel()
    fresh.run("%gpu off -q\nimport torch\ns = %gpu on -o -q")
    assert fresh.value("s.status") == "applied"
    assert fresh.value("str(torch.ones(1, device='cuda').device)") == "cuda:0"


@pytest.mark.usefixtures("without_mig")
@pytest.mark.parametrize("spec", ["off", "0", "on"])
def test_a_verified_choice_is_true(kernel: Callable[..., Kernel], spec: str) -> None:
    fresh = kernel()
    fresh.run(f"import torch\nselection = %gpu {spec} -o -q")
    assert fresh.value("selection.status") in ("applied", "unchanged")
    visible = fresh.value("[d.uuid for d in selection.devices]")
    assert fresh.value("torch.cuda.is_available()") == bool(visible)
    seen = "torch.cuda.get_device_properties(i).uuid for i in range(torch.cuda.device_count())"
    assert fresh.value(f"['GPU-' + str(uuid) for uuid in ({seen})]") == visible


def test_memory_is_free_after_a_restart(kernel: Callable[..., Kernel], figure: Figure) -> None:
    """What the old process held on the GPU, its context too, is gone within 5 s of the reply."""
    fresh, used = kernel(), "[d.memory_used for d in __import__('gpumagic').devices()][0]"
    before = fresh.value(used)
    if before is None:
        pytest.skip("NVML does not tell the memory in use")
    fresh.run("%gpu 0 -q\nimport torch; x = torch.ones(2**30, dtype=torch.uint8, device='cuda')")
    held = fresh.value(used)
    fresh.run("%gpu off --restart -q")  # not 0: with one GPU that would change nothing
    until = time.monotonic() + 5
    while (left := fresh.value(used)) > before + 64 * MIB and time.monotonic() < until:
        time.sleep(0.05)
    figure("memory in use: before, held, after a restart", (before, held, left))
    assert held >= before + 1024 * MIB
    assert left <= before + 64 * MIB


def test_keep_waits_for_other_streams(
    kernel: Callable[..., Kernel], cycles: float, figure: Figure
) -> None:
    """A copy on a side stream, behind 1 s of work, is in what ``--keep`` brings back."""
    fresh = kernel()
    fresh.run(
        "import torch; w, new = torch.zeros(4).cuda(), torch.ones(4).cuda()\n"
        "side = torch.cuda.Stream(); torch.cuda._sleep(1); torch.cuda.synchronize()\n"
        "def work():\n    with torch.cuda.stream(side):\n"
        f"        torch.cuda._sleep({int(cycles)})\n        w.copy_(new)"
    )
    early = fresh.value("(work(), w.cpu()[0].item(), torch.cuda.synchronize())[1]")
    fresh.run("w.zero_(); torch.cuda.synchronize(); work()")
    fresh.run("%gpu off --restart --keep w")
    figure("read at once (0: too early), and kept", (early, kept := fresh.value("w[0].item()")))
    assert kept == 1.0


#: What torch's profiler tells of ten products and a graph's replay: the virtual GPU cannot.
TRACE = """
import torch
from gpumagic.timing.profiler import Profiled
x = torch.ones(256, 256, device="cuda")
x @ x
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x.add_(1)
with torch.profiler.profile() as profile:
    x.add_(1)
    torch.cuda.synchronize()
seen = sum(event.device_type.name == "CUDA" for event in profile.events())
with Profiled() as profiled:
    for _ in range(10):
        x @ x
    graph.replay()
kernels = [(kernel.name, kernel.count) for kernel in profiled.report.kernels]
"""


def test_a_real_trace_is_read(kernel: Callable[..., Kernel], figure: Figure) -> None:
    """Every launch has its kernel, every kernel its launch."""
    fresh = kernel(load=False)
    fresh.run(TRACE)
    kernels = fresh.value("kernels")
    figure("our profile: kernels", kernels)
    if not fresh.value("seen"):
        pytest.skip("CUPTI tells nothing here")
    assert fresh.value("profiled.report.visible")
    assert sum(count for _, count in kernels) >= 11  # ten products, and the graph's own
