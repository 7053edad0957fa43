"""Choose the devices that fit best, for ``auto``: pure functions of a table of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpumagic.errors import DeviceError, SpecError
from gpumagic.render.units import bytes_
from gpumagic.results.devices import Claim, Device
from gpumagic.selection.spec import existing, uuid_of

_TOO_FULL = "not enough free memory"


@dataclass(frozen=True)
class Wants:
    """What ``auto`` requires of a device."""

    #: Bytes.
    min_free: int | None = None
    #: No other process, and no kernel in the last sampling period.
    idle: bool = False


NO_WANTS = Wants()


def refusal(device: Device, wants: Wants) -> str | None:
    """Return why a device does not fit; None if it does. One with unknown figures does not."""
    if device.error is not None:
        return device.error
    if wants.min_free is not None:
        if device.memory_free is None:
            return "its free memory is not known"
        if device.memory_free < wants.min_free:
            return _TOO_FULL
    if wants.idle:
        others = [process for process in device.processes or () if not process.own]
        if device.utilization is None or device.processes is None:
            return "its utilisation and processes are not known"
        if others:
            return f"in use by process {', '.join(str(p.pid) for p in others[:3])}"
        if device.utilization > 0:
            return f"{device.utilization} % utilised"
    return None


def may_fit_later(device: Device, wants: Wants) -> bool:
    """Return whether a device that does not fit now may fit later."""
    small = device.memory_total is not None and (wants.min_free or 0) > device.memory_total
    return not (device.error or small or (refusal(device, wants) or "").endswith("not known"))


def candidates(devices: Sequence[Device], count: int) -> list[Device]:
    """Return the devices that ``auto`` can choose; of one in MIG mode, one for each instance.

    CUDA shows a process a single instance and then no other GPU, so that for several devices those
    in MIG mode are left out.
    """
    if count > 1:
        return [device for device in devices if not device.mig]
    found: list[Device] = []
    for device in devices:
        parts = [part.uuid for part in device.mig if device.instance in (None, part.uuid)]
        found += [replace(device, instance=part).as_seen() for part in parts]
        found += [] if device.mig else [device]
    return found


def freest(
    devices: Sequence[Device], wants: Wants, others: Mapping[str, Sequence[Claim]]
) -> list[Device]:
    """Return the devices that fit, the best first.

    By the number of ``others`` that claim a device, its free memory and its utilisation.
    """

    def key(device: Device) -> tuple[int, int, float, int]:
        claims = len(others.get(device.instance or device.uuid or "", ()))
        free = -1 if device.memory_free is None else device.memory_free
        used = 100.5 if device.utilization is None else device.utilization
        return (claims, -free, used, device.index)

    return sorted((d for d in devices if refusal(d, wants) is None), key=key)


def pick(
    devices: Sequence[Device],
    count: int,
    wants: Wants = NO_WANTS,
    others: Mapping[str, Sequence[Claim]] | None = None,
    *,
    can_wait: bool = False,
) -> tuple[str, ...]:
    """Return the UUIDs of the ``count`` devices, or the MIG instance, that fit best; see `freest`.

    With ``can_wait`` the message of the error advises to wait, where waiting can help.

    Raises:
        SpecError: more devices are requested than there are.
        DeviceError: not enough devices fit; the message names those that do not, and why.
    """
    number = "1 GPU is" if count == 1 else f"{count} GPUs are"
    if count > len(devices):
        raise SpecError(f"{number} requested; {existing(devices)}")
    found = candidates(devices, count)
    if count > len(found):
        raise SpecError(
            f"{number} requested, but only {len(found)} of {len(devices)} are whole, and CUDA "
            "shows a process one MIG instance; write: auto"
        )
    fitting = freest(found, wants, others or {})
    if len(fitting) < count:
        helps = can_wait and sum(may_fit_later(device, wants) for device in found) >= count
        advice = "; --wait SECONDS waits for them" if helps else ""
        raise DeviceError(f"{_misfit(found, len(fitting), count, wants)}{advice}")
    return tuple(device.instance or uuid_of(device) for device in fitting[:count])


def _misfit(devices: Sequence[Device], fitting: int, count: int, wants: Wants) -> str:
    """Return why too few devices fit."""
    refused = {_name(d): why for d in devices if (why := refusal(d, wants)) is not None}
    if not fitting and {*refused.values()} == {_TOO_FULL}:
        best = max(devices, key=lambda device: device.memory_free or 0)
        most = f"the most is {bytes_(best.memory_free)} on {_name(best)}"
        return f"no GPU has {bytes_(wants.min_free)} free; {most}"
    number = f"only {fitting} of {len(devices)} GPUs fit" if fitting else "no GPU fits"
    reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
    return f"{number}, {count} requested ({reasons})"


def _name(device: Device) -> str:
    return device.instance or f"GPU {device.index}"
