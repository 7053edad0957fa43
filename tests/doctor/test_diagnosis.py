"""The doctor's report."""

from __future__ import annotations

import pytest

from gpumagic.doctor.diagnosis import Diagnosis, Finding
from gpumagic.results.base import as_html, as_text
from tests.results.examples import DIAGNOSIS

TEXT = """\
torch can use 1 GPU here.
   Check   Found          To do
───────────────────────────────────────────────────
✗  NVML    gone
!  pynvml  not installed  %pip install nvidia-ml-py
? 1 check not known: device files
   Check         Found
──────────────────────
?  device files  none
✓ 1 check passed
   Check   Found
─────────────────────────────
✓  driver  version 1 <script>"""


def test_what_is_wrong_is_shown_first_and_what_is_not_is_folded_in_a_notebook() -> None:
    assert as_text(DIAGNOSIS, 200) == TEXT
    assert as_html(DIAGNOSIS).count("<details") == 2
    assert "<script>" not in as_html(DIAGNOSIS)
    assert repr(DIAGNOSIS) == "<Diagnosis: torch can use 1 GPU here.>"


def test_a_variable_to_be_copied_is_not_broken() -> None:
    long = "the driver's library cannot be loaded in this container, which has no GPU " * 2
    remedy = f"{long}: set NVIDIA_DRIVER_CAPABILITIES, with compute,utility"
    found = Diagnosis("none", 0, (Finding("driver", "bad", long, remedy),))
    assert "NVIDIA_DRIVER_CAPABILITIES," in as_text(found, 80)


@pytest.mark.parametrize(("usable", "tone"), [(None, "dim"), (0, "bad"), (2, "good")])
def test_the_verdict_is_green_only_where_nothing_is_bad(usable: int | None, tone: str) -> None:
    assert Diagnosis("verdict", usable)._tone() == tone
    lost = Finding("GPU 1", "bad", "the GPU is lost")
    assert Diagnosis("verdict", usable, (lost,))._tone() == {"good": "warn"}.get(tone, tone)
