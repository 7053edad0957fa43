"""The GPUs that ``/proc`` lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumagic.system import system_files
from gpumagic.system.system_files import listed_devices
from tests.virtual_gpu import Scenario

INFORMATION = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\nGPU UUID: \t {}\nDevice Minor: \t {}\n"


def test_gpus_are_counted_by_bus_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(system_files.ROOT, str(tmp_path))
    assert listed_devices() == ()
    known = "GPU-8f1d0000-aaaa-bbbb-cccc-000000000001"
    unknown = "GPU-????????-????-????-????-????????????"
    folder = "/proc/driver/nvidia/gpus"
    files = {
        f"{folder}/0000:41:00.0/information": INFORMATION.format(unknown, 0),
        f"{folder}/0000:01:00.0/information": INFORMATION.format(known, 1),
        f"{folder}/0000:81:00.0/another": "",
    }
    Scenario(devices=0, files=files).write_files(tmp_path)
    root = Path(f"{tmp_path}{folder}")
    assert listed_devices() == (
        (0, known, root / "0000:01:00.0/information"),
        (1, None, root / "0000:41:00.0/information"),
        (2, None, root / "0000:81:00.0/information"),
    )
