"""The device table and the outcome of a choice, as blocks."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, Style
from gpumagic.render.units import bytes_, percent
from gpumagic.results import Device, DeviceTable, Process, Selection
from gpumagic.system.text import plural

_MASK, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"

_COLUMNS = (
    Column("GPU", "right"),
    Column("CUDA"),
    Column("Name", rank=1),
    Column("Memory used / total"),
    Column("Util", "right", rank=2),
    Column("Temp", "right", rank=5),
    Column("Power", "right", rank=6),
    Column("Mine", "right", rank=3),
    Column("Others", "right", rank=4),
)


def device_table(table: DeviceTable) -> list[Block]:
    """The table, a line on what this process sees and why, and the processes if asked for."""
    if table.error is not None:
        return [Line.of(f"No GPU to show: {table.error}.", "warn"), _sees(table)]
    if not table:
        return [Line.of("No GPU to show: NVML lists none on this machine.", "warn"), _sees(table)]
    blocks: list[Block] = [Grid(_COLUMNS, [_row(device) for device in table])]
    blocks += [Grid(_MIG_COLUMNS, rows)] if (rows := _mig_rows(table)) else []
    errors = [(device.index, device.error) for device in table if device.error is not None]
    blocks += [Line.of(f"GPU {i}: {e}.", "bad") for i, e in errors if e != _short(e)]
    blocks.append(_sees(table))
    if table.show_processes:
        blocks += _processes(table)
    blocks += [Line.of(note, "warn") for note in table.notes]
    return blocks


def _row(device: Device) -> list[Cell]:
    if device.error is not None:
        blank = [Cell(DASH, "dim")] * (len(_COLUMNS) - 4)
        return [
            Cell(str(device.index)),
            _ordinal(device),
            Cell(device.name or DASH),
            Cell(_short(device.error), "bad"),
            *blank,
        ]
    hidden: Style = "dim" if device.visible is False else ""
    return [
        Cell(str(device.index), hidden or "strong"),
        _ordinal(device),
        Cell(device.name or DASH, hidden),
        memory_cell(device),
        Cell(percent(device.utilization), hidden),
        Cell(DASH if device.temperature is None else f"{device.temperature} °C", hidden),
        Cell(_power(device), hidden),
        _bytes(device.memory_own),
        _bytes(device.memory_others),
    ]


def _short(error: str) -> str:
    """An error in a cell, where a long one would take the other devices' columns away."""
    return textwrap.shorten(error, 24, placeholder=" …")


def _bytes(value: int | None) -> Cell:
    return Cell(bytes_(value), "" if value else "dim")


def _ordinal(device: Device) -> Cell:
    if device.ordinal is not None:
        return Cell(f"cuda:{device.ordinal}", "good")
    if device.visible is False:
        return Cell("hidden", "dim")
    return Cell("cuda:?" if device.visible else DASH, "dim")


def memory_cell(device: Device) -> Cell:
    """Memory used of the total, with a bar."""
    used, total = device.memory_used, device.memory_total
    text = f"{bytes_(used)} / {bytes_(total)}"
    if used is None or not total:
        return Cell(text)
    share = used / total
    return Cell(text, "bad" if share > 0.9 else "warn" if share > 0.7 else "", bar=share)


def _power(device: Device) -> str:
    if device.power is None:
        return DASH
    limit = DASH if device.power_limit is None else f"{device.power_limit:.0f}"
    return f"{device.power:.0f} / {limit} W"


_MIG_COLUMNS = (
    Column("GPU", "right"),
    Column("MIG instance", rank=1),
    Column("UUID"),
    Column("Memory used / total"),
)


def _mig_rows(table: DeviceTable) -> list[list[Cell]]:
    return [
        [
            Cell(str(device.index)),
            Cell(part.name or DASH),
            Cell(part.uuid, "good" if part.uuid == device.instance else ""),
            Cell(f"{bytes_(part.memory_used)} / {bytes_(part.memory_total)}"),
        ]
        for device in table
        for part in device.mig
    ]


# --- what this process sees --------------------------------------------------------------------


def _sees(table: DeviceTable) -> Line:
    """How many devices this process sees, by which variables, and whether that is final."""
    known = [device.visible for device in table]
    if not table.devices:
        count = ""
    elif None in known:
        count = "What this kernel sees is not known: "
    elif all(known):
        count = f"This kernel sees {'the GPU' if len(known) == 1 else f'all {len(known)} GPUs'}: "
    else:
        number = sum(map(bool, known))
        count = f"This kernel sees {number or 'none'} of {plural(len(known), 'GPU')}: "
    if table.cuda_missing:
        state = "there is no CUDA driver"
    elif table.cuda_failed:
        state = "CUDA has failed in this process, which is final"
    else:
        state = {
            True: "CUDA is initialised, so this is final for the process",
            False: "CUDA is not initialised, so this can still be changed",
            None: "the CUDA driver does not say whether it is initialised",
        }[table.cuda_initialized]
    order = ""
    if any(d.visible and d.ordinal is None for d in table):
        order = "; CUDA's own order (fastest first) is not known before it starts"
    if any(d.instance for d in table) and len(table) > 1:
        order += "; CUDA shows a process one MIG instance, and no other GPU beside it"
    return Line((Cell(count), Cell(f"{_variables(table.environment)}; {state}{order}.", "dim")))


def _variables(environment: Mapping[str, str | None]) -> str:
    mask = environment.get(_MASK)
    text = f"{_MASK} is not set" if mask is None else f"{_MASK}={mask}"
    order = environment.get(_ORDER)
    return text if order is None else f"{text}, {_ORDER}={order}"


# --- processes ---------------------------------------------------------------------------------

_PROCESS_COLUMNS = (
    Column("GPU", "right"),
    Column("PID", "right"),
    Column("User", rank=2),
    Column("Memory", "right"),
    Column("Type", rank=3),
    Column("Command", least=12),
)
_LONGEST_COMMAND = 80
#: So many processes have a row, those with the most memory.
_ROWS = 50


def _processes(table: DeviceTable) -> list[Block]:
    listed = [(device.index, process) for device in table for process in device.processes or ()]
    shown, rest = most_memory(listed)
    rows = [_process(index, process) for index, process in shown]
    blind = [str(device.index) for device in table if device.processes is None]
    blocks: list[Block] = [Grid(_PROCESS_COLUMNS, rows)] if rows else []
    blocks += rest
    if not rows and len(blind) < len(table):
        blocks.append(Line.of("No process uses a GPU, as far as NVML lists them.", "dim"))
    if blind:
        unlisted = f"NVML does not list the processes of GPU {', '.join(blind)}."
        blocks.append(Line.of(unlisted, "dim"))
    return blocks


_Row = TypeVar("_Row", bound="tuple[Any, ...]")


def most_memory(listed: Sequence[_Row]) -> tuple[list[_Row], list[Block]]:
    """The rows that are shown, in their order, and a line on the rest; each ends in a process."""
    if len(listed) <= _ROWS:
        return list(listed), []
    order = sorted(range(len(listed)), key=lambda place: -(listed[place][-1].memory or 0))
    chosen = {*order[:_ROWS]}
    rest = sum(listed[place][-1].memory or 0 for place in order[_ROWS:])
    line = Line.of(f"and {len(listed) - _ROWS} more, with {bytes_(rest)} in all", "dim")
    return [row for place, row in enumerate(listed) if place in chosen], [line]


def short_command(process: Process) -> str:
    """What a process runs, in a cell."""
    command = process.command or DASH
    if len(command) > _LONGEST_COMMAND:
        command = command[: _LONGEST_COMMAND - 1] + "…"
    return command


def _process(index: int, process: Process) -> list[Cell]:
    style: Style = "strong" if process.own else ""
    return [
        Cell(str(index)),
        Cell(f"{process.pid}{' (this kernel)' if process.own else ''}", style),
        Cell(process.user or DASH),
        Cell(bytes_(process.memory)),
        Cell(process.kind, "dim"),
        Cell(short_command(process)),
    ]


# --- the outcome of a choice -------------------------------------------------------------------

STATUS_STYLES: Mapping[str, Style] = {
    "applied": "good",
    "unchanged": "good",
    "restarted": "good",
    "gated": "warn",
    "too-late": "bad",
}


def selection(result: Selection) -> list[Block]:
    """The status, what this process now sees, and what is to be borne in mind."""
    count = len(result.devices)
    still = "still " * (result.status == "too-late")
    seen = "no GPU" if count == 0 else "1 GPU" if count == 1 else f"{count} GPUs"
    sees = f"this kernel {still}sees {seen}"
    if not result.devices_known:
        sees = "what this kernel sees is not known before CUDA starts"
    blocks: list[Block] = [
        Line(
            (
                Cell(result.status, STATUS_STYLES[result.status]),
                Cell(f": {sees}"),
                Cell(f"  ({_variables(result.environment)})", "dim"),
            )
        )
    ]
    blocks += [_seen(device) for device in result.devices]
    blocks += [Line.of(note, "dim") for note in result.notes]
    return blocks


def _seen(device: Device) -> Line:
    ordinal = "cuda:?" if device.ordinal is None else f"cuda:{device.ordinal}"
    told = device.memory_free is not None or device.instance is not None
    free = f", {bytes_(device.memory_free)} free" if told else ""
    return Line(
        (
            Cell(f"  {ordinal}", "strong"),
            Cell(f" is GPU {device.index}, {device.name or 'name not known'}{free}"),
        )
    )
