"""Errors of devices in a table, and below it."""

from __future__ import annotations

from gpumagic.results import Device, DeviceTable
from gpumagic.results.base import as_text
from gpumagic.results.device_errors import error_cell


def test_a_long_error_of_several_devices_is_said_once() -> None:
    lost = "the GPU is lost: it needs a reset, or the machine a reboot"
    devices = (*(Device(i, error=lost) for i in range(3)), Device(3, error=f"{lost} soon"))
    lines = as_text(DeviceTable(devices), 200).splitlines()
    assert [line for line in lines if line.startswith("GPU") and "lost" in line] == [
        f"GPUs 0–2: {lost}.",
        f"GPU 3: {lost} soon.",
    ]


def test_an_error_is_short_in_a_table_and_whole_on_hover() -> None:
    cell = error_cell("the GPU is lost: it needs a reset")
    assert (cell.text, cell.style) == ("✗ the GPU is lost: it …", "bad")
    assert cell.whole == "the GPU is lost: it needs a reset"
