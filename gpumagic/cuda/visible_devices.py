"""What the CUDA driver reads in ``CUDA_VISIBLE_DEVICES``: its grammar, device by device.

Pure, like `visibility`, which says what a process comes to see by it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpumagic.results import Device

MASK = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
#: Hides every device. ``""`` does the same on Linux, but on Windows an empty value unsets it.
HIDE_ALL = "-1"


def given(environment: Mapping[str, str], devices: Sequence[Device]) -> list[Device] | None:
    """The devices, or their MIG instances, that these variables name; None if it is not known.

    More than a process can see at once: several MIG instances may be named.
    """
    mask = environment.get(MASK)
    if mask is None:
        return [_seen(device) for device in devices]
    if mask[:4] in ("GPU-", "MIG-"):
        return _by_uuids(mask, devices)
    positions = _by_numbers(mask, len(devices))
    if positions and not ordered(environment, devices):
        return None
    return [_seen(devices[position]) for position in positions]


def _seen(device: Device) -> Device:
    return replace(device, instance=device.mig[0].uuid if device.mig else None)


def _by_uuids(mask: str, devices: Sequence[Device]) -> list[Device] | None:
    """What UUIDs show; an entry of another kind than the first one's ends the list."""
    shown: list[Device] = []
    for entry in mask.split(","):
        if entry[:8] == "MIG-GPU-":  # the older spelling, by numbers that NVML does not list
            return None
        device = _named_by(entry, devices) if entry[:4] == mask[:4] else None
        if device is None:
            break
        if any((device.index, device.instance) == (d.index, d.instance) for d in shown):
            return []
        shown.append(device)
    return shown


def _by_numbers(mask: str, count: int) -> list[int]:
    """The ordinals that numbers show: ``1gpu`` is 1, and a number twice hides everything."""
    numbers: list[int] = []
    for entry in mask.split(","):
        match = re.match(r"\s*\+?([0-9]{1,9})", entry)
        if match is None:
            break
        if int(match[1]) in numbers:
            return []
        numbers.append(int(match[1]))
    return list(itertools.takewhile(lambda number: number < count, numbers))


def ordered(environment: Mapping[str, str], devices: Sequence[Device]) -> bool:
    """Whether CUDA's order is nvidia-smi's: asked for, or all devices are equally fast."""
    if environment.get(ORDER, "").strip() == "PCI_BUS_ID":
        return True
    return len({(device.name, device.compute_capability) for device in devices}) <= 1


def _named_by(entry: str, devices: Sequence[Device]) -> Device | None:
    """The device, or MIG instance, that a UUID (or a unique prefix) means to the driver."""
    found = [
        replace(device, instance=part.uuid)
        for device in devices
        for part in device.mig
        if part.uuid.startswith(entry)
    ]
    found += [_seen(d) for d in devices if d.uuid is not None and d.uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True)
class View:
    """What a process sees of the devices: indexes in CUDA's order."""

    #: nvidia-smi's index of each CUDA ordinal; None where the order cannot be told.
    indexes: tuple[int, ...] | None
    #: Indexes that are visible, in no order; None where not even that can be told.
    visible: frozenset[int] | None
    #: The UUID of the MIG instance that is seen of an index.
    instances: Mapping[int, str] = field(default_factory=dict)


def view(environment: Mapping[str, str], devices: Sequence[Device]) -> View:
    """What a CUDA driver that starts now, with these variables, will show.

    Follows the driver's grammar: unset means all; an invalid entry ends the list, as does one of
    another kind than the first (number, GPU or MIG UUID); a duplicate hides everything; a space
    before a UUID makes it invalid. A divided GPU shows its first MIG instance unless another one is
    named, and of all that is named CUDA shows a single instance or only whole GPUs (MIG User Guide,
    "CUDA Device Enumeration"). Integers are CUDA's ordinals, fastest device first unless
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, which on a machine with unequal devices cannot be told without
    starting the driver.
    """
    shown = given(environment, devices)
    known = MASK in environment or ordered(environment, devices)
    if shown is None or (not known and any(device.mig for device in devices)):
        return View(None, None)
    shown = next(([device] for device in shown if device.instance), shown)
    indexes = tuple(device.index for device in shown)
    parts = {device.index: device.instance for device in shown if device.instance}
    return View(indexes if known else None, frozenset(indexes), parts)


def hides_all(environment: Mapping[str, str], devices: Sequence[Device]) -> bool:
    """Whether the variables hide every device."""
    return MASK in environment and view(environment, devices).visible == frozenset()
