"""What differs between the conditions of two measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results.base import Conditions, differences

HERE = Conditions(
    "2026-01-31T12:00:00+00:00", {0: "NVIDIA H200"}, "570.12", "2.9.0", "12.8", "3.11.7"
)


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (HERE, ()),
        (None, ()),
        (Conditions(), ()),
        (replace(HERE, devices={3: "NVIDIA H200", 4: "NVIDIA H200"}, python="3.12"), ()),
        (replace(HERE, devices={}), ()),  # the code has gone to the CPU, on the same machine
        (
            replace(HERE, devices={0: "NVIDIA A100"}, torch="2.10.0"),
            ("device NVIDIA A100 instead of NVIDIA H200", "torch 2.10.0 instead of 2.9.0"),
        ),
        (
            replace(HERE, driver="580", cuda="13.0"),
            ("driver 580 instead of 570.12", "CUDA 13.0 instead of 12.8"),
        ),
    ],
)
def test_differences(now: Conditions | None, found: tuple[str, ...]) -> None:
    assert differences(now, HERE) == found
