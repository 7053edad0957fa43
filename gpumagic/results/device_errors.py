"""Errors of devices that could not be read: in a table, and below it where they are long."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from gpumagic.render.blocks import Cell, Line
from gpumagic.render.units import spans
from gpumagic.system.text import noun


def error_cell(error: str) -> Cell:
    """Return a cell with a device's error in place of its figures."""
    return Cell(f"✗ {_short(error)}", "bad", whole=error)


def long_errors(errors: Iterable[tuple[int, str | None]]) -> Iterator[Line]:
    """Yield the errors, by index, that are shortened in the table: each once."""
    indexes: dict[str, list[int]] = {}
    for index, error in errors:
        if error is not None and error != _short(error):
            indexes.setdefault(error, []).append(index)
    for error, found in indexes.items():
        yield Line.of(f"{noun(len(found), 'GPU')} {spans(found)}: {error}.", "bad")


def _short(error: str) -> str:
    """Return a shortened error for a cell: a long one would displace other columns."""
    return textwrap.shorten(error, 24, placeholder=" …")
