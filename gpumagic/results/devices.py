"""The devices of the machine, and which of them this process sees."""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from gpumagic.render.blocks import (
    DASH,
    Block,
    Cell,
    Column,
    Grid,
    Line,
    Style,
    marked_memory,
    short_uuids,
)
from gpumagic.render.units import bytes_, percent, rounded, spans
from gpumagic.results.base import Series, data_frame, plain
from gpumagic.results.processes import Claim, Process, claim_lines, process_blocks
from gpumagic.system.text import noun, plural

if TYPE_CHECKING:
    import pandas

_MASK, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"

#: A narrow terminal drops columns from the last one on.
_COLUMNS = (
    Column("GPU", "right"),
    Column("Device"),
    Column("Memory used / total", "right"),
    Column("Util", "right", rank=1),
    Column("Mine", "right", rank=2),
    Column("Others", "right", rank=3),
    Column("Temp", "right", rank=5),
    Column("Power", "right", rank=6),
)
_NAME = Column("Name", rank=4)
_MIG_COLUMNS = (
    Column("GPU", "right"),
    Column("MIG instance", rank=1),
    Column("UUID"),
    Column("Memory used / total", "right"),
)


@dataclass(frozen=True)
class MigInstance:
    """A MIG instance of a device."""

    uuid: str
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None


@dataclass(frozen=True)
class Device:
    """One physical GPU. Bytes, percent, degrees Celsius, watts; None where not reported."""

    #: nvidia-smi's index.
    index: int
    #: The CUDA ordinal (``cuda:N``) in this process, or None if the device is hidden or the
    #: ordinal is not known (see ``visible``).
    ordinal: int | None = None
    uuid: str | None = None
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    memory_free: int | None = None
    #: Percent of the last sampling period in which a kernel ran (NVML: 1/6 to 1 second).
    utilization: int | None = None
    temperature: int | None = None
    power: float | None = None
    power_limit: float | None = None
    #: None where NVML does not list processes.
    processes: tuple[Process, ...] | None = None
    #: True if this process can use the device, False if it is hidden, None where not known.
    visible: bool | None = None
    #: Bytes of device memory that this process holds, or None where not known.
    memory_own: int | None = None
    #: Bytes that other processes hold, or None where not known.
    memory_others: int | None = None
    compute_capability: tuple[int, int] | None = None
    mig: tuple[MigInstance, ...] = ()
    #: The UUID of the MIG instance that this process sees of the device, if it has any; None where
    #: not known.
    instance: str | None = None
    #: The processes that have chosen the device with gpumagic, as far as they are seen here.
    claims: tuple[Claim, ...] = ()
    #: Why the device could not be read, if it could not (for example ``"GPU is lost"``).
    error: str | None = None

    def as_seen(self) -> Device:
        """Return the device, in MIG mode with the figures of the instance that this process sees.

        Fields that NVML does not report for an instance are None.
        """
        if not self.mig:
            return self
        part = next((part for part in self.mig if part.uuid == self.instance), MigInstance(""))
        total, used = part.memory_total, part.memory_used
        return dataclasses.replace(
            self,
            name=part.name or self.name,
            memory_total=total,
            memory_used=used,
            memory_free=None if total is None or used is None else total - used,
            utilization=None,
            processes=None,
            memory_others=None,
        )


@dataclass(frozen=True)
class DeviceTable(Series[Device]):
    """The devices of the machine, and which of them this process sees: a sequence of `Device`."""

    items_in: ClassVar[str] = "devices"

    devices: tuple[Device, ...] = ()
    #: ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` of this process, as far as they are set.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Whether the CUDA driver is initialised in this process; None where not known.
    cuda_initialized: bool | None = None
    #: Whether CUDA failed to initialise in this process, which then sees no device until it ends.
    cuda_failed: bool = False
    #: Whether there is no CUDA driver, although NVML lists devices: none can be used.
    cuda_missing: bool = False
    driver_version: str | None = None
    #: The newest CUDA that the driver supports, for example ``(13, 0)``.
    cuda_version: tuple[int, int] | None = None
    #: Why there is no table, if there is none; one line.
    error: str | None = None
    #: Whether the processes are shown.
    show_processes: bool = False
    #: Further remarks, a line each.
    notes: tuple[str, ...] = ()
    #: Whether a gate refuses new work on every device (``%gpu off --soft``).
    gated: bool = False

    @property
    def visible(self) -> list[Device]:
        """The devices that this process sees and whose ordinal is known, in CUDA's order."""
        ordinals = {d.ordinal: d for d in self if d.visible and d.ordinal is not None}
        return [ordinals[ordinal] for ordinal in sorted(ordinals)]

    def _blocks(self) -> list[Block]:
        if self.error is not None:
            return [Line.of(f"No GPU to show: {self.error}.", "warn"), *_sees(self)]
        if not self:
            return [
                Line.of("No GPU to show: NVML lists none on this machine.", "warn"),
                *_sees(self),
            ]
        blocks = device_grid(self)
        blocks += [Grid(_MIG_COLUMNS, rows)] if (rows := _mig_rows(self)) else []
        blocks += _long_errors(self)
        blocks += claim_lines({device.index: device.claims for device in self})
        blocks += _sees(self)
        if self.show_processes:
            blocks += process_blocks({device.index: device.processes for device in self})
        blocks += [Line.of(note, "warn") for note in self.notes]
        return blocks

    def __repr__(self) -> str:
        return f"<DeviceTable: {plural(len(self), 'device')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a device and a column a field (needs pandas)."""
        rows = [plain(device) for device in self.devices]
        columns = [f.name for f in dataclasses.fields(Device)]
        return data_frame(rows, columns, index="index")


def device_grid(table: DeviceTable) -> list[Block]:
    """Return the table, and above it the devices' name if it is the same for all."""
    names = Counter(device.name for device in table)
    common = next(iter(names)) if len(names) == 1 else None
    rows = [_row(device, table.gated) for device in table]
    if common is not None:
        count = f"{len(table)} × " * (len(table) > 1)
        return [Line.of(f"{count}{common}", "strong"), Grid(_COLUMNS, rows)]
    for device, row in zip(table, rows, strict=True):
        row.append(Cell(device.name or DASH, "dim" if device.visible is False else ""))
    return [Grid((*_COLUMNS, _NAME), rows)]


def _row(device: Device, gated: bool) -> list[Cell]:
    if device.error is not None:
        blank = [Cell(DASH, "dim")] * (len(_COLUMNS) - 3)
        error = error_cell(device.error)
        return [Cell(str(device.index)), ordinal_cell(device, gated), error, *blank]
    hidden: Style = "dim" if device.visible is False else ""
    return [
        Cell(str(device.index), hidden or "strong"),
        ordinal_cell(device, gated),
        memory_cell(device),
        Cell(percent(device.utilization), hidden),
        _bytes(device.memory_own),
        _bytes(device.memory_others),
        Cell(rounded(device.temperature, "°C"), hidden),
        Cell(_power(device), hidden),
    ]


def _bytes(value: int | None) -> Cell:
    return Cell(bytes_(value), "" if value else "dim")


def ordinal_cell(device: Device, gated: bool = False) -> Cell:
    """Return what a device is called in this process."""
    if gated and device.visible is not False:
        return Cell("gated", "warn")
    if device.ordinal is not None:
        return Cell(f"cuda:{device.ordinal}", "good")
    if device.visible is False:
        return Cell("hidden", "dim")
    return Cell("cuda:?" if device.visible else DASH, "dim")


def _power(device: Device) -> str:
    if device.power is None:
        return DASH
    limit = DASH if device.power_limit is None else f"{device.power_limit:.0f}"
    return f"{device.power:.0f} / {limit} W"


def _mig_rows(table: DeviceTable) -> list[list[Cell]]:
    return [
        [
            Cell(str(device.index)),
            Cell(part.name or DASH),
            Cell(
                short_uuids(part.uuid) + " ✓" * (part.uuid == device.instance),
                "good" if part.uuid == device.instance else "",
                whole=part.uuid,
            ),
            Cell(f"{bytes_(part.memory_used)} / {bytes_(part.memory_total)}"),
        ]
        for device in table
        for part in device.mig
    ]


def _sees(table: DeviceTable) -> Iterator[Line]:
    """Return how many devices this process sees, by which variables, and whether that is final."""
    known = [device.visible for device in table]
    if not table.devices:
        count = ""
    elif None in known:
        count = "What this kernel sees is not known: "
    elif all(known):
        count = f"This kernel sees {'the GPU' if len(known) == 1 else f'all {len(known)} GPUs'}: "
    else:
        number = sum(map(bool, known))
        count = f"This kernel sees {number or 'none'} of {len(known)} GPU{'s' * (len(known) > 1)}: "
    if table.cuda_missing:
        state = "there is no CUDA driver"
    elif table.cuda_failed:
        state = "CUDA has failed in this process, which is final"
    else:
        state = {
            True: "CUDA is initialised, so this is final for the process",
            False: "CUDA is not initialised, so this can still be changed",
            None: "the CUDA driver does not report whether it is initialised",
        }[table.cuda_initialized]
    order = ""
    if any(d.visible and d.ordinal is None for d in table):
        order = "; CUDA's own order (fastest first) is not known before it starts"
    if any(d.instance for d in table) and len(table) > 1:
        order += "; CUDA shows a process one MIG instance, and no other GPU beside it"
    if table.gated:
        why = Cell(": '%gpu off --soft' allows no new work on a GPU; to lift that: ")
        yield Line((Cell("! Gated", "warn"), why, Cell("%gpu on", "command")))
        count = count and f"Behind the gate {count[0].lower()}{count[1:]}"
    named = variables(table.environment)
    rest = f"; {state}{order}."
    if _is_too_late(table):
        rest = f" came after CUDA was initialised, without effect on this process{order}."
    yield Line((Cell(count), Cell(short_uuids(named), "dim", whole=named), Cell(rest, "dim")))


def _is_too_late(table: DeviceTable) -> bool:
    """Return whether this process sees a device that the mask hides: it was set after CUDA."""
    mask = table.environment.get(_MASK)
    if not table.cuda_initialized or mask is None:
        return False
    names = () if mask in ("", "-1") else tuple(mask.split(","))
    seen = [device for device in table if device.visible]
    # Indexes depend on the order, so only UUIDs are compared; they may be shortened.
    has_uuids = all(name.startswith("GPU-") for name in names)
    other = has_uuids and any(d.uuid and not d.uuid.startswith(names) for d in seen)
    return len(seen) > len(names) or other


def variables(environment: Mapping[str, str | None]) -> str:
    """Return the variables that choose devices, as text."""
    mask = environment.get(_MASK)
    text = f"{_MASK} is not set" if mask is None else f"{_MASK}={mask}"
    order = environment.get(_ORDER)
    return text if order is None else f"{text}, {_ORDER}={order}"


def error_cell(error: str) -> Cell:
    """Return a cell with a device's error in place of its figures, shortened."""
    return Cell(f"✗ {_short(error)}", "bad", whole=error)


def _long_errors(devices: Iterable[Device]) -> Iterator[Line]:
    """Yield the errors that are shortened in the table: each once."""
    indexes: dict[str, list[int]] = {}
    for device in devices:
        if device.error is not None and device.error != _short(device.error):
            indexes.setdefault(device.error, []).append(device.index)
    for error, found in indexes.items():
        yield Line.of(f"{noun(len(found), 'GPU')} {spans(found)}: {error}.", "bad")


def _short(error: str) -> str:
    return textwrap.shorten(error, 24, placeholder=" …")


def memory_cell(device: Device) -> Cell:
    """Return memory used of the total, with a bar."""
    used, total = device.memory_used, device.memory_total
    if used is None and total is None:
        return Cell(DASH, "dim")
    text = f"{bytes_(used)} / {bytes_(total)}"
    if used is None or not total:
        return Cell(text)
    return marked_memory(text, used / total, bar=used / total)
