"""`gpumagic.system.host_memory`: what a control group leaves, and folders in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gpumagic.system import host_memory, system_files

MIB = 2**20


def test_the_smallest_limit_counts_and_what_the_kernel_gives_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group above limits this one, too; a group without a limit says ``max``."""
    monkeypatch.setenv(system_files.ROOT, str(tmp_path))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/above/job\n")
    above = tmp_path / "sys/fs/cgroup/above"
    job = above / "job"
    job.mkdir(parents=True)
    machine = host_memory.available()
    assert machine > 0
    (job / "memory.max").write_text("max\n")
    (job / "memory.current").write_text(f"{3 * MIB}\n")
    assert host_memory.available() > MIB
    (above / "memory.max").write_text(f"{4 * MIB}\n")
    (above / "memory.current").write_text(f"{3 * MIB}\n")
    assert host_memory.available() == MIB
    (above / "memory.stat").write_text(f"anon 5\ninactive_file {MIB // 2}\nactive_file 7\n")
    assert host_memory.available() == MIB * 3 // 2
    (above / "memory.current").write_text(f"{9 * MIB}\n")
    assert host_memory.available() == 0


def test_a_folder_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [("/", "ext4"), (str(tmp_path / "shm"), "tmpfs"), (str(tmp_path / "shm/x"), "xfs")]
    found = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: found)
    for folder, expected in (("", False), ("shm", True), ("shm/tmp", True), ("shm/x/y", False)):
        assert host_memory.is_memory(str(tmp_path / folder)) is expected
    found.append(SimpleNamespace(mountpoint=str(tmp_path / "shm/x"), fstype="tmpfs"))
    assert host_memory.is_memory(str(tmp_path / "shm/x")), "the later of two mounts is seen"
    found.clear()
    assert not host_memory.is_memory(str(tmp_path)), "no mount is listed"
