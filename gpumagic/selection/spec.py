"""Parse a spec of GPUs, and resolve it to the UUIDs of devices.

Pure functions: they read no environment and query neither the driver nor NVML. Numbers are always
nvidia-smi's indexes. The results are UUIDs, which name a device on any machine; what is written of
them is up to `visible_devices.choice`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpumagic.cuda.visible_devices import MASK, ORDER
from gpumagic.errors import DeviceError, SpecError
from gpumagic.render.units import spans
from gpumagic.results.devices import Device
from gpumagic.system.text import harmless
from gpumagic.wording import did_you_mean, listed, noun

_WORDS: Mapping[str, Literal["off", "on", "reset"]] = {"off": "off", "on": "on", "reset": "reset"}
#: What people type, by what they mean by it.
_MEANT = {
    "off": "-1 cpu none no disable disabled hide false void",
    "on": "all enable enabled show cuda gpu true",
    "auto": "any best free idle",
    "%gpu alone, which shows the table": "status list ls info table smi top",
}
#: No machine has more GPUs than four digits count.
_RANGE = re.compile(r"(\d{1,4})(?:\s*-\s*(\d{1,4}))?")
#: The GPUs that a message lists by UUID, and the characters of a UUID that name one.
_LISTED, _UUID = 8, 12


@dataclass(frozen=True)
class Spec:
    """A parsed spec, not yet resolved on this machine."""

    text: str
    #: ``same``: as it is, in the process that a restart starts.
    kind: Literal["off", "on", "reset", "devices", "auto", "same"]
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
    if not items or not all(type(item) is int or isinstance(item, str) for item in items):
        raise SpecError(
            "a choice of GPUs is a text ('off', '0,2', 'auto'), an index (0) or a list of them "
            f"([0, 2]), not {type(spec).__name__}; write, for example, select('0,2')"
        )
    return ",".join(str(item) for item in items)


def parse(text: str) -> Spec:
    """Parse ``off``, ``on``, ``reset``, ``0``, ``0,2``, ``1-3``, ``GPU-…``, ``MIG-…``, ``auto N``.

    Raises:
        SpecError: the text is none of these.
    """
    text = " ".join(text.split())
    word, _, rest = text.partition(" ")
    if word.lower() in _WORDS and not rest:
        return Spec(text, _WORDS[word.lower()])
    if word.lower() == "auto":
        return Spec(text, "auto", count=_count(rest))
    items: dict[int | str, None] = {}  # an ordered set
    for item in text.split(","):
        for value in _item(item.strip()):
            if value in items:
                raise _twice(value, text)
            items[value] = None
    return Spec(text, "devices", tuple(items))


def _count(text: str) -> int:
    if re.fullmatch(r"[1-9]\d{0,3}", text or "1") is None:
        raise SpecError(f"'auto' takes a number of GPUs, not {_quoted(text)}; for example: auto 2")
    return int(text or 1)


def _item(item: str) -> Sequence[int | str]:
    """Return the indexes, or the UUID, of one comma-separated item."""
    if (match := _RANGE.fullmatch(item)) is not None:
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise SpecError(f"the range {item!r} runs backwards; write {last}-{first}")
        return range(first, last + 1)
    if item[:4].upper() in ("GPU-", "MIG-") and len(item) > 4:
        return [item]
    if item.lower() in (*_WORDS, "auto"):
        raise SpecError(f"{item!r} is no part of a list; write it alone: {item}")
    meant = [word for word, typed in _MEANT.items() if item.lower() in typed.split()]
    if item and all(map(_RANGE.fullmatch, item.split())):
        meant = [",".join(item.split())]
    if (match := re.fullmatch(r"(?:cuda|gpu):?(\d{1,4})", item.lower())) is not None:
        meant = [f"{match[1]} (nvidia-smi's number)"]
    words = [*_WORDS, "auto", "watch", "plot", "restart", "doctor"]
    near = f"; did you mean {meant[0]}?" if meant else did_you_mean(item.lower(), words)
    forms = "off, on, reset, auto, nvidia-smi's index (0), a list (0,2), a range (1-3) or a UUID"
    raise SpecError(f"{_quoted(item)} is not a choice of GPUs{near or f'; write {forms}'}")


def resolve(spec: Spec, devices: Sequence[Device]) -> tuple[str, ...]:
    """Return the UUIDs (``GPU-…``, ``MIG-…``) that a ``devices`` spec names, in the user's order.

    Raises:
        SpecError: a device does not exist, is ambiguous, or is named twice.
        DeviceError: a device is lost, or its UUID is not known.
    """
    lost = {device.uuid: device for device in devices if device.uuid and device.unusable}
    chosen: list[str] = []
    for item in spec.items:
        uuid = _by_index(item, devices) if isinstance(item, int) else _by_uuid(item, devices)
        if uuid in chosen:
            raise _twice(item, spec.text)
        if uuid in lost:
            device = lost[uuid]
            why = f"{device.unusable}; leave it out"
            raise DeviceError(f"GPU {device.index} cannot be chosen: {why}")
        chosen.append(uuid)
    divided = {device.uuid: device.mig[0].uuid for device in devices if device.mig}
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
    raise SpecError(f"there is no GPU {index}; {existing(devices)}")


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
        short = [f"{d.index}: {(d.uuid or 'no UUID')[:_UUID]}" for d in devices]
        there = f"the GPUs are {listed(short, _LISTED)}" if short else existing(devices)
        raise SpecError(f"no UUID begins with {_quoted(prefix)}; {there}")
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
        why = f" ({device.error})" if device.error else f"; start the notebook process with {start}"
        raise DeviceError(f"GPU {device.index} cannot be chosen: its UUID is not known{why}")
    return device.uuid


def uuids_of(devices: Iterable[Device]) -> tuple[str, ...]:
    """Return what chooses each device or the MIG instance of it, as far as it is known."""
    found = (device.instance or device.uuid for device in devices)
    return tuple(uuid for uuid in found if uuid is not None)


def existing(devices: Sequence[Device]) -> str:
    """Return a clause on the GPUs that there are."""
    if not devices:
        return "this machine has no GPU"
    indexes = [device.index for device in devices]
    return f"this machine has {noun(len(indexes), 'GPU')} {spans(indexes)}"


def _twice(item: int | str, text: str) -> SpecError:
    name = f"GPU {item}" if isinstance(item, int) else item
    return SpecError(f"{name} is named twice in {_quoted(text)}; name it once")


def _quoted(text: str) -> str:
    return repr(harmless(text, 40))
