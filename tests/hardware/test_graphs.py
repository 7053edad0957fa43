"""What a CUDA graph's capture in another thread survives of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.hardware.record import Figure
from tests.support.captures import capture_elsewhere

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

#: What a cell does before the capture, and one during it; "nothing" is the test of the test.
MEANWHILE = {
    "nothing": ("", "pass"),
    "cudatime()": ("", "from gpumagic import cudatime\nwith cudatime():\n    pass"),
    "%cudatime on": ("%cudatime on", "pass"),
}


@pytest.mark.parametrize("name", MEANWHILE)
def test_a_capture_elsewhere_survives(
    torch: Any, run_cell: Callable[..., Any], figure: Figure, name: str
) -> None:
    first, cell = MEANWHILE[name]
    run_cell(first)
    run_cell("pass")
    with capture_elsewhere(torch):
        shown = run_cell(cell).text
    figure(f"a capture elsewhere, {name} meanwhile: our words", shown)
