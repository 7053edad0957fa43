"""`gpumagic.system.system_files`: the system's files, or those below ``GPUMAGIC_ROOT``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumagic.system import system_files


def test_below_the_root_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "version").write_bytes(b"Linux \xff\n")
    monkeypatch.setenv(system_files.ROOT, str(tmp_path))
    assert system_files.at("/proc/version") == tmp_path / "proc" / "version"
    assert system_files.read("/proc/version") == "Linux \ufffd\n"
    assert system_files.read("/proc/none") is None
    assert system_files.read("/proc") is None
    monkeypatch.delenv(system_files.ROOT)
    assert system_files.at("/dev/null") == Path("/dev/null")


def test_the_gpus_that_the_kernel_module_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that was not used since the machine started has no UUID there."""
    monkeypatch.setenv(system_files.ROOT, str(tmp_path))
    assert system_files.listed_devices() == {}
    known = "GPU-8f1d0000-aaaa-bbbb-cccc-000000000001"
    unknown = "GPU-????????-????-????-????-????????????"
    root = tmp_path / "proc/driver/nvidia/gpus"
    for name, uuid in (("0000:41:00.0", unknown), ("0000:01:00.0", known)):
        (root / name).mkdir(parents=True)
        (root / name / "information").write_text(f"Model: \t NVIDIA\nGPU UUID: \t {uuid}\n")
    (root / "0000:81:00.0").mkdir()
    assert system_files.listed_devices() == {known: root / "0000:01:00.0/information"}
