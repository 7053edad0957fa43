"""The current GPU memory, and its change by a cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from gpumagic.render.blocks import USES, Block, Column, Figures, Grid, Line, Styled, Use
from gpumagic.render.units import DASH, bytes_, spans
from gpumagic.results.base import Conditions, Result, StorableResult
from gpumagic.wording import grouped, plural

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

    def _blocks(self) -> Iterator[Block]:
        if self.error is not None:
            yield Line.of(f"No GPU memory to show: {self.error}")
        yield from _table(self.devices)
        changes = ((_changes(memory), i) for i, memory in self.devices.items())
        said = "; ".join(f"cuda:{i} {change}" for change, i in changes if change)
        if said:
            yield Line.of(f"Since the last report: {said}")
        yield from _details(self)


@dataclass(frozen=True)
class DeviceMemoryDelta:
    """The change of one device's memory by a cell, by the allocator's counters. Bytes, exact."""

    #: Change of the bytes held by live tensors.
    allocated: int
    #: Change of the bytes reserved by the allocator.
    reserved: int
    #: Highest ``allocated`` during the cell, above its value at the start.
    peak: int
    #: Bytes held by live tensors at the end.
    allocated_now: int = 0
    #: Bytes reserved by the allocator at the end.
    reserved_now: int = 0
    #: Allocations that failed (out of memory) during the cell.
    ooms: int = 0
    #: Allocations that succeeded only after the cache was emptied.
    retries: int = 0


@dataclass(frozen=True, repr=False)
class MemoryDelta(StorableResult):
    """The change of GPU memory by a cell: one `DeviceMemoryDelta` for each CUDA ordinal in use."""

    devices: Mapping[int, DeviceMemoryDelta] = field(default_factory=dict)
    #: True if the cell raised or was interrupted.
    partial: bool = False
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none; one line.
    error: str | None = None
    #: The machine and the versions; None for a result without a measurement.
    conditions: Conditions | None = None

    @property
    def says_something(self) -> bool:
        """Whether there is a change, or a reason for no figures, or a note."""
        return bool(self.error or self.notes or only_changed(self.devices))

    def _headline(self) -> Line | None:
        return super()._headline() if self.error else change_line(only_changed(self.devices))

    def _blocks(self) -> Iterator[Block]:
        changed = only_changed(self.devices)
        if self.error is not None:
            yield Line.of(f"GPU memory: not measured, {self.error}", "dim")
        elif not changed:
            yield Line.of("GPU memory: no change")
        yield Grid.of(
            changed.items(),
            Column("Device", lambda of: Styled(f"cuda:{of[0]}", "strong")),
            Figures("Allocated", lambda of: bytes_(of[1].allocated, sign=True)),
            Figures("Peak above start", lambda of: bytes_(of[1].peak, sign=True)),
            Figures("Reserved", lambda of: bytes_(of[1].reserved, sign=True), rank=1),
            Figures("Allocated now", lambda of: Styled(bytes_(of[1].allocated_now), "dim"), rank=2),
            Figures("Reserved now", lambda of: Styled(bytes_(of[1].reserved_now), "dim"), rank=3),
        )
        for ordinal, change in changed.items():
            if change.ooms:
                failed = f"out of memory, {plural(change.ooms, 'allocation')} failed"
                yield Line.of(f"cuda:{ordinal}: {failed}", "bad")
            if change.retries:
                again = (
                    f"{plural(change.retries, 'allocation')} tried again after emptying the cache"
                )
                yield Line.of(f"cuda:{ordinal}: {again}", "warn")


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


def change_line(changed: Mapping[int, DeviceMemoryDelta]) -> Line:
    """Return one line of what has changed: ``GPU memory: cuda:0 +2.00 GiB, peak +3.00 GiB, …``."""

    def text(delta: DeviceMemoryDelta) -> str:
        if delta.allocated or delta.peak or not delta.reserved:
            change = f"{bytes_(delta.allocated, sign=True)}, peak {bytes_(delta.peak, sign=True)}"
            return f"{change}, now {bytes_(delta.allocated_now)}"
        return f"reserved {bytes_(delta.reserved, sign=True)}, now {bytes_(delta.reserved_now)}"

    groups = grouped((text(delta), ordinal) for ordinal, delta in changed.items())
    said = (
        f"cuda:{spans(of)}{' each' if len(of) > 1 else ''} {text}" for text, of in groups.items()
    )
    parts = [Styled(f"GPU memory: {' · '.join(said) or 'no change'}", "dim")]
    if failed := [ordinal for ordinal, delta in changed.items() if delta.ooms]:
        parts.append(Styled(f" (out of memory: cuda:{spans(failed)})", "bad"))
    return Line(parts)


def only_changed(devices: Mapping[int, DeviceMemoryDelta]) -> dict[int, DeviceMemoryDelta]:
    """Return those of the devices whose memory changed or peaked."""
    has_changed = attrgetter("allocated", "reserved", "peak", "ooms", "retries")
    return {ordinal: delta for ordinal, delta in devices.items() if any(has_changed(delta))}
