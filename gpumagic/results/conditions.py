"""The conditions of a measurement: machine and versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumagic.results.sample import Sample


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
    #: Seconds of a fixed piece of the host's work, before and after the runs; None where neither
    #: ``--save`` nor ``--against`` was given.
    host_speed: Sample | None = None


def differences(now: Conditions | None, before: Conditions | None) -> tuple[str, ...]:
    """Return the differences between two measurements, a clause each: device, driver, torch, CUDA.

    A version that is unknown in either is not compared, except that of the driver where no device
    was in use: that machine may have neither.
    """
    if now is None or before is None:
        return ()
    found = []
    devices = _devices(now, before)
    if devices is not None:
        found.append(f"device {devices}")
    for title, ours, theirs, without in (
        ("driver", _driver(now), _driver(before), "unknown"),
        ("torch", now.torch, before.torch, None),
        ("CUDA", now.cuda, before.cuda, None),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            found.append(f"{title} {ours or without} instead of {theirs or without}")
    return tuple(found)


def _driver(conditions: Conditions) -> str | None:
    """Return the driver's version; empty if unknown while no device was in use, else None."""
    return conditions.driver or (None if conditions.devices else "")


def _devices(now: Conditions, before: Conditions) -> str | None:
    """Return how the devices differ; None if they do not.

    A device in use in both is compared by its name. More devices of the same kind are no
    difference. Nor is the use of none, now or before, with the same driver: it is the code that
    has changed then, not the machine.
    """
    is_same_driver = before.driver is not None and before.driver == now.driver
    if is_same_driver and not (now.devices and before.devices):
        return None
    ours, theirs = set(now.devices.values()), set(before.devices.values())
    if ours != theirs:
        return f"{_names(ours)} instead of {_names(theirs)}"
    other = [
        f"cuda:{ordinal} {now.devices[ordinal]} instead of {before.devices[ordinal]}"
        for ordinal in sorted({*now.devices} & {*before.devices})
        if now.devices[ordinal] != before.devices[ordinal]
    ]
    return ", ".join(other) or None


def _names(devices: set[str]) -> str:
    return ", ".join(sorted(devices)) or "none"
