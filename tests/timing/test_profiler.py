"""The profiler around a run, and why there may be no profile. The virtual GPU has no CUPTI."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda.pytorch import profiling
from gpumagic.errors import DeviceError
from gpumagic.timing.energy import EnergyMeter
from gpumagic.timing.profiler import Profiled, report


def event(name: str, start: float, end: float, device: int | None = 0, **fields: Any) -> Any:
    """An event as torch's profiler returns them; on the host without a device."""
    from torch.autograd import DeviceType
    from torch.autograd.profiler_util import FunctionEvent

    kind = DeviceType.CPU if device is None else DeviceType.CUDA
    number = 0 if device is None else device
    return FunctionEvent(1, name, 1, start, end, device_type=kind, device_index=number, **fields)


def test_kernels_and_copies_are_summed_by_name() -> None:
    found = report(
        [
            event("aten::add", 0, 50, None),
            event("cudaLaunchKernel", 0, 5, None),
            event("add", 10, 20),
            event("add", 30, 60),
            event("add", 15, 25, 1),
            event("Memcpy HtoD", 40, 70),
            event("my range", 0, 99, is_user_annotation=True),
        ]
    )
    add, copy = found.kernels
    assert (add.name, add.count) == ("add", 3)
    assert add.total == pytest.approx(50e-6)
    assert (copy.name, copy.count) == ("Memcpy HtoD", 1)
    assert found.visible


def test_a_profiler_without_cupti_sees_nothing() -> None:
    assert not report([event("aten::add", 0, 5, None)]).visible
    waited = [event("cudaDeviceSynchronize", 0, 5, None)]
    assert report(waited).visible, "no GPU kernel ran"


def test_why_there_is_no_profile(gpu_work: Any) -> None:
    with (
        gpu_work.torch.profiler.profile(),
        pytest.raises(DeviceError, match="torch's profiler is running already"),
    ):
        Profiled()


def _torchs(torch: Any) -> None:
    with torch.profiler.profile() as profile:
        torch.ones(3) + 1
    assert any(event.key == "aten::add" for event in profile.key_averages())


def _autograds(torch: Any) -> None:
    with torch.autograd.profiler.profile() as profile:
        torch.ones(3) + 1
    assert any(event.key == "aten::add" for event in profile.key_averages())


def _for_nvtx(torch: Any) -> None:
    with torch.autograd.profiler.emit_nvtx():
        torch.ones(3) + 1


def _in_a_thread(torch: Any) -> None:
    thread = threading.Thread(target=_torchs, args=(torch,))
    thread.start()
    thread.join()


@pytest.mark.parametrize("code", [_torchs, _autograds, _for_nvtx, _in_a_thread])
def test_the_codes_own_profiler_has_priority(gpu_work: Any, code: Any, tmp_path: Path) -> None:
    """There is one session at a time: results of one that was cancelled crash the process."""
    if code is _in_a_thread and gpu_work.torch.__version__.startswith("2.6."):
        pytest.skip("torch 2.6 starts no session while another thread has one")
    profiler_module = gpu_work.torch.autograd.profiler
    before = {**vars(profiler_module)}
    with Profiled(tmp_path / "t.json") as profiled:
        code(gpu_work.torch)
    assert profiled.report is None
    assert not (tmp_path / "t.json").exists()
    assert not profiling.is_active()
    assert vars(profiler_module) == before


def test_a_profiler_that_the_code_leaves_running_is_not_ended(gpu_work: Any) -> None:
    profile, profiled = gpu_work.torch.profiler.profile(), Profiled()
    with profiled:
        profile.__enter__()
    assert profiling.is_active()
    gpu_work.torch.ones(3) + 1
    profile.__exit__(None, None, None)
    assert any(event.key == "aten::add" for event in profile.key_averages())
    assert profiled.report is None


def test_a_session_that_the_code_ends_is_not_read(gpu_work: Any) -> None:
    with Profiled() as profiled:
        gpu_work.torch.autograd._disable_profiler()
    assert profiled.report is None


def test_why_there_is_no_energy(gpu_work: Any, virtual_gpu: Any) -> None:
    virtual_gpu.fault("nvmlDeviceGetTotalEnergyConsumption", 3)
    meter = EnergyMeter([0])
    with meter:
        pass
    assert meter.joules is meter.watts is None
    assert meter.note == "no energy: NVML has no counter for this device"
