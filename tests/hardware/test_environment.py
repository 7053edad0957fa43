"""When the variables that CUDA and cuBLAS know are read: set in time they count, later they do not.

Each is set in a fresh process: never, right before the moment at which we believe it is read, and
right after. What we believe is in ``gpumagic/doctor/process.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.hardware.record import Figure
from tests.support.kernels import Kernel
from tests.virtual_gpu import GPU, Scenario

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

#: `by_moment(name, value, setup, moment, effect)`: what ``effect`` is, by when the variable is set.
ByMoment = Callable[..., dict[str, Any]]
START = "x = torch.ones(2, device='cuda')"


@pytest.fixture
def by_moment(kernel: Callable[..., Kernel], figure: Figure) -> ByMoment:
    def find(
        name: str, value: str, setup: str, moment: str, effect: str, scenario: Any = None
    ) -> dict[str, Any]:
        found = {}
        for when in ("never", "before", "after"):
            fresh = kernel(scenario, {name: None}, load=False)
            setting = f"import os; os.environ[{name!r}] = {value!r}"
            fresh.run(setup)
            fresh.run(setting if when == "before" else "")
            fresh.run(moment)
            fresh.run(setting if when == "after" else "")
            found[when] = fresh.value(effect)
            fresh.close()
        figure(f"{name}={value}, by when it was set", found)
        return found

    return find


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


STARTING = {
    "CUDA_LAUNCH_BLOCKING": ("1", BLOCKING, "blocks()"),
    "CUDA_MODULE_LOADING": ("EAGER", LOADING, "loading()"),
}


@pytest.mark.parametrize("name", STARTING)
def test_inferred_these_variables_are_read_when_cuda_starts(
    by_moment: ByMoment, name: str, real: bool
) -> None:
    value, setup, effect = STARTING[name]
    found = by_moment(name, value, setup, START, effect)
    if real:
        assert found["after"] == found["never"]
        assert found["before"] != found["never"]


CONNECTIONS = """
import time, torch
def wall(streams, launches):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for stream in streams:
        with torch.cuda.stream(stream):
            for _ in range(launches):
                torch.cuda._sleep(40_000_000)
    torch.cuda.synchronize()
    return time.perf_counter() - begin
def in_kernels():
    streams = [torch.cuda.Stream() for _ in range(16)]
    wall(streams, 3)  # the clock rises
    alone = wall(streams[:1], 1)
    return [wall(streams, launches) / alone for launches in (1, 2)]
"""


def test_inferred_connections_are_counted_when_cuda_starts(by_moment: ByMoment, real: bool) -> None:
    """Kernels on 16 streams at once, one a stream and two: time, in that of one kernel.

    A stream's second kernel waits for its first, and with one connection whatever was launched
    later waits behind it: about 17 kernels' time instead of 2 or 3. One kernel a stream need not
    wait at all.
    """
    found = by_moment(
        "CUDA_DEVICE_MAX_CONNECTIONS", "1", CONNECTIONS, "import torch\n" + START, "in_kernels()"
    )
    assert found["after"] == pytest.approx(found["never"], rel=0.2)
    if real:
        assert found["before"][1] > 2 * found["never"][1]


ORDER = """
import gpumagic, os, torch
from gpumagic.cuda import driver
os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it has an order of its own
"""


@pytest.mark.usefixtures("without_mig")
def test_inferred_the_order_is_chosen_when_cuda_starts(
    kernel: Callable[..., Kernel], by_moment: ByMoment
) -> None:
    """Between unequal GPUs: the fastest first, or nvidia-smi's order."""
    unequal = Scenario(
        devices=[GPU("NVIDIA T4", 16 * 2**30, (7, 5)), GPU()],
        cuda_order=[1, 0],
    )
    fresh = kernel(unequal, load=False)
    fresh.run(ORDER)
    listed = fresh.value("[device.uuid for device in gpumagic.devices()]")
    if len(set(fresh.value("[device.name for device in gpumagic.devices()]"))) < 2:
        pytest.skip("no unequal GPUs")
    found = by_moment(
        "CUDA_DEVICE_ORDER",
        "PCI_BUS_ID",
        ORDER,
        START,
        "list(driver.state().uuids)",
        unequal,
    )
    assert found["before"] == listed
    assert found["after"] == found["never"]


TF32 = """
import torch
torch.set_float32_matmul_precision("high")
a, b = torch.randn(2, 1024, 1024)
exact = a.double() @ b.double()
a, b = a.cuda(), b.cuda()
def error():
    return str(float(((a @ b).cpu() - exact).norm() / exact.norm()))
"""


def test_inferred_tf32_is_ruled_out_before_the_first_product(
    torch: Any, by_moment: ByMoment, real: bool
) -> None:
    """Relative errors of a product that may use TF32, when NVIDIA_TF32_OVERRIDE forbids it."""
    if torch.cuda.get_device_capability(0) < (8, 0):
        pytest.skip("a GPU without TF32")
    found = by_moment("NVIDIA_TF32_OVERRIDE", "0", TF32, "error()", "error()")
    errors = {when: float(error) for when, error in found.items()}
    if real:
        assert errors["before"] < 1e-5 < errors["never"]
        assert errors["after"] > 1e-5


WORKSPACE = """
import torch
a, c = torch.ones(2, 256, 256, device="cuda")
def product():
    before = torch.cuda.memory_allocated()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.mm(a, a, out=c)
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - before
def refused():
    torch.use_deterministic_algorithms(True)
    try:
        torch.mm(a, a, out=c)
    except RuntimeError as error:
        return "CUBLAS_WORKSPACE_CONFIG" in str(error)
    return False
"""


def test_inferred_the_workspace_is_chosen_with_the_first_product(by_moment: ByMoment) -> None:
    """Bytes for the first product and for one on another stream, and whether one is refused.

    None of these need differ: ``:4096:8`` may be the size that the GPU has by itself, and newer
    versions of torch refuse no product.
    """
    found = by_moment(
        "CUBLAS_WORKSPACE_CONFIG",
        ":4096:8",
        WORKSPACE,
        "first = product()",
        "(first, product(), refused())",
    )
    assert found["after"] == found["never"]
    assert not found["before"][2]
