"""Where the GPUs of the old process are in this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from gpumagic.cuda import device_table, driver, visible_devices
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.visible_devices import uuid_key


class Devices:
    """The GPUs of the old process, by UUID: each has a number in this one, or is hidden.

    CUDA is not started where NVML and the variables say which GPU has which number.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        self._uuids = [*map(uuid_key, uuids)]
        #: What was moved, ``cuda:1 → cuda:0``; and the bytes that a GPU had no memory for.
        self.moved: set[str] = set()
        self.refused: dict[str, int] = {}
        #: The devices of the old process that objects name, and that are others now.
        self.named: set[str] = set()
        #: How many storages came to a GPU.
        self.arrived = 0

    def now(self, device: str) -> str:
        """Return where a device of the old process is: the same GPU, else the CPU."""
        kind, _, number = device.partition(":")
        if kind != "cuda" or not number or not self._uuids:  # CUDA had not started
            return device if kind != "cuda" or self._visible else "cpu"
        uuid = self._uuids[int(number)] if int(number) < len(self._uuids) else ""
        place = self._visible.get(uuid)
        return "cpu" if place is None else f"cuda:{place}"

    @cached_property
    def _visible(self) -> dict[str, int]:
        torch: Any = torch_cuda.require()
        if not torch.cuda.is_available():
            return {}
        listed = device_table.read()
        table = [each for each in listed if each.visible is not False]
        found = {each.instance or each.uuid: each.ordinal for each in table}
        known = {uuid_key(uuid): n for uuid, n in found.items() if uuid and n is not None}
        if known and len(known) == len(table):
            return known
        torch.cuda.init()
        return {uuid_key(uuid): number for number, uuid in enumerate(driver.state().uuids or ())}

    def hidden(self, environment: Mapping[str, str]) -> set[str]:
        """Return the devices of this process that one with ``environment`` will not see."""
        table = device_table.read()
        shown = visible_devices.named(environment, table)
        if shown is None:  # not known
            return set()
        seen = {uuid_key(each.instance or each.uuid or "") for each in shown}
        return {f"cuda:{n}" for n, uuid in enumerate(self._uuids) if uuid not in seen}

    def moved_device(self, device: str) -> str:
        """Return where a device is now, for an object that names it."""
        place = self.now(device)
        if place != device:
            self.moved.add(f"{device} → {place}")
            self.named.add(device)
        return place

    def moved_storage(self, storage: Any, device: str) -> Any:
        """Copy a storage of the host to where its device is now, if there is room."""
        place = self.now(device)
        try:
            copy = storage.clone() if place == "cpu" else storage.to(device=place)
        except RuntimeError:  # the GPU is full, or it fails
            self.refused[place] = self.refused.get(place, 0) + storage.nbytes()
            place, copy = "cpu", storage.clone()
        self.arrived += place != "cpu"
        if place != device:
            self.moved.add(f"{device} → {place}")
        return copy
