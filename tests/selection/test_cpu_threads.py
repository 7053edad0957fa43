"""CPU threads: set, undone, and reported with the cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE, Choice
from gpumagic.results.selection import Selection, Status
from gpumagic.selection import cpu_threads
from gpumagic.selection.cpu_threads import quota
from gpumagic.selection.spec import parse
from gpumagic.system import system_files
from tests.virtual_gpu import Scenario

BEFORE = torch.get_num_threads()


@pytest.fixture(autouse=True)
def _own_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(STATE, "choice", Choice())
    yield
    torch.set_num_threads(BEFORE)


@pytest.mark.parametrize(
    ("affinity", "limit", "shown"),
    [
        (8, None, "8 cores allowed"),
        (2, None, "2 of 8 cores allowed"),
        (8, 1.5, "2 of 8 cores allowed"),
        (4, 2.0, "2 of 8 cores allowed"),
    ],
)
def test_cores(
    monkeypatch: pytest.MonkeyPatch, affinity: int, limit: float | None, shown: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(affinity)})
    monkeypatch.setattr(cpu_threads, "quota", lambda: limit)
    assert f", {shown}" in cpu_threads.note()


def test_the_number_before_the_first_use_comes_back() -> None:
    assert not cpu_threads.undo()
    assert cpu_threads.use(BEFORE + 1) == BEFORE + 1
    assert cpu_threads.use(BEFORE + 2) == torch_cuda.cpu_threads() == BEFORE + 2
    assert cpu_threads.undo()
    assert torch_cuda.cpu_threads() == BEFORE
    # A number that the user has set since stays.
    cpu_threads.use(BEFORE + 1)
    torch.set_num_threads(BEFORE + 2)
    assert not cpu_threads.undo()
    assert torch_cuda.cpu_threads() == BEFORE + 2


@pytest.mark.parametrize(
    ("spec", "status", "count", "threads", "note"),
    [
        ("off", "applied", None, 0, "CPU: torch computes with"),
        ("off", "too-late", None, 0, None),
        ("off", "too-late", 1, 1, "CPU: torch computes with"),
        ("0", "applied", None, 0, None),
        ("0", "applied", 2, 2, "CPU: torch computes with"),
        ("on", "applied", None, 0, None),
    ],
)
def test_a_selection_with_threads(
    spec: str, status: Status, count: int | None, threads: int, note: str | None
) -> None:
    """``count`` and ``threads`` are above the number before."""
    chosen = Selection(spec, {}, status)
    wanted = None if count is None else BEFORE + count
    found = cpu_threads.with_threads(chosen, parse(spec), wanted)
    assert torch_cuda.cpu_threads() == BEFORE + threads
    assert len(found.notes) == (note is not None)
    if note is not None:
        assert found.notes[0].startswith(f"{note} {BEFORE + threads} thread")


@pytest.mark.parametrize("spec", ["on", "reset"])
def test_on_and_reset_undo_the_number(spec: str) -> None:
    cpu_threads.use(BEFORE + 1)
    found = cpu_threads.with_threads(Selection(spec, {}, "applied"), parse(spec), None)
    assert torch_cuda.cpu_threads() == BEFORE
    assert len(found.notes) == 1


def test_without_torch_the_note_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cuda, "loaded", lambda: None)
    assert cpu_threads.note().endswith("torch is not loaded yet. Set its threads with --threads N")


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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    files: dict[str, str],
    expected: float | None,
) -> None:
    groups = {f"/sys/fs/cgroup/{name}": text for name, text in files.items()}
    Scenario(files={"/proc/self/cgroup": own, **groups}).write_files(tmp_path)
    monkeypatch.setenv(system_files.ROOT, str(tmp_path))
    assert quota() == expected
