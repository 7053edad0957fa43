"""The checks and the verdict, on facts that differ from those of a healthy machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpumagic.cuda import dead_context, driver, nvml, processes
from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.probe import Start
from gpumagic.cuda.pytorch import allocator, torch_cuda
from gpumagic.cuda.pytorch.build import Build
from gpumagic.cuda.this_process import STATE, InitFailure, ProcessState
from gpumagic.doctor import build, machine, process
from gpumagic.doctor.checks import judge
from gpumagic.doctor.diagnosis import Diagnosis, Finding
from gpumagic.doctor.facts import Facts
from gpumagic.errors import DeviceError
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.selection import soft_off
from gpumagic.system import system_files
from tests.virtual_gpu import Scenario

BUILD = Build(
    "2.9.0+cu128", True, "12.8", None, "9.10.2", ("sm_75", "sm_80", "sm_90", "compute_90")
)
UUIDS = ("GPU-a", "GPU-b")
BEFORE = DriverState(initialized=False)
UP = DriverState(True, uuids=UUIDS, contexts=(0,))
UNSEEN = DriverState(True, uuids=())


def table(*capabilities: tuple[int, int]) -> DeviceTable:
    return DeviceTable(
        tuple(
            Device(i, i, UUIDS[i], f"Card {i}", compute_capability=capability, visible=True)
            for i, capability in enumerate(capabilities)
        )
    )


def facts(**changes: Any) -> Facts:
    """Those of a healthy machine, with changes."""
    healthy: dict[str, Any] = {
        "build": BUILD,
        "start": Start(2),
        "table": table((9, 0), (8, 6)),
        "state": BEFORE,
        "torch_loaded": True,
        "driver_cuda": (12, 8),
        "container": False,
    }
    return Facts(**{**healthy, **changes})


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nothing has happened, on a machine with nothing but a driver."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setattr(STATE, "init_failure", InitFailure())
    monkeypatch.setattr(driver, "installed", lambda: True)
    monkeypatch.setattr(dead_context, "check", lambda: None)
    monkeypatch.setattr(torch_cuda, "in_bad_fork", lambda: False)


def judged(**changes: Any) -> Diagnosis:
    return judge(facts(**changes))


def has(found: Finding | None, status: str, *texts: str) -> None:
    """Check the finding's status, and what its evidence and its remedy say."""
    assert found is not None
    assert found.status == status
    for text in texts:
        assert text in f"{found.evidence} | {found.remedy}"


# --- the verdict ---------------------------------------------------------------------------------


def test_a_healthy_machine() -> None:
    result = judged()
    assert (result.verdict, result.usable) == ("torch can use 2 GPUs here.", 2)
    assert {found.status for found in result} == {"ok"}
    assert all(found.remedy is None and found.evidence for found in result)
    assert result[0].subject == "driver"


@pytest.mark.parametrize(
    ("changes", "verdict", "subject"),
    [
        (
            {"driver_cuda": (11, 8), "start": Start(0, "CUDA initialization: too old. Please …")},
            "the driver is too old: torch is built for CUDA 12.8, the driver",
            "driver and torch",
        ),
        (
            {"table": DeviceTable(), "start": Start(0)},
            "the machine, or the container, has no",
            "GPUs",
        ),
        ({"state": DriverState(False, failed=True)}, "CUDA has failed to", "this process"),
        ({"state": UNSEEN, "start": Start(0)}, "CUDA was initialised in this", "this process"),
        (
            {"table": table((5, 0), (5, 2))},
            "this torch has no kernels for GPU 0–1: compute capability 5.0, 5.2 (it has sm_75",
            "kernels",
        ),
    ],
)
def test_the_verdict_names_the_cause(changes: dict[str, Any], verdict: str, subject: str) -> None:
    """And the finding on which it is based has the remedy."""
    result = judged(**changes)
    assert result.verdict.startswith(f"torch cannot use a GPU here, because {verdict}")
    assert result.usable == 0
    found = result.about(subject)
    assert found is not None
    assert (found.status, bool(found.remedy)) == ("bad", True)


def test_what_was_not_verified_is_not_claimed() -> None:
    result = judged(start=Start(None, "a copy of this process returned nothing"))
    assert result.usable is None
    assert "is unknown: a copy of this process returned nothing." in result.verdict
    unexplained = judged(start=Start(0))
    assert "although the environment variables show some" in unexplained.verdict


def test_only_gpus_that_can_be_used_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that cannot has one reason."""
    mixed = judged(table=table((5, 0), (9, 0)))
    assert mixed.verdict == "torch can use 1 of 2 GPUs here (1 without kernels in this torch)."
    first, second = table((9, 0), (9, 0))
    lost = DeviceTable(
        (first, replace(second, error="the GPU is lost", lost=True, compute_capability=(5, 0)))
    )
    result = judged(table=lost)
    assert (result.usable, result.verdict) == (1, "torch can use 1 of 2 GPUs here (1 lost).")
    for state, remedy in ((BEFORE, "%gpu 0"), (UP, "%gpu 0 --restart")):
        found = judged(table=lost, state=state).about("GPUs")
        assert found is not None
        assert (found.status, found.remedy) == ("bad", remedy)
    monkeypatch.setattr(soft_off, "is_closed", lambda: True)
    assert judged().verdict == "torch cannot use a GPU here, because '%gpu off --soft' blocks it."


# --- the machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "module", "container", "cause"),
    [
        (18, "570.10", False, "the driver was upgraded, and its kernel module and libraries do"),
        (9, None, False, "the NVIDIA driver's kernel module is not loaded"),
        (9, "570.10", False, "the NVIDIA driver's kernel module is loaded but does not respond"),
        (9, None, True, "without its GPUs, or its host has not loaded the NVIDIA"),
        (9, "570.10", True, "this container was started without its GPUs."),
    ],
)
def test_an_nvml_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch, code: int, module: str | None, container: bool, cause: str
) -> None:
    def session() -> None:
        error = RuntimeError()
        error.value = code  # type: ignore[attr-defined]
        raise DeviceError("NVML has failed") from error

    monkeypatch.setattr(nvml, "Session", session)
    monkeypatch.setattr(driver, "kernel_module", lambda: module)
    # Too old besides, which would be the smaller trouble.
    changes = {"driver_cuda": (11, 8), "start": Start(0), "container": container}
    result = judged(**changes, table=DeviceTable(error="NVML has failed"))
    assert cause in result.verdict
    has(result.about("NVML"), "bad", f"kernel module: {module or 'not loaded'}")
    # CUDA that starts all the same, as on WSL, is what counts.
    has(machine.works_with_nvml(facts()), "warn")


def test_the_systems_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "in_first_pid_namespace", lambda: True)
    inner = {"/dev/nvidia-caps/nvidia-cap1": "", "/dev/null": ""}
    Scenario(devices=1, files=inner).write_files(tmp_path / "machine")
    Scenario(container=True).write_files(tmp_path / "container")
    monkeypatch.setenv(system_files.ROOT, str(tmp_path / "container"))
    assert Facts().container
    monkeypatch.setenv(system_files.ROOT, str(tmp_path / "machine"))
    assert not Facts().container
    (tmp_path / "machine/dev/nvidia9").symlink_to("gone")
    opened = "/dev/nvidia-uvm, /dev/nvidia0, /dev/nvidiactl can be opened"
    has(machine.device_files(facts()), "ok", opened)
    monkeypatch.setattr(os, "access", lambda path, mode: "nvidiactl" not in str(path))
    job = "this job, or container, may not open /dev/nvidiactl (a device cgroup)"
    has(machine.device_files(facts(start=Start(0))), "bad", job, "request these GPUs")
    has(machine.device_files(facts()), "ok", job)
    (tmp_path / "machine/dev/nvidiactl").chmod(0o660)
    has(machine.device_files(facts(start=Start(0))), "bad", "ls -l /dev/nvidiactl")
    monkeypatch.undo()
    monkeypatch.setenv(system_files.ROOT, str(tmp_path / "machine"))
    (tmp_path / "machine/dev/nvidia-uvm").rename(tmp_path / "machine/dev/nvidia-uvm-tools")
    has(machine.device_files(facts(start=Start(0))), "bad", "there is no /dev/nvidia-uvm")


# --- torch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "architectures", "cuda", "runs"),
    [
        ((8, 6), "sm_80", "12.8", True),
        ((8, 0), "sm_86", "12.8", False),
        ((9, 0), "sm_80 compute_80", "12.8", True),
        ((7, 5), "compute_80", "12.8", False),
        ((9, 0), "sm_90a", "12.8", True),
        ((10, 0), "sm_90a compute_90a", "12.8", False),
        ((10, 3), "sm_100f", "12.9", True),
        ((12, 0), "sm_100f", "12.9", False),
        ((9, 0), "gfx942", None, False),
        # On Jetsons the version of CUDA counts.
        ((8, 7), "sm_80 sm_86", "12.8", False),
        ((8, 7), "sm_87", "12.8", True),
        ((8, 7), "sm_80", "13.2", True),
        ((11, 0), "sm_101", "13.0", True),
    ],
)
def test_which_code_runs_where(
    capability: tuple[int, int], architectures: str, cuda: str | None, runs: bool
) -> None:
    torch = Build(cuda=cuda, architectures=architectures.split())
    assert build.runs_on(capability, torch) is runs


@pytest.mark.parametrize(
    ("built", "supported", "starts", "status", "expected"),
    [
        ("12.8", (12, 8), 0, "ok", "compatible"),
        ("12.8", (12, 1), 0, "ok", "compatible"),
        ("13.0", (12, 8), 0, "bad", "580 or newer"),
        ("13.0", (12, 8), 1, "ok", "compatible"),  # by a compatibility package
    ],
)
def test_driver_and_build(
    built: str, supported: tuple[int, int], starts: int, status: str, expected: str
) -> None:
    torch = Build("x", True, built)
    found = build.fits_driver(facts(build=torch, driver_cuda=supported, start=Start(starts)))
    has(found, status, expected)
    assert build.fits_driver(facts(build=torch, driver_cuda=None)) is None


# --- this process --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "state", "status", "expected"),
    [
        (None, BEFORE, "ok", "not set, shows 2 of 2 GPUs, not yet read"),
        ("1", UP, "warn", "'1', shows 1 of 2 GPUs: too late, this process sees"),
        ("0,1", UP, "ok", "in time"),
        ("-1", BEFORE, "bad", "'-1', shows 0 of 2 GPUs | %gpu on"),
        ("0,9,1", BEFORE, "bad", "shows 1 of 2 GPUs. CUDA stops at '9'"),
        ("9", BEFORE, "bad", "'9', shows 0 of 2 GPUs | %gpu on"),
    ],
)
def test_the_mask(
    monkeypatch: pytest.MonkeyPatch, mask: str | None, state: Any, status: str, expected: str
) -> None:
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    has(process.mask(facts(state=state)), status, expected)


def test_the_mask_of_unequal_gpus_in_cudas_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    has(process.mask(facts()), "unknown", "the driver does not report what it shows")


def test_variables_that_came_too_late_or_make_it_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    then = {"CUDA_MODULE_LOADING": "LAZY"}
    monkeypatch.setattr(ProcessState, "init_environment", lambda _: then)
    monkeypatch.setattr(allocator, "settings", lambda: "")
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    assert process.variables(facts()) is None
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "0")  # torch asks only whether it is set
    found = process.variables(facts())
    has(found, "warn", "CUDA_MODULE_LOADING is EAGER: too late, it was read as LAZY", "restart")
    has(found, "warn", "PYTORCH_CUDA_ALLOC_CONF is max_split_size_mb:64: too late")
    has(found, "warn", "PYTORCH_NO_CUDA_MEMORY_CACHING: every tensor is allocated by the driver")


def test_a_replaced_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries do that to hide GPUs, and the user is told that there are some."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert f"but torch.cuda.is_available was replaced by {__file__}: code" in judged().verdict
