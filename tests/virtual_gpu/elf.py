"""What a shared library offers and wants, read from its ELF tables (64-bit little-endian)."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_VERSION_NEED = struct.Struct("<HHIII")
_VERSION_NEED_ENTRY = struct.Struct("<IHHII")
_DYNAMIC = struct.Struct("<qQ")
_SHT_DYNSYM, _SHT_DYNAMIC, _SHT_VERNEED, _SHT_VERSYM = 11, 6, 0x6FFFFFFE, 0x6FFFFFFF
_DT_NEEDED, _DT_SONAME = 1, 14


@dataclass(frozen=True)
class Import:
    """An undefined symbol; `library` and `version` are empty where it is bound to none."""

    name: str
    library: str
    version: str


@dataclass
class Library:
    """The dynamic tables of one shared library."""

    soname: str = ""
    needed: list[str] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    exports: set[str] = field(default_factory=set)


def read(path: Path) -> Library:
    """Reads the dynamic tables of `path`; raises ValueError where it is no such file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        if image[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        return _parse(image)


def _parse(image: mmap.mmap) -> Library:
    (offset,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [_SECTION.unpack_from(image, offset + i * size) for i in range(count)]
    by_type = {section[1]: section for section in sections}
    library = Library()

    def strings(section: tuple[int, ...]) -> bytes:
        table = sections[section[6]]
        return image[table[4] : table[4] + table[5]]

    if _SHT_DYNAMIC in by_type:
        section = by_type[_SHT_DYNAMIC]
        names = strings(section)
        for tag, value in _DYNAMIC.iter_unpack(image[section[4] : section[4] + section[5]]):
            if tag == _DT_NEEDED:
                library.needed.append(_text(names, value))
            elif tag == _DT_SONAME:
                library.soname = _text(names, value)
    if _SHT_DYNSYM in by_type:
        section = by_type[_SHT_DYNSYM]
        names = strings(section)
        versions = {}
        if _SHT_VERNEED in by_type:
            versions = dict(_versions(image, by_type[_SHT_VERNEED], strings(by_type[_SHT_VERNEED])))
        indexes: tuple[int, ...] = ()
        if _SHT_VERSYM in by_type:
            table = by_type[_SHT_VERSYM]
            indexes = struct.unpack_from(f"<{table[5] // 2}H", image, table[4])
        symbols = _SYMBOL.iter_unpack(image[section[4] : section[4] + section[5]])
        for number, (name, _, _, defined_in, _, _) in enumerate(symbols):
            if defined_in:
                library.exports.add(_text(names, name))
            elif name:
                index = indexes[number] & 0x7FFF if indexes else 0
                library.imports.append(Import(_text(names, name), *versions.get(index, ("", ""))))
    return library


def _text(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()


def _versions(
    image: mmap.mmap, section: tuple[int, ...], names: bytes
) -> Iterator[tuple[int, tuple[str, str]]]:
    at = section[4]
    while True:
        _, count, library, entry_offset, next_offset = _VERSION_NEED.unpack_from(image, at)
        entry = at + entry_offset
        for _ in range(count):
            _, _, index, name, step = _VERSION_NEED_ENTRY.unpack_from(image, entry)
            yield index & 0x7FFF, (_text(names, library), _text(names, name))
            entry += step
        if not next_offset:
            return
        at += next_offset
