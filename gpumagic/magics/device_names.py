"""Completions of devices in a list: nvidia-smi's indexes, ranges and UUIDs, and torch's names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

_RANGE = re.compile(r"(\d{1,6})-(\d{0,6})")


def gpus(fragment: str, devices: Collection[tuple[int, str | None]]) -> Iterator[str]:
    """Yield ``fragment`` with an index, the end of a range, or a UUID where one has begun.

    ``devices`` are indexes and UUIDs. What the list has named already is left out.
    """
    before, comma, last = fragment.rpartition(",")
    named = {index for item in before.split(",") for index in _named(item, devices)}
    indexes = {index for index, _ in devices}
    if match := _RANGE.fullmatch(last):
        first = int(match[1])
        for index in sorted(indexes):
            span = {*range(first, index + 1)}
            if first < index and span <= indexes and span.isdisjoint(named):
                yield f"{before}{comma}{match[1]}-{index}"
        return
    for index, uuid in devices:
        device = str(index) if not last or last.isdecimal() else uuid
        if device is not None and index not in named:
            yield f"{before}{comma}{device}"


def _named(item: str, devices: Collection[tuple[int, str | None]]) -> set[int]:
    """Return the indexes of the devices that an item of a list names."""
    if match := _RANGE.fullmatch(item):
        first, last = int(match[1]), int(match[2] or match[1])
        return {index for index, _ in devices if first <= index <= last}
    start = item.lower()
    by_uuid = {i for i, uuid in devices if len(item) > 4 and (uuid or "").lower().startswith(start)}
    return by_uuid | {index for index, _ in devices if item == str(index)}


def torch_devices(fragment: str, count: int) -> Iterator[str]:
    """Yield ``fragment`` with torch's name of a device, none twice in a list.

    Ordinals below ``count`` are offered: the process may see fewer devices than there are, and
    those that it does not see are refused.
    """
    before, comma, _ = fragment.rpartition(",")
    named = {_ordinal(item) for item in before.split(",")}
    for device in ("cpu", "cuda", *(f"cuda:{i}" for i in range(count))):
        if _ordinal(device) not in named:
            yield f"{before}{comma}{device}"


def _ordinal(device: str) -> str:
    """Return a device's name with its ordinal: ``cuda`` is the first one."""
    return "cuda:0" if device == "cuda" else device
