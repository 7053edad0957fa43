"""The findings on this process."""

from __future__ import annotations

from gpumagic.selection.cpu_threads import Cores
from tests.doctor.healthy import finding


def test_more_threads_than_cores() -> None:
    found = finding("CPU threads", threads=64, cores=Cores(64, 64, 3.5))
    assert found.status == "warn"
    assert "4 cores allowed (control group: 3.5, machine: 64)" in found.evidence
    assert "%gpu off --threads 4" in str(found.remedy)
