"""The cores that the control group allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda import devices as inventory
from gpumagic.selection.cpu_threads import quota
from gpumagic.system import system_files
from tests.virtual_gpu import Scenario


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``machine(**fields)``: from now on the files of the system are those of that `Scenario`."""

    def use(**fields: Any) -> None:
        root = tmp_path / str(len([*tmp_path.iterdir()]))
        Scenario(**fields).write_files(root)
        monkeypatch.setenv(system_files.ROOT, str(root))
        inventory.in_first_pid_namespace.cache_clear()

    yield use
    inventory.in_first_pid_namespace.cache_clear()


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2.0),
        ("0::/not/here\n", {"cpu.max": "400000 100000\n"}, 4.0),
        (
            "3:cpu,cpuacct:/x\n2:memory:/x\n",
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("", {}, None),
    ],
)
def test_the_control_groups_limit(
    machine: Callable[..., None], own: str, files: dict[str, str], expected: float | None
) -> None:
    groups = {f"/sys/fs/cgroup/{name}": text for name, text in files.items()}
    machine(files={"/proc/self/cgroup": own, **groups})
    assert quota() == expected
    machine(files=groups)
    assert quota() is None
