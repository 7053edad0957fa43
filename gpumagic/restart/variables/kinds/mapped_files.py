"""Memory that is a file's: what is written to it reaches the file; a copy would not be what it was.

A `numpy.memmap` is opened again; parts of one, and others, are refused, as an open file is. Private
mappings, read-only ones, and shared memory are like any memory.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.restart.variables.kinds.refused import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray


class MappedFiles:
    """The files that this process has mapped into its memory to write to them."""

    def __init__(self) -> None:
        self._found: list[tuple[int, int, str]] = []
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            place, access, _, _, _, *file = line.split(maxsplit=5)  # see proc_pid_maps(5)
            if file and access[1] == "w" and access[3] == "s" and _is_named(file[0]):
                start, _, end = place.partition("-")
                self._found.append((int(start, 16), int(end, 16), file[0]))

    def refuse(self, address: int) -> None:
        """Return unless the memory at ``address`` is a file's.

        Raises:
            Refused: it is; and which.
        """
        for start, end, file in self._found:
            if start <= address < end:
                raise Refused(f"memory of the file {file}")

    def reduced(self, array: NDArray[Any]) -> Any:
        """Reduce a `numpy.memmap` to its file; return None for arrays in other memory.

        Raises:
            Refused: it is a part of one, or another mapping.
        """
        file = getattr(array, "filename", None)
        if type(array.base) is mmap.mmap and file is not None and array.mode != "c":
            mode = "r" if array.mode == "r" else "r+"  # w+ would empty it
            order = "C" if array.flags.c_contiguous else "F"
            return type(array), (file, array.dtype, mode, array.offset, array.shape, order)
        if self._found:
            self.refuse(array.__array_interface__["data"][0])
        return None


def _is_named(file: str) -> bool:
    """Return whether this is a file of the disk: not shared memory, nor a device."""
    return file.startswith("/") and not file.startswith(("/dev/", "/memfd:", "/SYSV"))
