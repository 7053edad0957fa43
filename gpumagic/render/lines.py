"""How GPU memory is shown line by line."""

from __future__ import annotations

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line
from gpumagic.render.memory import delta
from gpumagic.render.units import bytes_
from gpumagic.results import LineMemory, LineReport, SourceLines

#: A longer run of lines that did nothing is shortened to its first and last few.
_RUN, _EDGE = 8, 2


def line_report(result: LineReport) -> list[Block]:
    """The blocks of a `LineReport`."""
    blocks: list[Block] = []
    for source in result.sources:
        if source.empty:
            blocks.append(Line.of(f"{source.name}: nothing to run", "dim"))
        elif not source.ran:
            blocks.append(Line.of(f"{source.name}: did not run in this cell's thread", "dim"))
        for ordinal, lines in source.devices.items():
            blocks.append(Line((Cell(source.name, "strong"), Cell(f" on cuda:{ordinal}", "dim"))))
            blocks.append(_grid(source, dict(lines)))
    for ordinal, change in result.elsewhere.items():
        blocks.append(
            Line.of(f"cuda:{ordinal}: {bytes_(change, sign=True)} while no line of the cell ran")
        )
    blocks += delta(result.cell)
    return [*blocks, *(Line.of(note, "dim") for note in result.notes)]


def _grid(source: SourceLines, lines: dict[int, LineMemory]) -> Grid:
    columns = [
        Column("Line", "right"),
        Column("Change", "right"),
        Column("Peak", "right"),
        Column("Stayed", "right"),
        Column("Source"),
    ]
    rows = []
    for number in _shown(source, lines):
        if number is None:
            rows.append([*[Cell("")] * 4, Cell("⋯", "dim")])
            continue
        text = Cell(source.lines[number - source.first].expandtabs(4), "code")
        memory = lines.get(number)
        if memory is None:
            rows.append([Cell(str(number), "dim"), *[Cell("")] * 3, text])
            continue
        rows.append(
            [
                Cell(str(number), "dim"),
                Cell(bytes_(memory.change, sign=True), "" if memory.change else "dim"),
                Cell(bytes_(memory.peak, sign=True), "" if memory.peak else "dim"),
                Cell(bytes_(memory.stayed), "strong" if memory.stayed else "dim"),
                text,
            ]
        )
    return Grid(columns, rows)


def _shown(source: SourceLines, lines: dict[int, LineMemory]) -> list[int | None]:
    """The numbers of the lines to show; None where some are left out."""
    shown: list[int | None] = []
    idle: list[int] = []
    # Lines beyond the source would be those of a file that was edited since.
    for number in [*range(source.first, source.first + len(source.lines)), None]:
        if number is not None and number not in lines:
            idle.append(number)
            continue
        shown += idle if len(idle) <= _RUN else [*idle[:_EDGE], None, *idle[-_EDGE:]]
        idle = []
        if number is not None:
            shown.append(number)
    return shown
