"""Who holds GPU memory, and what was given back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.results.base import Result
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Holder:
    """What one name of the user's, or one place of the notebook's, holds on one device. Bytes."""

    #: What the user calls it: ``model``, ``Out[3]``, ``h in forward, In[5] line 3``.
    name: str
    #: ``module``, ``tensor``, ``optimizer``, ``function``, ``list``… or ``notebook``.
    kind: str
    #: What is counted here. Memory that several names hold is counted once, at the first of them.
    bytes: int
    #: Counted here, by the part that they play: ``parameters``, ``gradients``, ``optimizer state``…
    parts: Mapping[str, int]
    #: The number of allocations that are counted here.
    blocks: int
    #: What nothing else holds: deleting this alone gives it back.
    alone: int
    #: What it holds together with others, wherever that is counted.
    shared: int
    #: Who else holds some of what is counted here.
    also: tuple[str, ...] = ()
    #: Held by the notebook, not by a name of the user's: ``%gpumem free`` lets it go.
    pinned: bool = False


@dataclass(frozen=True)
class Site:
    """Memory that no name leads to, by the line that allocated it or by what else refers to it."""

    #: ``In[5] line 3 in step``, ``held by cache.STORE``.
    where: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class DeviceHolders:
    """Who holds one device's memory. Bytes.

    ``named + pinned + unattributed + rounding`` is exactly ``allocated``.
    """

    #: What torch's allocator says is allocated.
    allocated: int
    #: Held by the user's names, and by what runs or is yet to be called.
    named: int
    #: Held by nothing but the notebook (``Out``, ``_``, the last exception…).
    pinned: int
    #: Led to by no name.
    unattributed: int
    #: What the allocator adds to round a request up; None where it does not say.
    rounding: int | None
    #: Largest first.
    holders: tuple[Holder, ...] = ()
    #: The sites of what is unattributed, where torch recorded them. Largest first.
    sites: tuple[Site, ...] = ()

    def __getitem__(self, name: str) -> Holder:
        """The holder that is called ``name``."""
        for holder in self.holders:
            if holder.name == name:
                return holder
        raise KeyError(name)


@dataclass(frozen=True)
class Holders(Result):
    """Who holds GPU memory: one `DeviceHolders` for each CUDA ordinal in use."""

    devices: Mapping[int, DeviceHolders] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none: one line.
    error: str | None = None

    def __repr__(self) -> str:
        number = sum(len(device.holders) for device in self.devices.values())
        return f"<Holders: {number} on {plural(len(self.devices), 'device')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row for each device and holder (needs pandas). Bytes."""
        import pandas

        columns = ["device", "name", "kind", "bytes", "blocks", "alone", "shared", "pinned"]
        rows = [
            [ordinal, *(getattr(holder, column) for column in columns[1:])]
            for ordinal, device in self.devices.items()
            for holder in device.holders
        ]
        return pandas.DataFrame(rows, columns=columns).set_index(["device", "name"])


@dataclass(frozen=True)
class FreeStep:
    """One step of giving back. Bytes by CUDA ordinal, what the step gave back."""

    what: str
    #: Given back to the allocator.
    allocated: Mapping[int, int] = field(default_factory=dict)
    #: Given back to the device.
    reserved: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Freed(Result):
    """What ``%gpumem free`` gave back, or would."""

    steps: tuple[FreeStep, ...] = ()
    #: Bytes by CUDA ordinal.
    allocated_before: Mapping[int, int] = field(default_factory=dict)
    allocated_after: Mapping[int, int] = field(default_factory=dict)
    reserved_before: Mapping[int, int] = field(default_factory=dict)
    reserved_after: Mapping[int, int] = field(default_factory=dict)
    #: Whether nothing was done: these are the figures that are expected.
    dry_run: bool = False
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none: one line.
    error: str | None = None

    def __repr__(self) -> str:
        total = sum(self.allocated_before.values()) - sum(self.allocated_after.values())
        return f"<Freed: {total} B{', not yet' if self.dry_run else ''}>"
