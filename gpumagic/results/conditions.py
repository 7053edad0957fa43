"""The conditions of a measurement: machine and versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Conditions:
    """The machine and the versions of a measurement; None for each that was not known."""

    #: UTC, ISO 8601: ``2026-01-31T12:00:00+00:00``.
    date: str | None = None
    #: Names of the devices that the measured code used, by CUDA ordinal.
    devices: Mapping[int, str] = field(default_factory=dict)
    #: SM clocks at the end, by CUDA ordinal, in MHz; empty where NVML was not in use.
    clocks: Mapping[int, int] = field(default_factory=dict)
    #: Version of the NVIDIA driver.
    driver: str | None = None
    #: Version of torch, and of the CUDA that it was built with.
    torch: str | None = None
    cuda: str | None = None
    python: str | None = None
    gpumagic: str | None = None


def differences(now: Conditions | None, before: Conditions | None) -> tuple[str, ...]:
    """Return the differences between two measurements, a clause each: device, driver, torch, CUDA.

    What is unknown in either is not compared; nor are devices where one of them has used none:
    then the code has changed, not the machine.
    """
    if now is None or before is None:
        return ()
    pairs = (
        ("device", _devices(now), _devices(before)),
        ("driver", now.driver, before.driver),
        ("torch", now.torch, before.torch),
        ("CUDA", now.cuda, before.cuda),
    )
    return tuple(
        f"{title} {ours} instead of {theirs}"
        for title, ours, theirs in pairs
        if ours and theirs and ours != theirs
    )


def _devices(conditions: Conditions) -> str:
    return ", ".join(sorted({*conditions.devices.values()}))
