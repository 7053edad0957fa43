"""Format numbers with units. None, for an unknown value, is a dash."""

from __future__ import annotations

import os
from collections.abc import Iterable

#: A value that is not known.
DASH = "–"
#: As wide as a plus sign, and no line break is inserted after it.
MINUS = "\N{MINUS SIGN}"
#: What is less is rounded to 0.
_LEAST_SECONDS = 5e-12
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_(value: int | None, *, sign: bool = False) -> str:
    """Return bytes in binary units with three or four significant digits: ``1.50 GiB``, ``512 B``.

    With ``sign``, a change: ``+1.50 GiB``, ``0 B``, a decrease with `MINUS`.
    """
    if value is None:
        return DASH
    prefix = MINUS if value < 0 else "+" * (sign and value > 0)
    amount = float(abs(value))
    unit = 0
    # 1023.5 KiB would be rounded to 1024 KiB.
    while amount >= (1023.5 if unit else 1024) and unit < len(_BINARY) - 1:
        amount /= 1024
        unit += 1
    if unit == 0:
        return f"{prefix}{int(amount)} B"
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    return f"{prefix}{amount:.{digits}f} {_BINARY[unit]}"


def seconds(value: float | None) -> str:
    """Return seconds with three or four significant digits: ``50.1 ms``, ``2 min 5 s``."""
    if value is None:
        return DASH
    if value < 0:
        return MINUS + seconds(-value)
    if value < _LEAST_SECONDS:
        return "0 s"
    if value >= 60:
        hours, rest = divmod(round(value), 3600)
        parts = ((hours, "h"), (rest // 60, "min"), (rest % 60, "s"))
        return " ".join(f"{number} {unit}" for number, unit in parts if number)
    scales = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
    scale, unit = next((s for s in scales if value >= s[0] * 0.9995), scales[-1])
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
    """Return a value without decimals, with its unit: ``250 W``."""
    return DASH if value is None else f"{value:.0f} {unit}"


def percent(value: float | None) -> str:
    """Return a percentage: ``97 %``."""
    return rounded(value, "%")


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
