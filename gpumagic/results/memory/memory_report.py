"""The current GPU memory of each device: ``%gpumem``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from gpumagic.render.blocks import USES, Block, Column, Figures, Grid, Line, Styled, Use
from gpumagic.render.units import DASH, bytes_, spans
from gpumagic.results.base import Result
from gpumagic.wording import grouped

#: The least pinned bytes that are worth a line.
_FEW_PINNED = 2**20


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device, and this process's part. Bytes; None where not known."""

    #: Held by live tensors, by the counters of torch's caching allocator.
    allocated: int | None = None
    #: Reserved by the allocator: live tensors and cache.
    reserved: int | None = None
    #: Highest ``allocated`` since the start or the user's last reset.
    peak: int | None = None
    free: int | None = None
    total: int | None = None
    #: Non-PyTorch memory of this process: the CUDA context, libraries' workspaces.
    outside: int | None = None
    #: Other processes.
    others: int | None = None
    name: str | None = None
    #: nvidia-smi's index.
    index: int | None = None
    #: Change of ``allocated`` and ``reserved`` since the previous report; None for the first.
    allocated_change: int | None = None
    reserved_change: int | None = None
    #: Whether this process has a CUDA context on the device; without one it holds no memory there.
    context: bool | None = None
    #: Reserved by the driver for itself: of ``total``, neither free nor in use.
    driver_reserved: int | None = None


@dataclass(frozen=True, repr=False)
class MemoryReport(Result):
    """The current GPU memory: one `DeviceMemory` for each CUDA ordinal."""

    _index = ("device",)
    _columns = tuple(each.name for each in fields(DeviceMemory))

    devices: Mapping[int, DeviceMemory] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Why there is no report, if there is none; one line.
    error: str | None = None
    #: Bytes of host memory that torch's allocator has pinned for live tensors and cache, and those
    #: of live tensors. None where torch does not count them (before 2.7).
    pinned: int | None = None
    pinned_active: int | None = None
    #: Whether torch uses CUDA in this process.
    in_use: bool = False

    def _records(self) -> Iterator[Mapping[str, Any]]:
        return ({"device": ordinal, **asdict(of)} for ordinal, of in self.devices.items())

    def _blocks(self) -> Iterator[Block]:
        if self.error is not None:
            yield Line.of(f"No GPU memory to show: {self.error}")
        yield from _table(self.devices)
        changes = ((_changes(memory), i) for i, memory in self.devices.items())
        said = "; ".join(f"cuda:{i} {change}" for change, i in changes if change)
        if said:
            yield Line.of(f"Since the last report: {said}")
        yield from _details(self)


def _details(result: MemoryReport) -> Iterator[Block]:
    """Yield lines on the driver's own memory and pinned host memory."""
    reserved = grouped((m.driver_reserved, i) for i, m in result.devices.items())
    listed = [f"{bytes_(size)} on cuda:{spans(of)}" for size, of in reserved.items() if size]
    if listed:
        said = f"Reserved by the driver, in the total and not usable: {'; '.join(listed)}"
        yield Line.of(said, "dim")
    if result.pinned is not None and result.pinned >= _FEW_PINNED:
        live = f"{bytes_(result.pinned_active)} by live tensors"
        yield Line.of(f"Pinned host memory: {bytes_(result.pinned)}, {live}")
    elif result.pinned is None and result.in_use:
        yield Line.of(f"Pinned host memory: {DASH} (not counted by this torch)", "dim")


def _table(devices: Mapping[int, DeviceMemory]) -> Iterator[Block]:
    """Yield the devices' name if it is the same for all, the table, and the legend of its bars."""
    title = Line.title([memory.name for memory in devices.values()])
    is_named = not title and any(memory.name for memory in devices.values())
    yield from title
    yield Grid.of(
        devices.items(),
        Column("Device", lambda of: Styled(f"cuda:{of[0]}", "strong" if of[1].context else "dim")),
        Figures("Free / total", lambda of: _free(of[1])),
        Figures("Allocated", lambda of: bytes_(of[1].allocated)),
        Figures("Reserved", lambda of: bytes_(of[1].reserved), rank=1),
        Figures("Others", lambda of: Styled(bytes_(of[1].others)), rank=2),
        Figures("Peak", lambda of: bytes_(of[1].peak), rank=3),
        Figures("Non-PyTorch", lambda of: bytes_(of[1].outside), rank=4),
        Figures("GPU", lambda of: Styled(DASH if (i := of[1].index) is None else str(i)), rank=5),
        Column("Name", lambda of: Styled(of[1].name or DASH, "dim") if is_named else "", rank=6),
        dim=lambda of: not of[1].context,
    )
    shown = {use for memory in devices.values() for use in _uses(memory)}
    legend = [Styled(f"{name}  ", "dim", {use: 1.0}) for use, name in USES.items() if use in shown]
    if legend:
        yield Line.join(*legend)


def _free(memory: DeviceMemory) -> Styled:
    used = 1 - memory.free / memory.total if memory.free is not None and memory.total else None
    bar = None if used is None else _uses(memory)
    return Styled.memory(f"{bytes_(memory.free)} / {bytes_(memory.total)}", used, bar)


def _uses(memory: DeviceMemory) -> Mapping[Use, float]:
    """Return the shares of a device's memory by use; none where they are not known."""
    if not memory.total or memory.free is None:
        return {}
    allocated = memory.allocated or 0
    uses: dict[Use, int] = {
        "allocated": allocated,
        "cached": max((memory.reserved or 0) - allocated, 0),
        "outside": memory.outside or 0,
        "others": memory.others or 0,
    }
    unknown = memory.total - memory.free - (memory.driver_reserved or 0) - sum(uses.values())
    # Below a hundredth it is a rounding difference between NVML and the CUDA runtime.
    if unknown >= memory.total / 100:
        uses["unknown"] = unknown
    return {use: size / memory.total for use, size in uses.items() if size}


def _changes(memory: DeviceMemory) -> str:
    parts = (("allocated", memory.allocated_change), ("reserved", memory.reserved_change))
    return ", ".join(f"{name} {bytes_(value, sign=True)}" for name, value in parts if value)
