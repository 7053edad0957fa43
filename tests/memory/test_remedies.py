"""Remedies for a failed allocation that concern other processes and devices."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.memory import oom, remedies
from gpumagic.results import Device, OutOfMemory, Process
from gpumagic.results.base import as_html, as_text
from tests.support.gpu_processes import GIB


def test_processes_of_other_users_are_not_named() -> None:
    """The report is shown without a request, and saved with the notebook."""
    other = Process(70077, 60 * GIB, user="ann", command="python train.py", own=False, mine=False)
    unknown = Process(70078, GIB, own=False)
    mine = Process(79, 2 * GIB, user="me", command="python mine.py", own=False, mine=True)

    def texts(*processes: Process, other_device: int | None = None) -> list[remedies.Remedy]:
        now: Any = type(
            "Now", (), {"processes": processes, "requested": GIB, "other_device": other_device}
        )
        return [*remedies._processes(now)]

    assert texts(other, unknown) == []
    (elsewhere,) = texts(other, other_device=2)
    assert elsewhere.what == "use cuda:2"
    report = OutOfMemory(
        device=0, total=80 * GIB, free=0, others=63 * GIB, processes=(other, mine, unknown)
    )
    for drawn in (as_text(report, 200), as_html(report)):
        assert "python mine.py (pid 79) 2.00 GiB, 2 not yours" in drawn
        for word in ("ann", "train.py", "70077", "70078"):
            assert word not in drawn


def test_own_processes_may_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "fits", lambda *_: True)
    monkeypatch.setattr(remedies, "_outputs", lambda _: set())
    mine = Process(79, 2 * GIB, user="me", command="python mine.py", own=False, mine=True)
    now: Any = type("Now", (), {"processes": (mine,), "requested": GIB, "other_device": None})
    (remedy,) = remedies._processes(now)
    assert remedy.what == "end python mine.py (pid 79)"
    assert remedy.enough


def test_another_device_with_free_memory() -> None:
    table = [
        Device(0, ordinal=0, memory_free=0),
        Device(1, ordinal=1, memory_free=3 * GIB),
        Device(2, ordinal=2, memory_free=5 * GIB),
        Device(3, memory_free=50 * GIB),  # hidden: perhaps for another user
        Device(4, ordinal=3),
    ]
    assert oom._device_with(table, 0, 4 * GIB) == 2
    assert oom._device_with(table, 0, 6 * GIB) is None
    assert oom._device_with(table, 0, None) is None
