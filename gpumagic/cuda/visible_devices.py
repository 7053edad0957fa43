"""The devices that ``CUDA_VISIBLE_DEVICES`` shows a process, by the grammar of the CUDA driver.

Pure functions: they read no environment and query neither the driver nor NVML.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpumagic.results.devices import Device

#: The variables that decide which devices a process sees, and in which order.
MASK, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
VARIABLES = (MASK, ORDER)
#: Hides every device, as ``""`` does, which is less easily seen.
HIDE_ALL = "-1"
#: Environment variables, these two among others; None for one that is not set.
Environment = Mapping[str, str | None]


def variables(environment: Environment) -> dict[str, str | None]:
    """Return the variables in an environment; None for one that is not set."""
    return {name: environment.get(name) for name in VARIABLES}


def choice(uuids: Sequence[str], devices: Sequence[Device]) -> dict[str, str]:
    """Return the variables that show a process these devices, or this MIG instance, in this order.

    The devices are numbers, since many scripts read nothing else, in nvidia-smi's order. A MIG
    instance is a UUID, and so are all devices where CUDA may leave one out that nvidia-smi counts.
    """
    numbers = {device.uuid: str(device.index) for device in devices}
    whole = all(d.error is None and d.mig_mode is False and not d.mig for d in devices)
    if not whole or not numbers.keys() >= {*uuids}:
        return {MASK: ",".join(uuids)}
    return {MASK: ",".join(numbers[uuid] for uuid in uuids), ORDER: "PCI_BUS_ID"}


def uuid_key(uuid: str) -> str:
    """Return a UUID as NVML and the driver both write it: without prefix, in lower case."""
    return uuid[4:].lower()


def named(environment: Environment, devices: Sequence[Device]) -> list[Device] | None:
    """Return the devices, or their MIG instances, that these variables name; None if not known.

    They may be more than a process can see at once: several MIG instances may be named.
    """
    mask = environment.get(MASK)
    if mask is not None and mask[:4] in ("GPU-", "MIG-"):
        return _by_uuids(mask, devices)
    shown = [device for device in devices if device.mig or not device.mig_mode]
    positions = range(len(shown)) if mask is None else _by_numbers(mask, len(shown))
    certain = all(device.mig_mode is not None for device in devices)
    if mask is not None:  # CUDA counts perhaps without those that it cannot show
        certain = certain and len(shown) == len(devices) and has_pci_order(environment, devices)
    if positions and not certain:
        return None
    return [_first_instance(shown[position]) for position in positions]


def list_ends_at(environment: Environment, devices: Sequence[Device]) -> str | None:
    """Return a sentence on the entry at which CUDA stops reading the list; None if it reads all.

    None also for ``-1``, which people write to end the list.
    """
    mask = (environment.get(MASK) or "").rstrip(",")
    by_uuid, entries = mask[:4] in ("GPU-", "MIG-"), mask.split(",")

    def read(text: str) -> int:
        found = _by_uuids(text, devices) if by_uuid else _by_numbers(text, len(devices))
        return len(entries) if found is None else len(found)

    shown = read(mask)
    if not mask.strip() or shown >= len(entries) or entries[shown].strip() == "-1":
        return None
    if not shown and read(entries[0]):
        return f"{MASK}={mask} names a GPU twice: CUDA hides every GPU then"
    hidden = "it hides what follows" if shown else "it hides every GPU"
    return f"CUDA stops at {entries[shown][:40]!r} in {MASK}={mask}, which is no GPU: {hidden}"


def _first_instance(device: Device) -> Device:
    """Return the device with the MIG instance that CUDA shows of it, if it has any."""
    return replace(device, instance=device.mig[0].uuid) if device.mig else device


def _by_uuids(mask: str, devices: Sequence[Device]) -> list[Device] | None:
    """Return the devices of a list of UUIDs; an entry of another kind than the first ends it.

    None where an entry has the older spelling of MIG instances.
    """
    shown: list[Device] = []
    for entry in mask.split(","):
        if entry[:8] == "MIG-GPU-":  # has numbers of instances that NVML does not list
            return None
        device = _named_by(entry, devices) if entry[:4] == mask[:4] else None
        if device is None:
            break
        if any((device.index, device.instance) == (d.index, d.instance) for d in shown):
            return []
        shown.append(device)
    return shown


def _by_numbers(mask: str, count: int) -> list[int]:
    """Return the ordinals of a list of numbers: ``1gpu`` is 1, a duplicate hides all devices."""
    numbers: list[int] = []
    for entry in mask.split(","):
        match = re.match(r"\s*\+?([0-9]{1,9})", entry)
        if match is None:
            break
        if int(match[1]) in numbers:
            return []
        numbers.append(int(match[1]))
    return list(itertools.takewhile(lambda number: number < count, numbers))


def has_pci_order(environment: Environment, devices: Sequence[Device]) -> bool:
    """Return whether CUDA numbers devices as nvidia-smi does: by the variable, or all are equal."""
    if (environment.get(ORDER) or "").strip() == "PCI_BUS_ID":
        return True
    return len({(device.name, device.compute_capability) for device in devices}) <= 1


def _named_by(entry: str, devices: Sequence[Device]) -> Device | None:
    """Return the device, or MIG instance, that a UUID or a unique prefix names."""
    found = [
        replace(device, instance=part.uuid)
        for device in devices
        for part in device.mig
        if part.uuid.startswith(entry)
    ]
    found += [
        _first_instance(device)
        for device in devices
        if (device.mig or not device.mig_mode) and (device.uuid or "").startswith(entry)
    ]
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True)
class View:
    """The devices that a process sees, by nvidia-smi's indexes."""

    #: nvidia-smi's index of each CUDA ordinal: None in place of one that is not listed here, and
    #: where the order is not known.
    indexes: tuple[int | None, ...] | None = None
    #: The visible indexes; None where these are not known.
    visible: frozenset[int] | None = None
    #: The UUID of the visible MIG instance, by index.
    instances: Mapping[int, str] = field(default_factory=dict)

    def fits(self, actual: View) -> bool:
        """Return whether this view, as far as it is known, is the actual one."""
        return self.visible in (None, actual.visible) and self.indexes in (None, actual.indexes)


NOTHING = View((), frozenset())


def view(environment: Environment, devices: Sequence[Device]) -> View:
    """Return what the CUDA driver shows a process that initialises it with these variables.

    Follows the driver's grammar: unset means all; an invalid entry ends the list, as does one of
    another kind than the first (number, GPU or MIG UUID); a duplicate hides all devices; a space
    before a UUID makes it invalid. A GPU in MIG mode shows its first instance unless another one is
    named, and of all that are named CUDA shows a single instance or only whole GPUs (MIG User
    Guide, "CUDA Device Enumeration"). Numbers are CUDA's ordinals, fastest device first unless
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; only the driver knows which of unequal devices is the fastest.
    """
    shown = named(environment, devices)
    known = environment.get(MASK) is not None or has_pci_order(environment, devices)
    if shown is None or (not known and any(device.mig for device in devices)):
        return View()
    shown = next(([device] for device in shown if device.instance), shown)
    indexes = tuple(device.index for device in shown)
    parts = {device.index: device.instance for device in shown if device.instance}
    return View(indexes if known else None, frozenset(indexes), parts)


def shown(uuids: Sequence[str], devices: Sequence[Device]) -> View:
    """Return what a driver shows that lists these UUIDs, of which some may be of no device here."""
    places = {uuid_key(d.uuid): (d.index, "") for d in devices if d.uuid is not None}
    places |= {uuid_key(part.uuid): (d.index, part.uuid) for d in devices for part in d.mig}
    found = [places.get(uuid_key(uuid)) for uuid in uuids]
    known = [place for place in found if place is not None]
    return View(
        tuple(None if place is None else place[0] for place in found),
        frozenset(index for index, _ in known) if len(known) == len(found) else None,
        {index: instance for index, instance in reversed(known) if instance},
    )


def hides_all(environment: Environment, devices: Sequence[Device]) -> bool:
    """Return whether the variables hide every device."""
    is_set = environment.get(MASK) is not None
    return is_set and view(environment, devices).visible == frozenset()


def came_too_late(environment: Environment, devices: Sequence[Device]) -> bool:
    """Return whether the variables hide a device that this process sees: CUDA began before them."""
    wanted = view(environment, devices).visible
    return wanted is not None and any(d.visible and d.index not in wanted for d in devices)
