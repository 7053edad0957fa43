"""Available host memory, by the machine and by control groups."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gpumagic.system import system_files

MIB = 2**20


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(system_files.ROOT, str(tmp_path))
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


def group(folder: Path, names: tuple[str, str], limit: str, usage: int, stat: str) -> None:
    folder.mkdir(parents=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(stat)


def test_version_2_counts_every_group_and_no_cached_files(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/a/b\n")
    names = ("memory.max", "memory.current")
    group(root / "sys/fs/cgroup/a", names, str(90 * MIB), 50 * MIB, "inactive_file 0\n")
    stat = f"anon 1\ninactive_file {5 * MIB}\n"
    group(root / "sys/fs/cgroup/a/b", names, str(64 * MIB), 40 * MIB, stat)
    assert system_files.available_memory() == 29 * MIB


def test_version_1(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("4:memory:/a\n3:cpu:/a\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    stat = f"total_inactive_file {MIB}\n"
    group(root / "sys/fs/cgroup/memory/a", names, str(64 * MIB), 60 * MIB, stat)
    assert system_files.available_memory() == 5 * MIB


def test_no_limit(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/a\n")
    names = ("memory.max", "memory.current")
    group(root / "sys/fs/cgroup/a", names, "max", MIB, "")
    assert 0 < system_files.available_memory() <= psutil.virtual_memory().total
