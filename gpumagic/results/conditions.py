"""On what a result was measured, and in what that differs from another one."""

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
    ours, theirs = _versions(now), _versions(before)
    return tuple(
        f"{name} {version} instead of {theirs[name]}"
        for name, version in ours.items()
        if version and theirs[name] and version != theirs[name]
    )


def _versions(of: Conditions) -> dict[str, str | None]:
    devices = ", ".join(sorted({*of.devices.values()}))
    return {"device": devices, "driver": of.driver, "torch": of.torch, "CUDA": of.cuda}
