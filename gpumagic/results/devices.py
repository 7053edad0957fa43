"""The devices of the machine, which of them this process sees, and the processes on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
from gpumagic.render.units import DASH, bytes_, rounded, spans
from gpumagic.results.base import Series
from gpumagic.results.claims import Claim, claim_lines
from gpumagic.results.processes import Process, process_table
from gpumagic.system.text import shortened
from gpumagic.wording import grouped, plural

NO_GPU = "This machine has no GPU that CUDA can use"
VIRTUAL = "gpumagic's repository has a virtual GPU to try it with: make demo"
#: Whether what a process sees can still be changed, by whether CUDA is initialised in it.
_STATES = {
    None: "the CUDA driver does not report whether it is initialised",
    True: "CUDA is initialised, so only a restart changes this",
    False: "CUDA is not initialised, so this can still be changed",
}
#: The most devices of a result from elsewhere: each is a row.
MOST_DEVICES = 1024
_FAILED = "CUDA has failed in this process, which is final"
#: The most characters of an error.
_LONGEST_ERROR = 300


@dataclass(frozen=True)
class MigInstance:
    """A MIG instance of a device."""

    uuid: str
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    #: As of a `Device`.
    processes: tuple[Process, ...] | None = None
    memory_others: int | None = None


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
    #: Percent of the last sampling period in which a GPU kernel ran (NVML: 1/6 to 1 second).
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
    #: Whether the device is in MIG mode; None where not known. CUDA shows its instances then, and
    #: without one nothing of it.
    mig_mode: bool | None = False
    #: The UUID of the MIG instance that this process sees of the device, if it has any; None where
    #: not known.
    instance: str | None = None
    #: The processes that have chosen the device with gpumagic, as far as they are seen here.
    claims: tuple[Claim, ...] = ()
    #: Why the device could not be read, if it could not (for example ``"GPU is lost"``).
    error: str | None = None
    #: Whether it answers to nothing before a reset or a reboot; ``error`` says so.
    lost: bool = False

    @property
    def unusable(self) -> str | None:
        """Why CUDA cannot use the device, as a clause; None if nothing is known against it."""
        if self.error is None and self.mig_mode and not self.mig:
            return (
                "it is in MIG mode without an instance: sudo nvidia-smi mig "
                f"-i {self.index} -cgi PROFILE -C makes one (-lgip lists the profiles), "
                f"sudo nvidia-smi -i {self.index} -mig 0 ends the mode"
            )
        return self.error

    @property
    def cuda(self) -> str:
        """What torch calls the device in this process: ``cuda:0``; ``cuda:?`` if not known."""
        return f"cuda:{'?' if self.ordinal is None else self.ordinal}"

    def as_seen(self) -> Device:
        """Return the device, in MIG mode with the figures of the instance that this process sees.

        Fields that NVML does not report for an instance are None.
        """
        if not self.mig:
            return self
        part = next((part for part in self.mig if part.uuid == self.instance), MigInstance(""))
        total, used = part.memory_total, part.memory_used
        return replace(
            self,
            name=part.name or self.name,
            memory_total=total,
            memory_used=used,
            memory_free=None if total is None or used is None else total - used,
            utilization=None,
            processes=part.processes,
            memory_others=part.memory_others,
        )


@dataclass(frozen=True, repr=False)
class DeviceTable(Series[Device]):
    """The devices of the machine, and which of them this process sees: a sequence of `Device`."""

    _sequence = "devices"
    _index = ("index",)
    _columns = tuple(each.name for each in fields(Device))

    devices: tuple[Device, ...] = ()
    #: ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` of this process, as far as they are set.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Whether the CUDA driver is initialised in this process; None where not known.
    cuda_initialized: bool | None = None
    #: Where CUDA was initialised in this process, as a sentence; None where that is not known.
    where: str | None = None
    #: Whether this process sees a device that ``CUDA_VISIBLE_DEVICES`` hides: it was set too late.
    mask_is_late: bool = False
    #: Whether CUDA failed to initialise in this process, which then sees no device until it ends.
    cuda_failed: bool = False
    driver_version: str | None = None
    #: The newest CUDA that the driver supports, for example ``(13, 0)``.
    cuda_version: tuple[int, int] | None = None
    #: Why there is no table, if there is none; one line.
    error: str | None = None
    #: Why this machine has no GPU that CUDA can use, as a clause; None where it may have one.
    no_gpu: str | None = None
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

    def _blocks(self) -> Iterator[Block]:
        if self.no_gpu is not None:
            yield Line.of(f"{NO_GPU}: {self.no_gpu}.", "warn")
        elif not self:
            yield Line.of(f"The GPUs cannot be listed: {self.error}.", "warn")
        yield from device_grid(self, self.gated)
        yield from _instances(self)
        yield from claim_lines((claim, d.index) for d in self for claim in d.claims)
        if self.no_gpu is None:
            yield from _sees(self)
        if self and self.show_processes:
            yield from process_table({d.index: d.processes for d in self})

    def _remarks(self) -> list[Line]:
        return Line.notes(self.notes, "warn")


def device_grid(devices: Sequence[Device], gated: bool = False) -> Iterator[Block]:
    """Yield the table, above it the devices' name if it is the same for all, below the errors."""
    title = Line.title([device.name for device in devices])
    yield from title
    yield Grid.of(
        devices,
        Figures("GPU", lambda d: Styled(str(d.index), "dim" if d.visible is False else "strong")),
        Column("Device", lambda d: ordinal_cell(d, gated)),
        Figures("Memory used / total", memory_cell),
        Figures("Util", lambda d: rounded(d.utilization, "%"), rank=1),
        Figures("Mine", lambda d: Styled.bytes(d.memory_own), rank=2),
        Figures("Others", lambda d: Styled.bytes(d.memory_others), rank=3),
        Figures("Temp", lambda d: rounded(d.temperature, "°C"), rank=5),
        Figures("Power", _power, rank=6),
        Column("Name", lambda d: "" if title else d.name or DASH, rank=4),
        dim=lambda d: d.visible is False,
    )
    yield from errors(devices)


def ordinal_cell(device: Device, gated: bool = False) -> Styled:
    """Return what a device is called in this process."""
    if gated and device.visible is not False:
        return Styled("gated", "warn")
    if device.ordinal is not None:
        return Styled(device.cuda, "good")
    if device.visible is False:
        return Styled("hidden", "dim")
    return Styled(device.cuda if device.visible else DASH, "dim")


def _power(device: Device) -> str:
    if device.power is None:
        return DASH
    limit = DASH if device.power_limit is None else f"{device.power_limit:.0f}"
    return f"{device.power:.0f} / {limit} W"


def _instances(devices: Iterable[Device]) -> Iterator[Block]:
    """Yield the table of the MIG instances."""
    yield Grid.of(
        [(device, part) for device in devices for part in device.mig],
        Figures("GPU", lambda of: str(of[0].index)),
        Column("MIG instance", lambda of: of[1].name or DASH, rank=1),
        Column("UUID", lambda of: _uuid(*of)),
        Figures("Memory used / total", lambda of: _used_of(of[1])),
    )


def _uuid(device: Device, part: MigInstance) -> Styled:
    """Return an instance's UUID, marked where it is what this process sees of the device."""
    seen = part.uuid == device.instance
    return Styled.uuids(f"{part.uuid} ✓", "good") if seen else Styled.uuids(part.uuid, "")


def _sees(table: DeviceTable) -> Iterator[Line]:
    """Yield how many devices this process sees, by which variables, and whether that is final."""
    process = "This process"
    if table.gated:
        why = ": '%gpu off --soft' sends new code to the CPU, what is on a GPU goes on; lift it: "
        yield Line.join(Styled("! Gated", "warn"), why, Styled("%gpu on", "command"))
        process = "Behind the gate this process"
    count = f"{process} sees {_number(table)}: " if table.devices else ""
    final = f"; {_FAILED if table.cuda_failed else _STATES[table.cuda_initialized]}"
    if table.mask_is_late:
        final = "; without effect here, where CUDA was initialised with other values"
    if any(d.visible and d.ordinal is None for d in table):
        final += "; CUDA's own order (fastest first) is not known before it starts"
    if len(table) > 1 and any(d.instance for d in table):
        final += "; CUDA shows a process one MIG instance, and no other GPU beside it"
    yield Line.join(count, Styled.uuids(variables(table.environment)), Styled(f"{final}.", "dim"))
    if table.where is not None:
        yield Line.of(f"{table.where}.", "dim")


def _number(table: DeviceTable) -> str:
    """Return how many devices this process sees: ``all 4 GPUs``, ``none of 1 GPU``."""
    known = [device.visible for device in table]
    if None in known:
        return "a number of GPUs that is not known"
    if all(known):
        return "the GPU" if len(known) == 1 else f"all {len(known)} GPUs"
    return f"{known.count(True) or 'none'} of {plural(len(known), 'GPU')}"


def variables(environment: Mapping[str, str | None]) -> str:
    """Return the variables that choose devices, as text."""
    hides = environment.get("CUDA_VISIBLE_DEVICES") is not None
    texts = [] if hides else ["CUDA_VISIBLE_DEVICES is not set"]
    texts += [f"{name}={value}" for name, value in environment.items() if value is not None]
    return ", ".join(texts)


def errors(devices: Iterable[Device], where: str = "") -> Iterator[Line]:
    """Yield why devices could not be read, each reason once."""
    found = grouped((d.error, d.index) for d in devices if d.error is not None)
    for error, indexes in found.items():
        yield Line.of(f"✗ {where}GPU {spans(indexes)}: {shortened(error, _LONGEST_ERROR)}", "bad")


def memory_cell(device: Device) -> Styled:
    """Return memory used of the total with a bar; `errors` say why a device could not be read."""
    used, total = device.memory_used, device.memory_total
    if device.error is not None:
        return Styled("✗ not read", "bad")
    if used is None and total is None:
        return Styled(DASH, "dim")
    return Styled.memory(_used_of(device), used / total if used is not None and total else None)


def _used_of(place: Device | MigInstance) -> str:
    return f"{bytes_(place.memory_used)} / {bytes_(place.memory_total)}"
