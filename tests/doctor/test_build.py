"""torch's build compared with the driver, the toolkit and each GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.cuda.probe import Build
from gpumagic.doctor.build import fit, runs_on
from gpumagic.doctor.facts import Toolkit
from gpumagic.results.base import as_html
from tests.doctor.healthy import BUILD, finding, judged, table


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 6), "sm_86", True),
        ((8, 6), "sm_80", True),
        ((8, 0), "sm_86", False),
        ((9, 0), "sm_80", False),
        ((9, 0), "sm_80 compute_80", True),
        ((7, 5), "compute_80", False),
        ((9, 0), "sm_90a", True),
        ((10, 0), "sm_90a compute_90a", False),
        ((10, 3), "sm_100f", True),
        ((12, 0), "sm_100f", False),
        ((12, 1), "sm_75 sm_120", True),
        ((5, 0), "sm_75 sm_120", False),
        ((9, 0), "gfx942", False),
    ],
)
def test_which_code_runs_where(capability: tuple[int, int], architectures: str, runs: bool) -> None:
    assert runs_on(capability, architectures.split()) is runs


def test_the_remedy_for_a_gpu_depends_on_its_age() -> None:
    old, new = (
        finding("GPU 0 and torch", table=table((5, 0))),
        finding(
            "GPU 0 and torch", table=table((12, 0)), build=replace(BUILD, architectures=("sm_90",))
        ),
    )
    assert "older torch" in str(old.remedy)
    assert "sm_50" in str(old.remedy)
    assert "newer torch" in str(new.remedy)


@pytest.mark.parametrize(
    ("built", "supported", "status", "expected"),
    [
        ("12.8", (12, 8), "ok", "compatible"),
        ("12.8", (13, 0), "ok", "compatible"),
        ("12.8", (12, 1), "ok", "the same major version suffices"),
        ("13.0", (12, 8), "bad", "580 or newer"),
        ("12.1", (11, 8), "bad", "525 or newer"),
    ],
)
def test_driver_and_build(
    built: str, supported: tuple[int, int], status: str, expected: str
) -> None:
    found = fit(Build("x", True, built), supported)
    assert found is not None
    assert found.status == status
    assert expected in f"{found.evidence} {found.remedy}"


def test_a_driver_that_starts_anyway_is_not_called_too_old() -> None:
    found = fit(Build("x", True, "13.0"), (12, 8), starts=True)
    assert found is not None
    assert found.status == "ok"
    assert fit(Build("x", True, "13.0"), None) is None
    assert fit(Build("x", True, None, "6.4"), (12, 8)) is None


def test_toolkit() -> None:
    assert "no nvcc" in finding("toolkit").evidence
    assert finding("toolkit", toolkit=Toolkit("/x/nvcc", (12, 4))).status == "ok"
    other = finding("toolkit", toolkit=Toolkit("/x/nvcc", (11, 8)))
    assert other.status == "warn"
    assert "nvcc 11.8 at /x/nvcc" in other.evidence
    assert finding("toolkit", toolkit=Toolkit("/x/nvcc")).status == "unknown"


def test_kernels_of_torch_are_listed_once() -> None:
    """Whatever the number and the kinds of GPUs."""
    for capabilities in ([(9, 0), (8, 6)], [(5, 0), (6, 0)]):
        result = judged(table=table(*capabilities))
        shown = as_html(result)
        assert shown.count("sm_75 sm_80 sm_90 compute_90") <= 1 + ("it has sm_75" in result.verdict)
        evidence = [found.evidence for found in result if found.subject.startswith("GPU")]
        assert all("sm_" not in each for each in evidence)
        assert [found.name for found in result if found.name] == ["Card 0", "Card 1"]
