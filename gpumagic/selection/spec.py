"""Parse a spec of GPUs, and resolve it to the UUIDs of devices.

Pure functions: they read no environment and query neither the driver nor NVML. Numbers are always
nvidia-smi's indexes. The results are UUIDs, which the driver and torch interpret in the same way,
and which do not depend on ``CUDA_DEVICE_ORDER`` (CUDA C++ Programming Guide, "CUDA Environment
Variables").
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpumagic.cuda.visible_devices import MASK, ORDER
from gpumagic.errors import DeviceError, SpecError
from gpumagic.results import Device
from gpumagic.results.selection import too_full_text
from gpumagic.system.text import harmless, listed

_WORDS: Mapping[str, Literal["off", "on", "reset"]] = {
    "off": "off",
    "none": "off",
    "cpu": "off",
    "on": "on",
    "all": "on",
    "reset": "reset",
}
#: The highest index that a range is expanded to.
_LAST_INDEX = 1023
#: The GPUs that a message lists by UUID, and the characters of a UUID that name one.
_LISTED, _UUID = 8, 12
#: The most digits of a number; Python converts no more than 4300.
_DIGITS = 18
_NUMBER = re.compile(r"\d+")
_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)")


@dataclass(frozen=True)
class Spec:
    """A parsed spec, not yet resolved on this machine."""

    text: str
    kind: Literal["off", "on", "reset", "devices", "auto"]
    #: For ``devices``: indexes and UUIDs (or prefixes), in the user's order.
    items: tuple[int | str, ...] = ()
    #: For ``auto``: how many devices.
    count: int = 1


def as_text(spec: object) -> str:
    """Return the text of a spec that a script may also write as an index or a list of them.

    Raises:
        SpecError: it is of another type.
    """
    if isinstance(spec, str):
        return spec
    items = spec if isinstance(spec, (list, tuple)) else (spec,)
    if not all(type(item) is int or isinstance(item, str) for item in items):
        kind = type(spec).__name__
        raise SpecError(
            f"a choice of GPUs is a text ('off', '0,2', 'auto'), an index (0) or a list of them "
            f"([0, 2]), not of type {kind}; write, for example, select('0,2')"
        )
    if not items:
        raise SpecError("an empty list names no GPU; to hide all GPUs write: select('off')")
    return ",".join(str(item) for item in items)


def parse(text: str) -> Spec:
    """Parse ``off``, ``on``, ``reset``, ``0``, ``0,2``, ``1-3``, ``GPU-…``, ``MIG-…``, ``auto N``.

    Raises:
        SpecError: the text is none of these.
    """
    text = " ".join(text.split())
    word, _, rest = text.partition(" ")
    lowered = word.lower()
    if lowered in _WORDS and not rest:
        return Spec(text, _WORDS[lowered])
    if lowered == "auto":
        return Spec(text, "auto", count=_count(rest))
    items: dict[int | str, None] = {}  # an ordered set
    for raw in text.split(","):
        item = raw.strip()
        for value in _item(item, text):
            if value in items:
                raise SpecError(f"{_named(value)} is named twice in {_quoted(text)}; name it once")
            items[value] = None
    return Spec(text, "devices", tuple(items))


def _count(text: str) -> int:
    if not text:
        return 1
    if not _NUMBER.fullmatch(text):
        raise SpecError(f"'auto' takes a number of GPUs, not {text!r}; for example: auto 2")
    count = _number(text)
    if count == 0:
        raise SpecError("'auto 0' requests no GPU; to hide all GPUs write: off")
    return count


def _number(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise SpecError(
            f"{digits[:_DIGITS]}… has {len(digits)} digits; no machine has so many GPUs"
        )
    return int(digits)


def _item(item: str, text: str) -> Sequence[int | str]:
    """Return the indexes, or the UUID, of one comma-separated item."""
    if _NUMBER.fullmatch(item):
        return [_number(item)]
    if match := _RANGE.fullmatch(item):
        first, last = _number(match[1]), _number(match[2])
        if first > last:
            raise SpecError(f"the range {item!r} runs backwards; write {last}-{first}")
        if last > _LAST_INDEX:
            raise SpecError(f"the range {item!r} goes beyond {_LAST_INDEX}; write 0-3, for example")
        return range(first, last + 1)
    if item[:4].upper() in ("GPU-", "MIG-"):
        if len(item) == 4:
            raise SpecError(f"{item!r} is no UUID; write one as 'nvidia-smi -L' prints it")
        return [item]
    if item == "-1":
        raise SpecError("-1 is no GPU; to hide all GPUs write: off")
    if not item:
        raise SpecError(
            f"an empty place between commas in {_quoted(text)}; write, for example, 0,2"
        )
    if re.fullmatch(r"-\d+|\d+-", item):
        number = item.strip("-")
        raise SpecError(
            f"{item!r} is not a range; write, for example, {number}-{_number(number) + 1}"
        )
    if re.fullmatch(r"\d+( \d+)+", item):
        raise SpecError(f"separate GPUs by commas: {item.replace(' ', ',')}")
    if item.lower() in (*_WORDS, "auto"):
        raise SpecError(f"{item!r} is no part of a list; write it alone: {item}")
    near = difflib.get_close_matches(
        item.lower(), [*_WORDS, "auto", "watch", "plot", "ps", "doctor"], n=1
    )
    write = f"did you mean {near[0]!r}? Write" if near else "write"
    raise SpecError(
        f"{item!r} is not a choice of GPUs; {write} "
        "off, on, reset, auto, an index (0), a list (0,2), a range (1-3) or a UUID"
    )


def resolve(spec: Spec, devices: Sequence[Device]) -> tuple[str, ...]:
    """Return the UUIDs (``GPU-…``, ``MIG-…``) that a ``devices`` spec names, in the user's order.

    Raises:
        SpecError: a device does not exist, is ambiguous, or is named twice.
        DeviceError: a device is lost, or its UUID is not known.
    """
    lost = {d.uuid: d for d in devices if d.uuid and d.error}
    chosen: list[str] = []
    divided = {device.uuid: device.mig[0].uuid for device in devices if device.mig}
    for item in spec.items:
        uuid = _by_index(item, devices) if isinstance(item, int) else _by_uuid(item, devices)
        if uuid in chosen:
            raise SpecError(f"{_named(item)} is named twice in {_quoted(spec.text)}; name it once")
        if uuid in lost:
            device = lost[uuid]
            raise DeviceError(f"GPU {device.index} cannot be chosen: {device.error}; leave it out")
        chosen.append(uuid)
    parts = [divided.get(uuid, uuid) for uuid in chosen if uuid in divided or uuid[:4] == "MIG-"]
    if parts and len(chosen) > 1:
        raise SpecError(
            f"{spec.text!r} cannot be shown together: CUDA shows a process one MIG instance, and "
            f"no other GPU beside it; write, for example, {parts[0]}"
        )
    return tuple(chosen)


def _by_index(index: int, devices: Sequence[Device]) -> str:
    for device in devices:
        if device.index == index:
            return uuid_of(device)
    raise SpecError(f"there is no GPU {index}; {_existing(devices)}")


def _by_uuid(prefix: str, devices: Sequence[Device]) -> str:
    wanted = prefix.lower()
    known = {
        uuid: f"GPU {device.index}"
        for device in devices
        for uuid in (device.uuid, *(instance.uuid for instance in device.mig))
        if uuid is not None
    }
    found = [uuid for uuid in known if uuid.lower().startswith(wanted)]
    if not found:
        raise SpecError(f"no UUID begins with {prefix!r}; {_existing(devices, uuids=True)}")
    if len(found) > 1 and wanted not in (uuid.lower() for uuid in found):
        matches = listed([f"{known[uuid]} ({uuid})" for uuid in found], _LISTED)
        raise SpecError(f"{prefix!r} is ambiguous; it begins {matches}: write more of it")
    return min(found, key=len)


def uuid_of(device: Device) -> str:
    """Return the device's UUID.

    Raises:
        DeviceError: NVML does not report it.
    """
    if device.uuid is None:
        start = f"{ORDER}=PCI_BUS_ID and {MASK}={device.index}"
        why = f" ({device.error})" if device.error else f"; start the kernel with {start}"
        raise DeviceError(f"GPU {device.index} cannot be chosen: its UUID is not known{why}")
    return device.uuid


def _quoted(text: str) -> str:
    return repr(harmless(text, 40))


def _named(item: int | str) -> str:
    return f"GPU {item}" if isinstance(item, int) else str(item)


def _existing(devices: Sequence[Device], *, uuids: bool = False) -> str:
    if not devices:
        return "this machine has no GPU"
    if uuids:
        short = [f"{d.index}: {(d.uuid or 'no UUID')[:_UUID]}" for d in devices]
        return f"the GPUs are {listed(short, _LISTED)}"
    indexes = sorted({device.index for device in devices})
    if len(indexes) == 1:
        return f"this machine has only GPU {indexes[0]}"
    return f"this machine has GPUs {', '.join(map(str, indexes[:-1]))} and {indexes[-1]}"


# --- auto ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wants:
    """What ``auto`` requires of a device."""

    #: Bytes.
    min_free: int | None = None
    #: Percent.
    max_util: float | None = None
    #: No other process, and no kernel in the last sampling period.
    idle: bool = False


NO_WANTS = Wants()


_TOO_FULL = "not enough free memory"


def refusal(device: Device, wants: Wants) -> str | None:
    """Return why a device does not fit; None if it does. One with unknown figures does not."""
    if device.error is not None:
        return device.error
    if wants.min_free is not None:
        if device.memory_free is None:
            return "its free memory is not known"
        if device.memory_free < wants.min_free:
            return _TOO_FULL
    if wants.max_util is not None or wants.idle:
        limit = 0 if wants.max_util is None else wants.max_util
        if device.utilization is None:
            return "its utilisation is not known"
        if device.utilization > limit:
            return f"{device.utilization} % utilised"
    if wants.idle:
        others = [p for p in device.processes or () if not p.own]
        if device.processes is None:
            return "its processes are not known"
        if others:
            return f"in use by process {', '.join(str(p.pid) for p in others[:3])}"
    return None


#: Returns how many other processes claim a device.
ClaimCount = Callable[[Device], int]


def _unclaimed(_: Device) -> int:
    return 0


def freest(
    devices: Sequence[Device], wants: Wants, claims: ClaimCount = _unclaimed
) -> list[Device]:
    """Return the devices that fit: the least claimed first, then by free memory and utilisation."""

    def key(device: Device) -> tuple[int, int, float, int]:
        free = -1 if device.memory_free is None else device.memory_free
        used = 100.5 if device.utilization is None else device.utilization
        return (claims(device), -free, used, device.index)

    return sorted((d for d in devices if refusal(d, wants) is None), key=key)


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


def may_fit_later(device: Device, wants: Wants) -> bool:
    """Return whether a device that does not fit now may fit later."""
    small = device.memory_total is not None and (wants.min_free or 0) > device.memory_total
    return not (device.error or small or (refusal(device, wants) or "").endswith("not known"))


def pick(
    devices: Sequence[Device],
    count: int,
    wants: Wants,
    can_wait: bool = False,
    claims: ClaimCount = _unclaimed,
) -> tuple[str, ...]:
    """Return the UUIDs of the ``count`` devices, or the MIG instance, that fit best; see `freest`.

    With ``can_wait`` the message of the error advises to wait, where waiting can help.

    Raises:
        SpecError: more devices are requested than there are.
        DeviceError: not enough devices fit; the message names those that do not, and why.
    """
    if count > len(devices):
        number = "1 GPU is" if count == 1 else f"{count} GPUs are"
        raise SpecError(f"{number} requested; {_existing(devices)}")
    everything, devices = devices, candidates(devices, count)
    if count > len(devices):
        raise SpecError(
            f"{count} GPUs are requested, but only {len(devices)} of {len(everything)} are whole, "
            "and CUDA shows a process one MIG instance; write: auto"
        )
    fitting = freest(devices, wants, claims)
    if len(fitting) < count:
        refused = [(d, why) for d in devices if (why := refusal(d, wants)) is not None]
        number = "no GPU fits" if not fitting else f"only {len(fitting)} of {len(devices)} GPUs fit"
        helps = can_wait and sum(may_fit_later(device, wants) for device in devices) >= count
        advice = "; --wait SECONDS waits for them" if helps else ""
        if not fitting and {why for _, why in refused} == {_TOO_FULL}:
            raise DeviceError(f"{too_full_text(wants.min_free, devices)}{advice}")
        reasons = "; ".join(f"{d.instance or f'GPU {d.index}'}: {why}" for d, why in refused)
        raise DeviceError(f"{number}, {count} requested ({reasons}){advice}")
    return tuple(device.instance or uuid_of(device) for device in fitting[:count])
