"""The verdict: how many GPUs torch can use, or the cause that it can use none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.probe import Build, Start
from gpumagic.results import DeviceTable
from tests.doctor.healthy import judged, table

#: What a machine has whose driver is installed and not loaded.
NOT_LOADED: dict[str, Any] = {
    "nvml_error": "the NVIDIA driver is not loaded",
    "nvml_code": 9,
    "table": DeviceTable(error="the NVIDIA driver is not loaded"),
    "start": Start(0, "No CUDA GPUs are available"),
    "device_files": {"/dev/nvidiactl": True},
    "library": "535.309.01",
}


def test_a_healthy_machine_has_nothing_to_look_at() -> None:
    result = judged()
    assert result.verdict == "torch can use 2 GPUs here."
    assert result.usable == 2
    assert {found.status for found in result} == {"ok"}
    assert all(found.remedy is None and found.evidence for found in result)
    assert repr(result).endswith("To look at: nothing>")
    assert result.about("no such subject") is None
    assert result[0].subject == "driver"
    assert len(result[:2]) == 2


@pytest.mark.parametrize(
    ("changes", "verdict", "subject"),
    [
        (
            {"build": Build(error="torch is not installed"), "start": Start()},
            "torch cannot use a GPU here, because torch is not installed.",
            "torch",
        ),
        (
            {"build": Build("2.9.0+cpu"), "start": Start()},
            "torch cannot use a GPU here, because this torch (2.9.0+cpu) is built without CUDA.",
            "torch",
        ),
        (
            {
                "driver_installed": False,
                "driver_cuda": None,
                "table": DeviceTable(error="NVML is not installed"),
                "start": Start(0),
            },
            "torch cannot use a GPU here, because there is no NVIDIA driver.",
            "driver",
        ),
        (
            {"driver_cuda": (11, 8), "start": Start(0, "CUDA initialization: too old. Please …")},
            "torch cannot use a GPU here, because the driver is too old: torch is built for "
            "CUDA 12.8, the driver supports up to 11.8.",
            "driver and torch",
        ),
        (
            {"nvml_error": "they do not match", "nvml_code": 18, "start": Start(0, "Error 803: x")},
            "torch cannot use a GPU here, because the driver was upgraded, and its kernel module "
            "and libraries do not match.",
            "NVML",
        ),
        (
            {
                **NOT_LOADED,
                "driver_cuda": (11, 8),  # too old besides, which would be the smaller trouble
                "start": Start(0, "CUDA initialization: too old. Please …"),
            },
            "torch cannot use a GPU here, because the NVIDIA driver's kernel module is not loaded.",
            "NVML",
        ),
        (
            {**NOT_LOADED, "container": ("/.dockerenv",)},
            "torch cannot use a GPU here, because this container was started without its GPUs, or "
            "its host has not loaded the NVIDIA driver.",
            "NVML",
        ),
        (
            {**NOT_LOADED, "container": ("/.dockerenv",), "kernel_module": "570.10"},
            "torch cannot use a GPU here, because this container was started without its GPUs.",
            "NVML",
        ),
        (
            {**NOT_LOADED, "kernel_module": "570.10"},
            "torch cannot use a GPU here, because the NVIDIA driver's kernel module is loaded but "
            "does not respond.",
            "NVML",
        ),
        (
            {
                "environment": {"CUDA_VISIBLE_DEVICES": "-1"},
                "table": table((9, 0), visible=False),
                "start": Start(0),
            },
            "torch cannot use a GPU here, because every GPU is hidden from this process: "
            "CUDA_VISIBLE_DEVICES=-1.",
            "CUDA_VISIBLE_DEVICES",
        ),
        (
            {"table": DeviceTable(), "start": Start(0)},
            "torch cannot use a GPU here, because the machine, or the container, has no GPU.",
            "GPUs",
        ),
        (
            {"bad_fork": True, "start": Start(0)},
            "torch cannot use a GPU here, because this process was forked from one in which CUDA "
            "was initialised.",
            "fork",
        ),
        (
            {"state": DriverState(True, False, failed=True)},
            "torch cannot use a GPU here, because CUDA failed to start in this process, which "
            "lasts until the process ends.",
            "this process",
        ),
        (
            {"state": DriverState(True, True, uuids=()), "start": Start(0)},
            "torch cannot use a GPU here, because CUDA was initialised in this process when no GPU "
            "was visible.",
            "this process",
        ),
        (
            {"gate": "off"},
            "torch cannot use a GPU here, because '%gpu off --soft' blocks it.",
            "gate",
        ),
        (
            {"table": table((5, 0), (5, 2))},
            "torch cannot use a GPU here, because this torch has no kernels for GPU 0 (compute "
            "capability 5.0; it has sm_75 sm_80 sm_90 compute_90).",
            "GPU 0 and torch",
        ),
        (
            {"device_files": {"/dev/nvidiactl": False, "/dev/nvidia0": True}, "start": Start(0)},
            "torch cannot use a GPU here, because this user may not open the driver's device "
            "files.",
            "device files",
        ),
    ],
)
def test_the_verdict_names_the_cause(changes: dict[str, Any], verdict: str, subject: str) -> None:
    """And the finding on which it is based has the remedy."""
    result = judged(**changes)
    assert result.verdict == verdict
    assert result.usable == 0
    found = result.about(subject)
    assert found is not None
    assert found.status in ("bad", "warn")
    assert found.remedy


def test_what_was_not_verified_is_not_claimed() -> None:
    result = judged(start=Start(None, "a copy of this process returned nothing"))
    assert result.usable is None
    assert result.verdict == (
        "Whether torch can use a GPU here is unknown: a copy of this process returned nothing."
    )
    broken = judged(build=Build(error="OSError: libcudart.so.12: cannot open"), start=Start())
    assert broken.usable is None
    assert broken.verdict == "torch cannot use a GPU here, because torch cannot be imported."
    unexplained = judged(start=Start(0))
    assert (
        "CUDA finds no device, although the environment variables show some" in unexplained.verdict
    )


def test_only_gpus_that_can_be_used_count() -> None:
    mixed = judged(table=table((5, 0), (9, 0)))
    assert mixed.usable == 1
    assert mixed.verdict == "torch can use 1 of 2 GPUs here: it has no kernels for 1."
    healthy = table((9, 0), (9, 0)).devices
    gone = replace(healthy[1], error="the GPU is lost", compute_capability=None)
    lost = judged(table=DeviceTable((healthy[0], gone)))
    assert (lost.usable, lost.verdict) == (1, "torch can use 1 of 2 GPUs here: 1 is lost.")
    found = lost.about("GPU 1")
    assert found is not None
    assert (found.status, found.remedy) == ("bad", "%gpu 0")
    started = judged(
        table=DeviceTable((healthy[0], gone)), state=DriverState(loaded=True, initialized=True)
    ).about("GPU 1")
    assert started is not None
    assert started.remedy == "%gpu 0 --restart"
    both = judged(table=DeviceTable((replace(table((5, 0)).devices[0], index=0), gone)))
    assert both.usable == 0
    gated = judged(gate="1", gate_allows=(1,))
    assert gated.verdict == "torch can use 1 GPU here: '--soft' blocks the others."
