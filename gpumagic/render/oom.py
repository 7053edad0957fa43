"""How it is shown why memory ran out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line
from gpumagic.render.units import bytes_
from gpumagic.results import Holder, OutOfMemory, Process, Remedy


def out_of_memory(result: OutOfMemory) -> list[Block]:
    """The blocks of an `OutOfMemory`."""
    blocks: list[Block] = [_headline(result)]
    if result.source:
        blocks.append(Line.of(f"    {result.source}", "dim"))
    if result.total is None:
        return blocks
    blocks += [_places(result), *_verdict(result)]
    if result.holders or not result.complete:
        blocks.append(_holders(result))
    blocks += [_remedy(number, remedy) for number, remedy in enumerate(result.remedies, 1)]
    return [*blocks, *(Line.of(note, "dim") for note in result.notes)]


def _headline(result: OutOfMemory) -> Line:
    device = "the GPU" if result.device is None else f"cuda:{result.device}"
    name = f" ({result.name})" if result.name else ""
    asked = "" if result.requested is None else f" asked for {bytes_(result.requested)}"
    where = result.where or "the failed call"
    told = f": {where}{asked}" if asked or result.where else ""
    return Line((Cell(f"Out of memory on {device}{name}", "bad"), Cell(told)))


def _places(result: OutOfMemory) -> Grid:
    """Where the device's memory is."""
    columns = [Column("Where"), Column("Bytes"), Column("What", rank=1)]
    return Grid(columns, [_place(result, *row) for row in _rows(result)], header=False)


def _rows(result: OutOfMemory) -> Iterator[tuple[str, int | None, str]]:
    yield "live tensors", result.allocated, ""
    largest = "" if not result.largest_free else f"largest block {bytes_(result.largest_free)}"
    yield "reserved, unused", result.unused, largest
    if result.outside:
        yield "outside torch's allocator", result.outside, "CUDA's context, libraries"
    if result.others:
        yield "other processes", result.others, _processes(result.processes)
    limited = ""
    if result.limit is not None:
        limited = f"this process may use {bytes_(result.limit)}"
    yield "free", result.free, limited


def _place(result: OutOfMemory, what: str, size: int | None, more: str) -> list[Cell]:
    share = None if size is None or not result.total else size / result.total
    return [Cell(what), Cell(bytes_(size), bar=share), Cell(more, "dim")]


def _processes(processes: Sequence[Process]) -> str:
    """One's own by name; others' only counted, since the report is saved with the notebook."""
    mine = [process for process in processes if process.mine]
    listed = [f"{p.command or '?'} (pid {p.pid}) {bytes_(p.memory)}" for p in mine[:3]]
    if len(mine) > 3:
        listed.append(f"{len(mine) - 3} more of yours")
    if len(processes) > len(mine):
        listed.append(f"{len(processes) - len(mine)} that are not yours, as far as is known")
    return ", ".join(listed)


def _verdict(result: OutOfMemory) -> Iterator[Line]:
    if result.fragmented:
        yield Line.of(
            "Fragmented: with what is reserved and unused there is enough, but in pieces that are "
            "too small",
            "warn",
        )
    elif result.fragmented is False:
        on = "; expandable segments are on" if result.fragmentation == "expandable" else ""
        yield Line.of(f"Not a matter of fragmentation{on}", "dim")


def _holders(result: OutOfMemory) -> Grid:
    columns = [Column("Held by"), Column("Bytes"), Column("What", rank=1), Column("Also", rank=2)]
    rows = [_holder(result, holder) for holder in result.holders]
    if result.unattributed:
        share = result.unattributed / result.allocated if result.allocated else None
        size = Cell(bytes_(result.unattributed), "dim", share)
        who = "no name leads to it" if result.complete else "not known: not all was looked at"
        rows.append([Cell(who, "dim"), size, Cell(""), Cell("")])
    return Grid(columns, rows)


def _holder(result: OutOfMemory, holder: Holder) -> list[Cell]:
    parts = sorted(holder.parts.items(), key=lambda item: -item[1])
    named = [f"{part} {bytes_(size)}" for part, size in parts if part]
    what = ", ".join(named) if len(parts) > 1 else holder.kind
    return [
        Cell(holder.name, "warn" if holder.pinned else "strong"),
        Cell(bytes_(holder.bytes), bar=holder.bytes / (result.allocated or 1)),
        Cell(what, "dim"),
        Cell(", ".join(holder.also[:3]), "dim"),
    ]


def _remedy(number: int, remedy: Remedy) -> Line:
    gives = "" if remedy.gives is None else f" gives {bytes_(remedy.gives)}"
    verdict = {True: ", enough", False: ", not enough", None: ""}[remedy.enough] if gives else ""
    return Line(
        (
            Cell(f"{number}. "),
            Cell(remedy.what, "good" if remedy.enough else "strong"),
            Cell(f"{gives}{verdict}"),
            Cell(f": {remedy.why}", "dim"),
        )
    )
