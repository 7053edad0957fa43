"""What differs between the conditions of two measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results.conditions import Conditions, differences

CONDITIONS = Conditions(
    "2026-01-31T12:00:00+00:00", {0: "NVIDIA H200"}, {0: 1980}, "570.12", "2.9.0", "12.8", "3.11.7"
)


def test_differences_of_conditions() -> None:
    other = Conditions(devices={0: "NVIDIA A100"}, driver="570.12", torch="2.10.0", cuda="12.8")
    assert differences(other, CONDITIONS) == (
        "device NVIDIA A100 instead of NVIDIA H200",
        "torch 2.10.0 instead of 2.9.0",
    )
    assert differences(CONDITIONS, CONDITIONS) == ()
    assert differences(None, CONDITIONS) == ()
    # the same cards, whatever their ordinals in the process
    assert differences(Conditions(devices={3: "NVIDIA H200"}), CONDITIONS) == ()


def test_a_machine_without_a_gpu_differs() -> None:
    without = Conditions(torch="2.9.0", cuda="12.8")
    assert differences(without, CONDITIONS) == (
        "device none instead of NVIDIA H200",
        "driver unknown instead of 570.12",
    )
    assert differences(CONDITIONS, without) == (
        "device NVIDIA H200 instead of none",
        "driver 570.12 instead of unknown",
    )
    assert differences(without, without) == ()


@pytest.mark.parametrize(
    ("now", "before", "found"),
    [
        ({0: "H100", 1: "H100"}, {0: "H100"}, ()),
        ({0: "H100"}, {0: "H100", 1: "H100"}, ()),
        ({0: "H100"}, {}, ()),  # the same driver: the GPU was there, and not in use
        ({}, {0: "H100"}, ()),  # the code has gone to the CPU, on the same machine
        ({0: "H100", 1: "A100"}, {0: "H100"}, ("device A100, H100 instead of H100",)),
        ({0: "A100", 1: "H100"}, {0: "H100", 1: "H100"}, ("device A100, H100 instead of H100",)),
        (
            {0: "A100", 1: "H100"},
            {0: "H100", 1: "A100"},
            ("device cuda:0 A100 instead of H100, cuda:1 H100 instead of A100",),
        ),
    ],
)
def test_more_devices_of_the_same_kind_do_not_differ(
    now: dict[int, str], before: dict[int, str], found: tuple[str, ...]
) -> None:
    both = (replace(CONDITIONS, devices=devices) for devices in (now, before))
    assert differences(*both) == found
