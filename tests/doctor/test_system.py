"""Device files, kernel module, container and toolkit, read from a system's files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda import devices
from gpumagic.cuda.machine import kernel_module
from gpumagic.doctor import system
from gpumagic.system import system_files
from tests.doctor.healthy import finding
from tests.support.planted_modules import PlantedModules
from tests.virtual_gpu import Scenario


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``machine(**fields)``: from now on the files of the system are those of that `Scenario`."""

    def use(**fields: Any) -> None:
        root = tmp_path / str(len([*tmp_path.iterdir()]))
        Scenario(**fields).write_files(root)
        monkeypatch.setenv(system_files.ROOT, str(root))
        devices.in_first_pid_namespace.cache_clear()

    yield use
    devices.in_first_pid_namespace.cache_clear()


def test_device_files_are_looked_at(machine: Callable[..., None]) -> None:
    machine(devices=1, files={"/dev/nvidia-caps/nvidia-cap1": "", "/dev/null": ""})
    wanted = ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"]
    assert system.device_files() == dict.fromkeys(wanted, True)
    machine(driver=False, nvml=False)
    assert system.device_files() == {}
    assert finding("device files", device_files={}).status == "unknown"
    no_uvm = finding("device files", device_files={"/dev/nvidiactl": True, "/dev/nvidia0": True})
    assert (no_uvm.status, no_uvm.remedy) == ("warn", "as root: nvidia-modprobe -u -c=0")


def test_the_systems_files_are_read(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    machine(driver_version="550.54.14")
    assert kernel_module() == "550.54.14"
    assert (system.container(), system.wsl(), system.toolkit()) == ((), False, None)
    nvcc = "#!/bin/sh\necho Cuda compilation tools, release 11.8, V11.8.89"
    machine(
        container=True,
        driver=False,
        nvml=False,
        files={
            "/usr/local/cuda/bin/nvcc": nvcc,
            "/proc/1/cgroup": "0::/docker/1234\n",
            "/proc/version": "Linux version 5.15.0-microsoft-standard-WSL2\n",
        },
    )
    assert kernel_module() is None
    assert system.container() == (
        "/.dockerenv",
        "control group of process 1: docker",
        "a pid namespace of its own",
    )
    assert system.wsl()
    found = system.toolkit()
    assert found is not None
    assert found.version == (11, 8)


def test_the_compiler_of_the_working_folder_is_not_run(
    planted: PlantedModules, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither by ``PATH`` nor by ``CUDA_HOME`` is it one in the working folder."""
    monkeypatch.delenv("GPUMAGIC_ROOT", raising=False)
    (planted.folder / "bin").mkdir()
    (planted.folder / "bin" / "nvcc").write_text((planted.folder / "nvcc").read_text())
    (planted.folder / "bin" / "nvcc").chmod(0o755)
    system.toolkit()
    assert planted.used == []
    real = tmp_path / "nvcc"
    real.write_text(f"#!/bin/sh\npwd > {tmp_path}/where\necho 'Cuda tools, release 12.4, V1'\n")
    real.chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{tmp_path}")
    found = system.toolkit()
    assert found is not None
    if found.path == str(real):
        assert found.version == (12, 4)
        assert (tmp_path / "where").read_text().strip() == str(Path(sys.prefix).resolve())
