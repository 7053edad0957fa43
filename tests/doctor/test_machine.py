"""The findings on driver, device files, container and NVML."""

from __future__ import annotations

from typing import Any

from gpumagic.cuda.probe import Start
from gpumagic.results import DeviceTable
from tests.doctor.healthy import finding, judged

#: What a machine has whose driver is installed and not loaded.
NOT_LOADED: dict[str, Any] = {
    "nvml_error": "the NVIDIA driver is not loaded",
    "nvml_code": 9,
    "table": DeviceTable(error="the NVIDIA driver is not loaded"),
    "start": Start(0, "No CUDA GPUs are available"),
    "device_files": {"/dev/nvidiactl": True},
    "library": "535.309.01",
}


def test_a_driver_that_is_not_loaded() -> None:
    assert "version 535.309.01 (NVML's file)" in finding("driver", **NOT_LOADED).evidence
    assert "modprobe" in str(finding("NVML", **NOT_LOADED).remedy)
    # The driver's libraries make /dev/nvidiactl themselves: nothing to be mended there.
    files = finding("device files", **NOT_LOADED)
    assert (files.status, files.remedy) == ("unknown", None)
    closed = finding("device files", **{**NOT_LOADED, "device_files": {"/dev/nvidiactl": False}})
    assert closed.status == "bad"
    # CUDA that starts all the same, as on WSL, is what counts.
    works = judged(**{**NOT_LOADED, "start": Start(1)})
    assert works.usable == 1
    assert [found.status for found in works if found.subject == "NVML"] == ["warn"]


def test_a_container_that_was_given_no_gpu() -> None:
    for variable, value in (
        ("NVIDIA_VISIBLE_DEVICES", "void"),
        ("NVIDIA_DRIVER_CAPABILITIES", "utility,video"),
    ):
        found = finding(
            "container", container=("/.dockerenv",), environment_at_start={variable: value}
        )
        assert found.status == "warn"
        assert f"{variable}={value}" in found.evidence
    assert judged().about("container") is None
