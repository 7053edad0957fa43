"""Format numbers with units. None, for an unknown value, is a dash."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

#: A value that is not known.
DASH = "–"
#: As wide as a plus sign, and no line break is inserted after it.
MINUS = "\N{MINUS SIGN}"
_BYTES = ((2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))
_PREFIXES = ((1e-3, "m"), (1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
_SECONDS = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))


def bytes_(value: int | None, *, sign: bool = False) -> str:
    """Return bytes in binary units with three or four significant digits: ``1.50 GiB``, ``512 B``.

    With ``sign``, a change: ``+1.50 GiB``, ``0 B``, a decrease with `MINUS`.
    """
    if value is None:
        return DASH
    if value < 0:
        return MINUS + bytes_(-value)
    plus = "+" if sign and value else ""
    return plus + (f"{value} B" if value < 1024 else _in_unit(value, 1023.5, _BYTES))


def seconds(value: float | None) -> str:
    """Return seconds with three or four significant digits: ``50.1 ms``, ``2 min 5 s``."""
    if value is None:
        return DASH
    if value < 0:
        return MINUS + seconds(-value)
    if value < 5e-12:
        return "0 s"
    if value < 60:
        return _in_unit(value, 999.5, _SECONDS)
    hours, rest = divmod(round(value), 3600)
    parts = ((hours, "h"), (rest // 60, "min"), (rest % 60, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def scaled(value: float, unit: str) -> str:
    """Return a value with three or four significant digits and a prefix: ``2.00 GFLOP/s``."""
    return _in_unit(value, 999.5, [(scale, prefix + unit) for scale, prefix in _PREFIXES])


def at_most(
    value: float | None, is_bound: bool, text: Callable[[float | None], str] = seconds
) -> str:
    """Return a time, with ``≤`` where it is an upper bound."""
    return f"≤ {text(value)}" if is_bound and value is not None else text(value)


def _in_unit(value: float, most: float, units: Sequence[tuple[float, str]]) -> str:
    """Return a value in the first unit in which it is less than ``most``, or in the last."""
    scale, unit = next((each for each in units if value / each[0] < most), units[-1])
    amount = value / scale
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    return f"{amount:.{digits}f} {unit}"


#: The resolution of the clock of CPU time in seconds: ``getrusage`` counts microseconds, Windows
#: its scheduler's ticks.
_CPU_RESOLUTION = 1 / 64 if os.name == "nt" else 1e-6


def cpu_seconds(value: float | None, loops: int = 1) -> str:
    """Return CPU seconds per loop; a value below the clock's resolution is ``< 1 µs``."""
    least = _CPU_RESOLUTION / loops
    if value is None or value >= least * (1 - 1e-6):
        return seconds(value)
    number, unit = seconds(max(least, 1e-9)).split()
    return f"< {float(number):g} {unit}"


def rounded(value: float | None, unit: str) -> str:
    """Return a value without decimals, with its unit: ``250 W``, ``97 %``."""
    return DASH if value is None else f"{value:.0f} {unit}"


def share(value: float, digits: int = 0, *, sign: bool = False) -> str:
    """Return a part of 1 as a percentage: ``97 %``; with ``sign`` a change, ``+2.5 %``."""
    figure = f"{abs(value) * 100:.{digits}f}"
    # What is rounded to nothing has no sign.
    prefix = "" if not float(figure) else MINUS if value < 0 else "+" if sign else ""
    return f"{prefix}{figure} %"


def spans(numbers: Iterable[int]) -> str:
    """Return the sorted numbers with consecutive ones as a range: ``0–3, 7``."""  # noqa: RUF002
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}\N{EN DASH}{r[-1]}" for r in ranges)
