"""What we infer of the driver: when the choice of devices freezes, and what freezes with it.

A test ``test_inferred_…`` checks a belief that no document states; one that fails on hardware means
that the code which relies on it, and the virtual GPU, must change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.kernels import Kernel

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

Figure = Callable[[str, Any], None]
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


def test_too_late_is_said(kernel: Callable[..., Kernel], figure: Figure) -> None:
    fresh = kernel()
    fresh.run("import torch; x = torch.ones(2, device='cuda')")
    reply = fresh.run("selection = %gpu off -o")
    assert fresh.value("selection.status") == "too-late"
    assert "GpuMagicWarning" in reply.stderr
    assert fresh.value("str((x + 1).device)") == "cuda:0"
    figure("too late, as shown", reply.text)


LATE = {
    "CUDA_LAUNCH_BLOCKING": ("1", "blocks()"),
    "CUDA_MODULE_LOADING": ("EAGER", "loading()"),
}
EFFECTS = """
import time, torch
def blocks():
    torch.cuda.synchronize()
    begin = time.perf_counter()
    torch.cuda._sleep(200_000_000)
    queued = time.perf_counter() - begin
    torch.cuda.synchronize()
    return queued > 0.5 * (time.perf_counter() - begin)
def loading():
    mode, driver = ctypes.c_int(-1), ctypes.CDLL("libcuda.so.1")
    if not hasattr(driver, "cuModuleGetLoadingMode"):  # the virtual one
        return None
    return driver.cuModuleGetLoadingMode(ctypes.byref(mode)), mode.value
"""


@pytest.mark.parametrize("name", LATE)
def test_inferred_these_variables_are_read_when_cuda_starts(
    kernel: Callable[..., Kernel], name: str, figure: Figure, request: pytest.FixtureRequest
) -> None:
    """Set before CUDA starts they count; set afterwards they do not."""
    value, effect = LATE[name]
    found = {}
    for when in ("never", "before", "after"):
        fresh = kernel(env={name: None}, load=False)
        fresh.run(ASK + EFFECTS)
        setting = f"os.environ[{name!r}] = {value!r}"
        if when == "before":
            fresh.run(setting)
        fresh.run("x = torch.ones(2, device='cuda')")
        if when == "after":
            fresh.run(setting)
        found[when] = fresh.value(effect)
        fresh.close()
    figure(f"{name}={value}, by when it was set", found)
    if request.config.getoption("hardware") == "real":  # the virtual driver ignores both
        assert found["after"] == found["never"]
        assert found["before"] != found["never"]


def test_inferred_a_gate_after_cuda_has_started(
    kernel: Callable[..., Kernel], figure: Figure
) -> None:
    """Whether C++ still asks ``torch.cuda._lazy_init`` once CUDA is initialised: only recorded."""
    fresh = kernel(load=False)
    fresh.run("import torch; x = torch.ones(2, device='cuda')")
    fresh.run(
        "def refuse(): raise RuntimeError('gated')\n"
        "before, torch.cuda._lazy_init = torch.cuda._lazy_init, refuse\n"
        "def tried(make):\n"
        "    try:\n"
        "        make()\n"
        "    except RuntimeError as error:\n"
        "        return 'gated' in str(error)\n"
        "    return False\n"
    )
    makers = ("torch.ones(1, device='cuda')", "torch.ones(1).cuda()", "torch.cuda.Stream()")
    held = {maker: fresh.value(f"tried(lambda: {maker})") for maker in makers}
    figure("a replaced torch.cuda._lazy_init is asked by, once CUDA has started", held)
    assert set(held.values()) <= {True, False}


def test_device_files_across_exec(
    kernel: Callable[..., Kernel], figure: Figure, request: pytest.FixtureRequest
) -> None:
    """Whether the driver's descriptors close by themselves when the process executes itself."""
    fresh = kernel(load=False)
    fresh.run("import fcntl, os, torch; x = torch.ones(2, device='cuda')")
    fresh.run(
        "found = {}\n"
        "for fd in os.listdir('/proc/self/fd'):\n"
        "    try:\n"
        "        name = os.readlink(f'/proc/self/fd/{fd}')\n"
        "        flags = fcntl.fcntl(int(fd), fcntl.F_GETFD)\n"
        "    except OSError:\n"
        "        continue\n"
        "    if name.startswith('/dev/nvidia'):\n"
        "        found.setdefault(name, set()).add(bool(flags & fcntl.FD_CLOEXEC))\n"
    )
    found = fresh.value("{name: sorted(flags) for name, flags in found.items()}")
    figure("device files, and whether they are close-on-exec", found)
    if request.config.getoption("hardware") == "real":
        assert found
