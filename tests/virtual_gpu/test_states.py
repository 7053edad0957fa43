"""States that real machines are in: broken starts, MIG, lost GPUs, lists of processes, captures."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support import captures, forks

from . import GPU, ExternalProcess, Mig, Scenario, World

GIB = 2**30
cuda: Any = torch.cuda
Run = Callable[..., Any]


@pytest.fixture
def run(child_environment: Any) -> Run:
    """``run(scenario, code)``: what ``code`` prints as JSON, in a process of its own."""

    def go(scenario: Scenario, code: str, **env: str) -> Any:
        environment = child_environment(scenario, env)
        done = forks.run([sys.executable, "-c", "import json\n" + code], env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return go


START = """
import warnings, torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    available = torch.cuda.is_available()
try:
    torch.ones(1, device="cuda").add_(1)
    error = None
except Exception as raised:
    error = f"{type(raised).__name__}: {raised}"
print(json.dumps([available, error]))
"""
#: By the state of the machine: whether CUDA is available, and torch's words at the first tensor.
STARTS: dict[str, tuple[Scenario, bool, str]] = {
    **{
        str(code): (
            Scenario(faults={"cuInit": code}),
            False,
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
            "functions before calling NumCudaDevices() that might have already set an error? "
            f"Error {code}: {text}",
        )
        for code, text in {
            802: "system not yet initialized",
            803: "system has unsupported display driver / cuda driver combination",
            804: "forward compatibility was attempted on non supported HW",
            805: "MPS client failed to connect to the MPS control daemon or the MPS server",
        }.items()
    },
    "999": (
        Scenario(faults={"cuInit": 999}),
        False,
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
    ),
    "exclusive": (
        Scenario([GPU(compute_mode="exclusive")], processes=[ExternalProcess(0, 4242, GIB)]),
        True,
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    ),
    "full": (
        Scenario([GPU()], processes=[ExternalProcess(0, 4242, 79 * GIB + 200 * 2**20)]),
        True,
        "CUDA error: out of memory",
    ),
    "209": (
        Scenario(faults={"__cudaLaunchKernel": 209, "cudaLaunchKernel": 209}),
        True,
        "CUDA error: no kernel image is available for execution on the device",
    ),
    "MIG without instances": (
        Scenario([GPU(mig_mode=True)]),
        False,
        "RuntimeError: No CUDA GPUs are available",
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_start_that_fails_has_torchs_own_words(run: Run, name: str) -> None:
    scenario, expected, text = STARTS[name]
    available, error = run(scenario, START, PYTORCH_NVML_BASED_CUDA_CHECK="0")
    assert available == expected
    assert text in error


def test_a_compiled_kernel_too_new_for_the_driver(virtual_gpu: World) -> None:
    """222 where a module is loaded, as Triton does."""
    virtual_gpu.fault("cuModuleLoadDataEx", 222)
    driver = ctypes.CDLL("libcuda.so.1")
    module, text = ctypes.c_void_p(), ctypes.c_char_p()
    assert cuda.is_available()
    assert driver.cuModuleLoadDataEx(ctypes.byref(module), b"", 0, None, None) == 222
    driver.cuGetErrorString(222, ctypes.byref(text))
    assert text.value == b"the provided PTX was compiled with an unsupported toolchain."


MIG = """
import pynvml as nv
nv.nvmlInit()
handle = nv.nvmlDeviceGetHandleByIndex(0)
def ask(call, *args):
    try:
        return call(*args)
    except nv.NVMLError as error:
        return -error.value
def processes(handle):
    return [p.pid for p in nv.nvmlDeviceGetComputeRunningProcesses(handle)]
instance = ask(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, 0)
print(json.dumps([
    nv.nvmlDeviceGetMigMode(handle)[0],
    instance if isinstance(instance, int) else ask(processes, instance),
    ask(lambda: nv.nvmlDeviceGetUtilizationRates(handle).gpu),
    ask(processes, handle),
    ask(lambda: nv.nvmlDeviceGetMemoryInfo(handle).total),
]))
"""


def test_mig_as_nvml_tells_it(run: Run) -> None:
    """The mode; the instance's processes, or the error; the GPU's load, processes and memory."""
    denied = frozenset({"processes", "memory"})
    assert run(Scenario([GPU(mig_mode=True)]), MIG) == [1, -6, -3, [], 80 * GIB]
    assert run(Scenario([GPU(mig=[Mig()])]), MIG) == [1, [], -3, [], 80 * GIB]
    assert run(Scenario([GPU(mig=[Mig()], denied=denied)]), MIG) == [1, [], -3, -4, -4]


PROCESSES = """
import ctypes, pynvml as nv
nv.nvmlInit()
handle = nv.nvmlDeviceGetHandleByIndex(0)
library = ctypes.CDLL("libnvidia-ml.so.1")
def written(name):
    if not hasattr(library, name):
        return None
    count, room = ctypes.c_uint(8), (ctypes.c_ubyte * 512)(*[0xAA] * 512)
    getattr(library, name)(handle, ctypes.byref(count), room)
    return len(bytes(room).rstrip(b"\\xaa")) // count.value
call = "nvmlDeviceGetComputeRunningProcesses"
print(json.dumps([
    [written(call), written(call + "_v2"), written(call + "_v3")],
    [hasattr(library, "nvmlDeviceGetConfComputeMemSizeInfo"),
     hasattr(library, "nvmlDeviceGetRunningProcessDetailList")],
    nv.nvmlSystemGetDriverVersion(),
]))
"""


@pytest.mark.parametrize(
    ("nvml", "third", "symbols"),
    [(True, 24, [True, True]), ("535.54", 32, [True, False]), ("535.98", None, [True, False])],
)
def test_the_size_of_a_process_differs_by_driver(
    run: Run, nvml: bool | str, third: int | None, symbols: list[bool]
) -> None:
    others = [ExternalProcess(0, 4242, GIB), ExternalProcess(0, 4243, 2 * GIB)]
    sizes, found, version = run(Scenario(processes=others, nvml=nvml), PROCESSES)
    assert sizes == [16, 24, third]
    assert found == symbols
    assert nvml is True or version == nvml


def test_a_container_sees_used_memory_and_no_processes(virtual_gpu: World) -> None:
    import pynvml

    nvml: Any = pynvml
    virtual_gpu.add_process(0, 4242, 3 * GIB)
    virtual_gpu.hide_processes(True)
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    assert nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used >= 3 * GIB
    nvml.nvmlShutdown()


def test_a_gpu_is_lost_at_a_given_moment(virtual_gpu: World, clock: None) -> None:
    import time

    virtual_gpu.lose(1, seconds=5)
    with cuda.device(1):
        cuda.synchronize()
        time.sleep(5)
        with pytest.raises(Exception, match="unknown error"):
            cuda.synchronize()


def test_a_context_whose_waits_sleep(virtual_gpu: World, clock: None) -> None:
    import time

    torch.ones(1, device="cuda")
    driver, flags, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()
    virtual_gpu.set_profile("h100")
    driver.cuDevicePrimaryCtxSetFlags_v2(0, 4)
    try:
        driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
        assert (flags.value, active.value) == (4, 1)
        cuda._sleep(50_000_000)
        cpu = time.thread_time()
        cuda.synchronize()
        assert time.thread_time() - cpu < 5e-3
    finally:
        driver.cuDevicePrimaryCtxSetFlags_v2(0, 0)


def test_what_was_read_before_another_stream_was_done_is_counted(virtual_gpu: World) -> None:
    x, side = torch.zeros(4, device="cuda"), cuda.Stream()
    cuda.synchronize()
    x.cpu()
    assert virtual_gpu.early_reads() == 0
    with cuda.stream(side):
        cuda._sleep(50_000_000)
    x.cpu()
    assert virtual_gpu.early_reads() == 1
    cuda.synchronize()
    with cuda.stream(side):
        cuda._sleep(50_000_000)
    cuda.current_stream().wait_stream(side)
    x.cpu()
    assert virtual_gpu.early_reads() == 1


@pytest.mark.skipif(
    torch.__version__.startswith("2.6."), reason="torch 2.6 fails after a capture that was ended"
)
@pytest.mark.parametrize("name", captures.ENDS)
def test_what_ends_another_threads_capture(virtual_gpu: World, name: str) -> None:
    assert captures.ends(torch, name) == captures.ENDS[name]
