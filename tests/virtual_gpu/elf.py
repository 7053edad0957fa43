"""What a shared library wants of others, read from its ELF tables (64-bit little-endian)."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS = 11


def undefined(path: Path) -> set[str]:
    """The names of the symbols that `path` leaves to others to define."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        (offset,) = struct.unpack_from("<Q", image, 0x28)
        size, count = struct.unpack_from("<HH", image, 0x3A)
        sections = [_SECTION.unpack_from(image, offset + i * size) for i in range(count)]
        table = next(section for section in sections if section[1] == _DYNAMIC_SYMBOLS)
        strings = sections[table[6]]
        names = image[strings[4] : strings[4] + strings[5]]
        symbols = _SYMBOL.iter_unpack(image[table[4] : table[4] + table[5]])
        starts = [name for name, _, _, defined_in, _, _ in symbols if not defined_in]
    return {names[start : names.index(b"\0", start)].decode() for start in starts}
