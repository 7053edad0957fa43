"""Devices of ``--on``: what may be typed, and what is the default device inside."""

from __future__ import annotations

from typing import Any

import pytest

import gpumagic
from gpumagic.errors import SpecError
from gpumagic.timing.default_device import default_device, parse


@pytest.mark.parametrize(
    ("spec", "devices"),
    [
        ("cpu", ("cpu",)),
        ("cpu,cuda", ("cpu", "cuda:0")),
        ("cuda:1, cpu", ("cuda:1", "cpu")),
        ("cuda:0 cuda:1", ("cuda:0", "cuda:1")),
    ],
)
def test_devices(spec: str, devices: tuple[str, ...]) -> None:
    assert parse(spec) == devices


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "no device is named"),
        ("mars", "'mars' is not a device"),
        ("cuda:99", "there is no cuda:99: this kernel sees cuda:0"),
        ("mps", "there is no mps"),
        ("cuda,cuda:0", "cuda:0 is named twice"),
    ],
)
def test_invalid_devices_are_refused(spec: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        parse(spec)


def test_the_default_device_is_restored(gpu_work: Any) -> None:
    torch = gpu_work.torch
    before = gpumagic.device()

    def current() -> tuple[str, int]:
        return str(torch.ones(1).device), torch.cuda.current_device()

    with default_device("cuda:1"):
        assert current() == ("cuda:1", 1)
        assert str(gpumagic.device()) == "cuda:1"
    with pytest.raises(ZeroDivisionError), default_device("cuda:1"):
        _ = 1 / 0
    assert current() == ("cpu", 0)
    assert gpumagic.device() == before
