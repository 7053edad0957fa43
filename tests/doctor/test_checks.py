"""The checks and the verdict, on facts that differ from those of a healthy machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda import devices, driver, failure, init_trace, nvml, torch_cuda
from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.probe import Build, Start
from gpumagic.cuda.process_state import STATE, InitFailure
from gpumagic.doctor import build, judge, machine, process
from gpumagic.doctor.diagnosis import Diagnosis, Finding
from gpumagic.doctor.facts import Facts, _container
from gpumagic.errors import DeviceError
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.selection import cpu_threads, gate
from gpumagic.system import system_files
from tests.support.planted_modules import PlantedModules
from tests.virtual_gpu import Scenario

BUILD = Build(
    "2.9.0+cu128", True, "12.8", None, "9.10.2", ("sm_75", "sm_80", "sm_90", "compute_90")
)
UUIDS = ("GPU-a", "GPU-b")


def table(*capabilities: tuple[int, int], visible: bool = True) -> DeviceTable:
    cards = (
        Device(i, i if visible else None, UUIDS[i], f"Card {i}", compute_capability=capability)
        for i, capability in enumerate(capabilities)
    )
    return DeviceTable(tuple(replace(card, visible=visible) for card in cards))


HEALTHY = Facts(
    build=BUILD,
    start=Start(2),
    table=table((9, 0), (8, 6)),
    state=DriverState(loaded=True, initialized=False),
    driver_cuda=(12, 8),
)
UP = DriverState(True, True, uuids=UUIDS, contexts=(0,))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nothing has happened, on a machine with nothing but a driver."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(STATE, "init_failure", InitFailure())
    monkeypatch.setattr(driver, "installed", lambda: True)
    monkeypatch.setattr(failure, "check_context", lambda: None)
    monkeypatch.setattr(torch_cuda, "in_bad_fork", lambda: False)
    monkeypatch.setattr(init_trace, "location", lambda: None)


def judged(**changes: Any) -> Diagnosis:
    return judge(replace(HEALTHY, **changes))


def only(found: Any) -> Finding:
    (finding,) = found
    return finding  # type: ignore[no-any-return]


def nvml_fails(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def session() -> None:
        error = RuntimeError()
        error.value = code  # type: ignore[attr-defined]
        raise DeviceError("NVML has failed") from error

    monkeypatch.setattr(nvml, "session", session)


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
            {"build": Build(error="torch is not installed"), "start": Start()},
            "torch is not installed",
            "torch",
        ),
        (
            {"build": Build("2.9.0+cpu"), "start": Start()},
            "this torch (2.9.0+cpu) is built without CUDA",
            "torch",
        ),
        (
            {"driver_cuda": (11, 8), "start": Start(0, "CUDA initialization: too old. Please …")},
            "the driver is too old: torch is built for CUDA 12.8, the driver supports up to 11.8",
            "driver and torch",
        ),
        (
            {"table": DeviceTable(), "start": Start(0)},
            "the machine, or the container, has no GPU",
            "GPUs",
        ),
        (
            {"state": DriverState(True, False, failed=True)},
            "CUDA has failed to start, and does not start again in this process",
            "this process",
        ),
        (
            {"state": DriverState(True, True, uuids=()), "start": Start(0)},
            "CUDA was initialised in this process when no GPU was visible",
            "this process",
        ),
        (
            {"table": table((5, 0), (5, 2))},
            "this torch has no kernels for GPU 0 (compute capability 5.0; it has sm_75 sm_80 sm_90 "
            "compute_90)",
            "GPU 0 and torch",
        ),
    ],
)
def test_the_verdict_names_the_cause(changes: dict[str, Any], verdict: str, subject: str) -> None:
    """And the finding on which it is based has the remedy."""
    result = judged(**changes)
    assert result.verdict == f"torch cannot use a GPU here, because {verdict}."
    assert result.usable == 0
    found = result.about(subject)
    assert found is not None
    assert found.status == "bad"
    assert found.remedy


def test_what_was_not_verified_is_not_claimed() -> None:
    result = judged(start=Start(None, "a copy of this process returned nothing"))
    assert result.usable is None
    assert "is unknown: a copy of this process returned nothing." in result.verdict
    broken = judged(build=Build(error="OSError: libcudart.so.12: cannot open"), start=Start())
    assert broken.usable is None
    assert broken.verdict == "torch cannot use a GPU here, because torch cannot be imported."
    unexplained = judged(start=Start(0))
    assert "although the environment variables show some" in unexplained.verdict


def test_only_gpus_that_can_be_used_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that cannot has one reason."""
    mixed = judged(table=table((5, 0), (9, 0)))
    assert mixed.verdict == "torch can use 1 of 2 GPUs here (1 without kernels in this torch)."
    first, second = table((9, 0), (9, 0))
    lost = DeviceTable((first, replace(second, error="the GPU is lost", compute_capability=None)))
    result = judged(table=lost)
    assert (result.usable, result.verdict) == (1, "torch can use 1 of 2 GPUs here (1 lost).")
    assert [found.remedy for found in result if found.subject == "GPU 1"] == ["%gpu 0"]
    started = judged(table=lost, state=UP).about("GPU 1")
    assert started is not None
    assert started.remedy == "%gpu 0 --restart"

    monkeypatch.setattr(gate, "is_closed", lambda: True)
    assert judged().verdict == ("torch cannot use a GPU here, because '%gpu off --soft' blocks it.")


# --- the machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "module", "container", "cause"),
    [
        (18, "570.10", (), "the driver was upgraded, and its kernel module and libraries do not"),
        (9, None, (), "the NVIDIA driver's kernel module is not loaded"),
        (9, "570.10", (), "the NVIDIA driver's kernel module is loaded but does not respond"),
        (9, None, ("/.dockerenv",), "without its GPUs, or its host has not loaded the NVIDIA"),
        (9, "570.10", ("/.dockerenv",), "this container was started without its GPUs."),
    ],
)
def test_an_nvml_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    module: str | None,
    container: tuple[str, ...],
    cause: str,
) -> None:
    nvml_fails(monkeypatch, code)
    monkeypatch.setattr(machine.cuda_driver, "kernel_module", lambda: module)
    # Too old besides, which would be the smaller trouble.
    changes = {"driver_cuda": (11, 8), "start": Start(0), "container": container}
    result = judged(**changes, table=DeviceTable(error="NVML has failed"))
    assert cause in result.verdict
    found = result.about("NVML")
    assert found is not None
    assert found.remedy
    assert f"(error {code}" in found.evidence
    if code == 9:  # CUDA that starts all the same, as on WSL, is what counts
        works = only(machine.works_with_nvml(HEALTHY))
        assert works.status == "warn"


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "installed", lambda: False)
    result = judged(start=Start(0), table=DeviceTable(error="NVML is not installed"))
    assert result.verdict == "torch cannot use a GPU here, because there is no NVIDIA driver."
    inside = only(machine.driver(replace(HEALTHY, container=("/.dockerenv",))))
    assert "--gpus all" in str(inside.remedy)


@pytest.mark.parametrize(
    ("variable", "value", "status"),
    [
        ("NVIDIA_VISIBLE_DEVICES", "void", "warn"),
        ("NVIDIA_DRIVER_CAPABILITIES", "utility,video", "warn"),
        ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility", "ok"),
    ],
)
def test_a_container_that_was_given_no_gpu(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, status: str
) -> None:
    monkeypatch.setattr(STATE, "started_with", {variable: value})
    found = only(machine.container(replace(HEALTHY, container=("/.dockerenv",))))
    assert found.status == status
    assert (f"{variable}={value}" in found.evidence) is (status == "warn")
    assert not [*machine.container(HEALTHY)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``files(**fields)``: from now on the files of the system are those of that `Scenario`."""

    def use(**fields: Any) -> None:
        root = tmp_path / str(len([*tmp_path.iterdir()]))
        Scenario(**fields).write_files(root)
        monkeypatch.setenv(system_files.ROOT, str(root))
        for name in ("CUDA_HOME", "CUDA_PATH", "KUBERNETES_SERVICE_HOST"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(devices, "in_first_pid_namespace", lambda: not fields.get("container"))

    return use


def test_the_systems_files(files: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    files(devices=1, files={"/dev/nvidia-caps/nvidia-cap1": "", "/dev/null": ""})
    found = only(machine.device_files(HEALTHY))
    assert found.evidence == (
        "/dev/nvidia-uvm, /dev/nvidia0, /dev/nvidiactl can be read and written"
    )
    assert _container() == ()
    assert "no nvcc" in only(machine.toolkit(HEALTHY)).evidence
    monkeypatch.setattr(os, "access", lambda path, mode: "nvidiactl" not in str(path))
    closed = only(machine.device_files(HEALTHY))
    assert (closed.status, "ls -l /dev/nvidiactl" in str(closed.remedy)) == ("bad", True)
    monkeypatch.undo()
    nvcc = "#!/bin/sh\necho Cuda compilation tools, release 11.8, V11.8.89"
    files(container=True, files={"/usr/local/cuda/bin/nvcc": nvcc})
    assert _container() == ("/.dockerenv", "a pid namespace of its own")
    other = only(machine.toolkit(HEALTHY))
    assert (other.status, other.evidence.startswith("nvcc 11.8 at")) == ("warn", True)
    assert only(machine.toolkit(replace(HEALTHY, build=replace(BUILD, cuda="11.4")))).status == "ok"


def test_the_compiler_of_the_working_folder_is_not_run(planted: PlantedModules) -> None:
    """Neither by ``PATH`` nor by ``CUDA_HOME``."""
    (planted.folder / "bin").mkdir()
    program = planted.folder / "bin" / "nvcc"
    program.write_text((planted.folder / "nvcc").read_text())
    program.chmod(0o755)
    only(machine.toolkit(HEALTHY))
    assert planted.used == []


def test_packages_that_are_not_maintained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.metadata, "version", lambda name: "11.5")
    found = next(machine.pynvml(HEALTHY))
    assert "pynvml 11.5 is installed" in found.evidence
    assert str(found.remedy).startswith("%pip uninstall -y pynvml, then")


# --- torch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 6), "sm_86", True),
        ((8, 6), "sm_80", True),
        ((8, 0), "sm_86", False),
        ((9, 0), "sm_80", False),
        ((9, 0), "sm_80 compute_80", True),
        ((7, 5), "compute_80", False),
        ((9, 0), "sm_90a", True),
        ((10, 0), "sm_90a compute_90a", False),
        ((10, 3), "sm_100f", True),
        ((12, 0), "sm_100f", False),
        ((12, 1), "sm_75 sm_120", True),
        ((5, 0), "sm_75 sm_120", False),
        ((9, 0), "gfx942", False),
    ],
)
def test_which_code_runs_where(capability: tuple[int, int], architectures: str, runs: bool) -> None:
    assert build.runs_on(capability, architectures.split()) is runs


@pytest.mark.parametrize(
    ("built", "supported", "status", "expected"),
    [
        ("12.8", (12, 8), "ok", "compatible"),
        ("12.8", (13, 0), "ok", "compatible"),
        ("12.8", (12, 1), "ok", "compatible"),
        ("13.0", (12, 8), "bad", "580 or newer"),
        ("12.1", (11, 8), "bad", "525 or newer"),
    ],
)
def test_driver_and_build(
    built: str, supported: tuple[int, int], status: str, expected: str
) -> None:
    found = build.fit(Build("x", True, built), supported)
    assert found is not None
    assert found.status == status
    assert expected in f"{found.evidence} {found.remedy}"


def test_a_driver_that_starts_anyway_is_not_called_too_old() -> None:
    found = build.fit(Build("x", True, "13.0"), (12, 8), starts=True)
    assert found is not None
    assert found.status == "ok"
    assert build.fit(Build("x", True, "13.0"), None) is None
    assert build.fit(Build("x", True, None, "6.4"), (12, 8)) is None


# --- this process --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "state", "status", "expected"),
    [
        (None, HEALTHY.state, "ok", "not set, shows 2 of 2 GPUs, not yet read"),
        ("1", UP, "warn", "'1', shows 1 of 2 GPUs: too late, this process sees GPU 0, GPU 1"),
        ("0,1", UP, "ok", "in time"),
        ("-1", HEALTHY.state, "bad", "'-1', shows 0 of 2 GPUs"),
    ],
)
def test_the_mask(
    monkeypatch: pytest.MonkeyPatch,
    mask: str | None,
    state: DriverState,
    status: str,
    expected: str,
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    found = only(process.mask(replace(HEALTHY, state=state)))
    assert found.status == status
    assert expected in found.evidence
    assert (found.remedy is None) is (status == "ok")


def test_a_mask_that_only_the_driver_understands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unequal GPUs in CUDA's own order."""
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert only(process.mask(HEALTHY)).status == "unknown"


def test_variables_that_came_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_trace, "environment_then", lambda: {"CUDA_MODULE_LOADING": "LAZY"})
    monkeypatch.setattr(torch_cuda, "allocator_settings", lambda: "")
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    assert [*process.too_late(HEALTHY)] == []
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    found = only(process.too_late(HEALTHY))
    assert found.evidence == "'EAGER' now: too late, it was read as 'LAZY'"
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    found = only(process.too_late(HEALTHY))
    assert found.evidence.endswith("it was read as not set")
    assert "'import torch'" in str(found.remedy)


def test_variables_that_make_it_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [*process.slow(HEALTHY)] == []
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "0")
    assert only(process.slow(HEALTHY)).subject == "CUDA_LAUNCH_BLOCKING"


def test_a_dead_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "check_context", lambda: "a kernel failed on the device")
    monkeypatch.setattr(failure, "dead_context", lambda: "a kernel failed on the device")
    result = judged(state=UP)
    assert result.verdict == (
        "torch cannot use a GPU here, because CUDA has failed in this process (a kernel failed on "
        "the device)."
    )
    found = result.about("this process")
    assert found is not None
    assert found.remedy == "%gpu reset --restart --keep all"


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cuda, "cpu_threads", lambda: 5)
    monkeypatch.setattr(cpu_threads, "cores", lambda: cpu_threads.Cores(4, 4))
    found = only(process.threads(HEALTHY))
    assert (found.status, "set_num_threads(4)" in str(found.remedy)) == ("warn", True)
