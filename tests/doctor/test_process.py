"""The findings on this process."""

from __future__ import annotations

from gpumagic.selection.cpu_threads import Cores
from tests.doctor.healthy import finding, judged


def test_more_threads_than_cores() -> None:
    found = finding("CPU threads", threads=64, cores=Cores(64, 64, 3.5))
    assert found.status == "warn"
    assert "4 cores allowed (control group: 3.5, machine: 64)" in found.evidence
    assert "%gpu off --threads 4" in str(found.remedy)


def test_a_dead_context() -> None:
    found = judged(context_failure="a kernel failed on the device")
    assert (found.usable, found.verdict) == (
        0,
        "torch cannot use a GPU here, because CUDA has failed in this process: a kernel failed on "
        "the device.",
    )
    about = found.about("this process")
    assert about is not None
    assert about.status == "bad"
    assert (about.remedy or "").startswith("%gpu reset --restart --keep all")
