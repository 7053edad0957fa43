"""The layout of a scenario's shared file, as src/state.h has it: constants, bits and structs."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

_HEADER = re.sub(
    r"/\*.*?\*/", "", (Path(__file__).parent / "src" / "state.h").read_text(), flags=re.DOTALL
)
#: By name, without ``VG_``: ``CONSTANTS["MAX_GPUS"]``.
CONSTANTS = {
    name: int(value, 0)
    for name, value in re.findall(r"^#define VG_(\w+) (0x[0-9a-f]+|\d+)", _HEADER, re.MULTILINE)
}
#: What `GPU.unsupported` may name, with its bit: those of ``enum vg_field``.
FIELDS = {
    name.lower(): 1 << int(bit) for name, bit in re.findall(r"VG_(\w+) = 1 << (\d+)", _HEADER)
}


def _structs() -> dict[str, Any]:
    types: dict[str, Any] = {
        "char": ctypes.c_char,
        "int32_t": ctypes.c_int32,
        "uint32_t": ctypes.c_uint32,
        "int64_t": ctypes.c_int64,
        "uint64_t": ctypes.c_uint64,
    }
    for struct, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", _HEADER, re.M | re.S):
        fields = []
        for kind, name, sizes in re.findall(r"(\w+) (\w+)((?:\[\w+\])*);", body):
            element = types[kind]
            for size in reversed(re.findall(r"\w+", sizes)):
                element *= int(CONSTANTS.get(size.removeprefix("VG_"), size))
            fields.append((name, element))
        types[struct] = type(struct, (ctypes.Structure,), {"_fields_": fields})
    return types


#: ``struct vg_state``, the whole file.
State = _structs()["vg_state"]
