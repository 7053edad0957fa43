"""When the variables that CUDA and cuBLAS know are read: set in time they count, later they do not.

Each is set in a fresh process: never, right before the moment at which we believe it is read, and
right after. What we believe is in ``gpumagic/doctor/process.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.hardware.record import Figure
from tests.support.kernels import Kernel

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

START = "x = torch.ones(2, device='cuda')"


class Variable(NamedTuple):
    """What it is set to, what comes first, when it is read, and an expression that it changes."""

    value: str
    setup: str
    moment: str
    effect: str


BLOCKING = """
import time, torch
def blocks():
    torch.cuda.synchronize()
    begin = time.perf_counter()
    torch.cuda._sleep(200_000_000)
    queued = time.perf_counter() - begin
    torch.cuda.synchronize()
    return queued > 0.5 * (time.perf_counter() - begin)
"""
LOADING = """
import ctypes, torch
def loading():
    mode, driver = ctypes.c_int(-1), ctypes.CDLL("libcuda.so.1")
    if not hasattr(driver, "cuModuleGetLoadingMode"):  # the virtual one
        return None
    return driver.cuModuleGetLoadingMode(ctypes.byref(mode)), mode.value
"""
TF32 = """
import torch
torch.set_float32_matmul_precision("high")
a, b = torch.randn(2, 1024, 1024)
exact = a.double() @ b.double()
a, b = a.cuda(), b.cuda()
def is_exact():
    return bool(((a @ b).cpu() - exact).norm() / exact.norm() < 1e-5)
"""
VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": Variable("1", BLOCKING, START, "blocks()"),
    "CUDA_MODULE_LOADING": Variable("EAGER", LOADING, START, "loading()"),
    "NVIDIA_TF32_OVERRIDE": Variable("0", TF32, "is_exact()", "is_exact()"),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_inferred_these_variables_are_read_at_that_moment(
    kernel: Callable[..., Kernel], figure: Figure, name: str, real: bool
) -> None:
    variable, found = VARIABLES[name], {}
    for when in ("never", "before", "after"):
        fresh = kernel(env={name: None}, load=False)
        setting = f"import os; os.environ[{name!r}] = {variable.value!r}"
        fresh.run(variable.setup)
        fresh.run(setting if when == "before" else "")
        fresh.run(variable.moment)
        fresh.run(setting if when == "after" else "")
        found[when] = fresh.value(variable.effect)
        fresh.close()
    figure(f"{name}={variable.value}, by when it was set", found)
    if real:  # NVIDIA_TF32_OVERRIDE changes nothing on a GPU without TF32
        assert found["after"] == found["never"]
        assert found["before"] != found["never"] or name == "NVIDIA_TF32_OVERRIDE"
