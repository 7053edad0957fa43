"""What we infer of the driver: when the choice of devices freezes, and what freezes with it.

A test ``test_inferred_…`` checks a belief that no document states; one that fails on hardware means
that the code which relies on it, and the virtual GPU, must change.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hardware.record import Figure
from tests.support.kernels import Kernel

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

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


def test_importing_torch_does_not_initialise_the_driver(plain: Kernel, figure: Figure) -> None:
    plain.run("import torch")
    answer = plain.value("ask()")
    figure("driver's answer after import torch", answer)
    assert answer is None or answer[0] == 3


def test_is_available_freezes_the_choice(plain: Kernel, figure: Figure) -> None:
    plain.run("import torch; torch.cuda.is_available()")
    assert plain.value("torch.cuda.is_initialized()") is False
    answer = plain.value("ask()")
    figure("driver's answer after is_available()", answer)
    assert answer[0] == 0
    assert answer[1] >= 1
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


def test_a_fork_that_asks_leaves_cuda_usable(kernel: Callable[..., Kernel], figure: Figure) -> None:
    """From off to on under a loaded torch, a fork of the kernel starts CUDA to see if it can."""
    fresh = kernel()
    fresh.run("%gpu off -q\nimport time, torch")
    fresh.run("begin = time.perf_counter()\ns = %gpu on -o -q\ntaken = time.perf_counter() - begin")
    figure("off to on under torch: status, seconds", fresh.value("(s.status, taken)"))
    assert fresh.value("s.status") == "applied"
    assert fresh.value("str(torch.ones(1, device='cuda').device)") == "cuda:0"


@pytest.mark.usefixtures("without_mig")
@pytest.mark.parametrize("spec", ["off", "0", "on"])
def test_a_verified_choice_is_true(kernel: Callable[..., Kernel], spec: str) -> None:
    fresh = kernel()
    fresh.run(f"selection = %gpu {spec} -o -q")
    assert fresh.value("selection.status") in ("applied", "unchanged")
    fresh.run("import torch")
    visible = fresh.value("[d.uuid for d in selection.devices]")
    assert fresh.value("torch.cuda.device_count()") == len(visible)
    assert fresh.value("torch.cuda.is_available()") == bool(visible)
    if visible:
        fresh.run("x = torch.ones(2, device='cuda')")
        real = fresh.value(
            "['GPU-' + str(torch.cuda.get_device_properties(i).uuid) "
            "for i in range(torch.cuda.device_count())]"
        )
        assert real == visible
        assert fresh.value("[d.uuid for d in __import__('gpumagic').devices() if d.visible]")
