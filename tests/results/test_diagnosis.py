"""The doctor's report, and the line below a cell that failed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpumagic.results import Diagnosis, Explanation, Finding
from gpumagic.results.base import as_html, as_text
from tests.support.drawing import check_drawing

DIAGNOSIS = Diagnosis(
    "torch can use 1 GPU here.",
    1,
    (
        Finding("driver", "ok", "version 1 <script>"),
        Finding("pynvml", "warn", "not installed", "%pip install nvidia-ml-py"),
        Finding("NVML", "bad", "gone"),
        Finding("device files", "unknown", "none"),
    ),
)
TEXT = """\
torch can use 1 GPU here.
   Check   Found          To do
───────────────────────────────────────────────────
✗  NVML    gone
!  pynvml  not installed  %pip install nvidia-ml-py
? 1 check not known: device files
✓ 1 check passed"""


def test_drawing() -> None:
    check_drawing(DIAGNOSIS, TEXT)
    html = as_html(DIAGNOSIS)
    assert "<script>" not in html
    for color in ("#2e9e44", "#c77700", "#e85a5a"):
        assert color in html
    check_drawing(Explanation("the reason"), "the reason")


@pytest.mark.parametrize(("usable", "style"), [(None, "opacity"), (0, "#e85a5a"), (2, "#2e9e44")])
def test_the_colour_of_the_verdict(usable: int | None, style: str) -> None:
    assert style in as_html(Diagnosis("verdict", usable))
    # Not green above what is wrong.
    html = as_html(Diagnosis("verdict", usable, (Finding("GPU 1", "bad", "the GPU is lost"),)))
    assert "#2e9e44" not in html


def test_data() -> None:
    assert DIAGNOSIS.to_dict()["findings"][1]["remedy"] == "%pip install nvidia-ml-py"
    assert DIAGNOSIS.about("NVML") is DIAGNOSIS[2]
    assert DIAGNOSIS.about("torch") is None


def test_repr() -> None:
    assert repr(DIAGNOSIS) == "<Diagnosis: torch can use 1 GPU here. To look at: pynvml, NVML>"
    assert repr(Diagnosis("fine")) == "<Diagnosis: fine To look at: nothing>"
    assert repr(Explanation("the reason")) == "<Explanation: the reason>"


def test_what_is_wrong_comes_first_and_equal_findings_of_gpus_are_merged() -> None:
    gpus = tuple(Finding(f"GPU {i}", "bad" if i == 2 else "ok", "fine") for i in range(4))
    slow = Finding("CPU", "warn", "few " * 30 + "threads", "%gpu --threads 4")
    diagnosis = Diagnosis("verdict", 3, (slow, *gpus))
    lines = as_text(diagnosis, 80).splitlines()
    assert [line[:10] for line in lines if line[:1] in "✗!✓"] == [
        "✗  GPU 2  ",
        "!  CPU    ",
        "✓ 3 checks",
    ]
    assert lines[-1] == "✓ 3 checks passed"
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in "".join(lines)  # the whole is there, in several lines
    assert "".join(lines).count("few") == 30
    html = as_html(diagnosis)
    assert '<code style="white-space:nowrap;user-select:all">%gpu --threads 4</code>' in html
    assert "<details" in html


def row(result: Diagnosis, start: str) -> list[str]:
    """Return the cells of the row of a table that begins so, as text."""
    lines = as_text(result, 200).splitlines()
    return next(re.split(r"  +", line) for line in lines if line.startswith(start))


def test_equal_findings_of_all_kinds_of_subjects_are_one() -> None:
    """Also where their causes name the device, and where one of them is no GPU."""
    gpus = [
        Finding(f"GPU {i}", "bad", "lost", "reboot", f"GPU {i} does not respond") for i in range(3)
    ]
    other = Finding("torch", "bad", "lost", "reboot")
    assert row(Diagnosis("verdict", 0, (*gpus, other)), "✗")[1:] == [
        "GPUs 0–2 and torch",
        "lost",
        "reboot",
    ]
    assert row(Diagnosis("verdict", 0, (gpus[0], gpus[2])), "✗")[1] == "GPUs 0, 2"
    pairs = [replace(each, subject=f"{each.subject} and torch") for each in gpus]
    assert row(Diagnosis("verdict", 0, tuple(pairs)), "✗")[1] == "GPUs 0–2 and torch"
    mixed = (gpus[0], pairs[1], other, Finding("NVML", "bad", "lost", "reboot"))
    assert row(Diagnosis("verdict", 0, mixed), "✗")[1] == "GPU 0, GPU 1 and torch, torch and NVML"


def test_a_remedy_is_said_once() -> None:
    found = [Finding(f"GPU {i}", "bad", f"reason {i}", "install a newer torch") for i in range(3)]
    lines = as_text(Diagnosis("verdict", 0, tuple(found)), 80).splitlines()
    assert sum("install a newer torch" in line for line in lines) == 1
    assert sum("as for GPU 0" in line for line in lines) == 2


def test_names_of_devices_are_merged_and_whole_on_hover() -> None:
    found = [
        Finding("GPU 0 and torch", "bad", "no kernels", "newer", name="A <100>"),
        *[
            Finding(f"GPU {i} and torch", "bad", "no kernels", "newer", name=f"B{i}")
            for i in (1, 2)
        ],
    ]
    result = Diagnosis("verdict", 0, tuple(found))
    assert row(result, "✗")[2] == "A <100>, B1 and 1 more: no kernels"
    assert 'title="A &lt;100&gt;, B1, B2: no kernels"' in as_html(result)
    same = Diagnosis("verdict", 0, tuple(replace(each, name="A") for each in found))
    assert row(same, "✗")[2] == "A: no kernels"
    assert "title" not in as_html(same)
