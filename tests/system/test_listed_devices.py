"""The GPUs that ``/proc`` lists."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpumagic.magics.completion import complete
from gpumagic.system import system_files
from gpumagic.system.system_files import listed_devices

INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 16
GPU UUID: \t {uuid}
Bus Location: \t {address}
Device Minor: \t {minor}
"""


def test_gpus_are_counted_by_bus_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(system_files.ROOT, str(tmp_path))
    assert listed_devices() == ()
    gpus = (
        ("0000:41:00.0", "GPU-????????-????-????-????-????????????", 0),
        ("0000:01:00.0", "GPU-8f1d0000-aaaa-bbbb-cccc-000000000001", 1),
    )
    for address, uuid, minor in gpus:
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        text = INFORMATION.format(uuid=uuid, address=address, minor=minor)
        (folder / "information").write_text(text)
    (tmp_path / "proc/driver/nvidia/gpus/0000:81:00.0").mkdir()
    root = tmp_path / "proc/driver/nvidia/gpus"
    assert listed_devices() == (
        (0, gpus[1][1], root / "0000:01:00.0/information"),
        (1, None, root / "0000:41:00.0/information"),
        (2, None, root / "0000:81:00.0/information"),
    )

    monkeypatch.delitem(sys.modules, "gpumagic.cuda.nvml", raising=False)
    assert complete("%gpu 1", {}) == ["1"]
