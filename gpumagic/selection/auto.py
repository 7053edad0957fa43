"""Choose the devices that fit best, for ``auto``: pure functions of a table of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpumagic.cuda.device_table import IDLE_USE
from gpumagic.errors import DeviceError, SpecError
from gpumagic.render.units import bytes_
from gpumagic.results.claims import Claim
from gpumagic.results.devices import Device
from gpumagic.selection.spec import existing, uuid_of


@dataclass(frozen=True)
class Wants:
    """What ``auto`` requires of a device; and how any choice is made, which is not compared."""

    #: Bytes.
    min_free: int | None = None
    #: No other process, and no kernel in the last sampling period.
    idle: bool = False
    #: Seconds for which to wait for it.
    wait: float = 0.0
    #: Whether to claim the choice.
    claim: bool = field(default=True, compare=False)
    #: Whether a restart follows: the choice is one for the process that replaces this one.
    restart: bool = field(default=False, compare=False)

    @property
    def options(self) -> str:
        """The options that ask for it, as they are typed."""
        free = "" if self.min_free is None else f" --min-free {-(-self.min_free >> 20)}MiB"
        wait = f" --wait {self.wait:g}" if self.wait else ""
        return free + (" --idle" if self.idle else "") + wait

    @property
    def all_idle(self) -> bool:
        """Whether the devices must be idle: waiting for nothing else is waiting for that."""
        return self.idle or (self.wait > 0 and self.min_free is None)

    @property
    def unclaimed(self) -> bool:
        """Whether no other process may claim the devices: it will use what it has chosen."""
        return self.idle or self.wait > 0


NO_WANTS = Wants()


class NotYetError(DeviceError):
    """Too few devices fit now, but enough may later."""


def without_own(device: Device) -> Device:
    """Return a device as it is without this process: what only that uses is free."""
    own = device.memory_own or 0
    if not own or device.memory_free is None or device.memory_used is None:
        return device
    alone = all(process.own for process in device.processes or ())
    return replace(
        device,
        memory_free=device.memory_free + own,
        memory_used=device.memory_used - own,
        utilization=0 if alone else device.utilization,
    )


def refusal(device: Device, wants: Wants, claims: Sequence[Claim] = ()) -> str | None:
    """Return why a device, with others' claims, does not fit; None if it does.

    One with unknown figures does not.
    """
    if device.unusable is not None:
        return device.unusable
    free = device.memory_free
    if wants.min_free is not None and free is not None and free < wants.min_free:
        return f"only {bytes_(free)} free"
    if wants.unclaimed and claims:
        return f"claimed by {claims[0]}"
    if wants.all_idle:
        others = [process for process in device.processes or () if not process.own]
        if others:
            return f"in use by process {', '.join(str(p.pid) for p in others[:3])}"
        if (device.utilization or 0) > 0:
            return f"{device.utilization} % utilised"
        if device.processes == () and (device.memory_used or 0) >= IDLE_USE:
            return f"{bytes_(device.memory_used)} in use by processes that are not listed here"
    return unknown(device, wants)


def unknown(device: Device, wants: Wants) -> str | None:
    """Return which figure that is wanted of a device is not known, as a clause; None if all are.

    It does not become known by waiting.
    """
    if wants.min_free is not None and device.memory_free is None:
        return "its free memory is not known"
    if wants.all_idle and device.utilization is None:
        return "its utilisation is not known"
    if wants.all_idle and device.processes is None:
        return "its processes are not known"
    return None


def may_fit_later(device: Device, wants: Wants) -> bool:
    """Return whether a device can fit at some time: large enough, with all that is wanted known."""
    large = (wants.min_free or 0) <= (device.memory_total or 0)
    return large and device.unusable is None and unknown(device, wants) is None


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


def _rank(device: Device, claims: Sequence[Claim]) -> tuple[int, int, float, int]:
    """Return the key by which the best device is first: few claims, free memory, little use."""
    free = -1 if device.memory_free is None else device.memory_free
    used = 100.5 if device.utilization is None else device.utilization
    return (len(claims), -free, used, device.index)


def _claims(device: Device, others: Mapping[str, Sequence[Claim]]) -> Sequence[Claim]:
    return others.get(device.instance or device.uuid or "", ())


def pick(
    devices: Sequence[Device],
    count: int,
    wants: Wants = NO_WANTS,
    others: Mapping[str, Sequence[Claim]] | None = None,
) -> tuple[str, ...]:
    """Return the UUIDs of the ``count`` devices, or the MIG instance, that fit best.

    Raises:
        SpecError: more devices are requested than there are.
        DeviceError: not enough devices fit; the message names those that do not, and why. It is a
            `NotYetError` where they may later.
    """
    others = others or {}
    number = "1 GPU is" if count == 1 else f"{count} GPUs are"
    if count > len(devices):
        raise SpecError(f"{number} requested; {existing(devices)}")
    found = candidates(devices, count)
    if count > len(found):
        raise SpecError(
            f"{number} requested, but only {len(found)} of {len(devices)} are whole, and CUDA "
            "shows a process one MIG instance; write: auto"
        )
    judged = [(device, refusal(device, wants, _claims(device, others))) for device in found]
    fitting = [device for device, why in judged if why is None]
    if len(fitting) < count:
        reasons = "; ".join(f"{d.instance or f'GPU {d.index}'}: {why}" for d, why in judged if why)
        later = sum(may_fit_later(device, wants) for device in found) >= count
        fit = f"only {len(fitting)} of {len(found)} GPUs fit" if fitting else "no GPU fits"
        raise (NotYetError if later else DeviceError)(f"{fit}, {count} requested ({reasons})")
    fitting.sort(key=lambda device: _rank(device, _claims(device, others)))
    return tuple(device.instance or uuid_of(device) for device in fitting[:count])
