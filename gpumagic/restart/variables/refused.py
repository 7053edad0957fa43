"""What cannot be kept: it belongs to this process, or ends with it.

Of arrays and tensors those whose memory is a file: what is written to them reaches it. Copied, they
would not be what they were. A `numpy.memmap` is opened again; others are refused, as an open file
is. Private mappings, read-only ones, and shared memory are like any memory.
"""

from __future__ import annotations

import io
import mmap
import pickle
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.system import introspection
from gpumagic.system.introspection import is_a

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Files of Python's own: a closed one is kept, as closed.
FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_RLOCK: Any = type(threading.RLock())
#: Locks and what makes them: one that nobody holds is like a new one.
LOCKS: dict[type, Callable[[], Any]] = {
    type(threading.Lock()): threading.Lock,
    _RLOCK: threading.RLock,
}
#: The modules whose objects another process finds by a name, or inherits.
_BY_NAME = {
    f"multiprocessing.{each}"
    for each in "shared_memory synchronize queues connection managers sharedctypes heap".split()
}


class Refused(pickle.PicklingError):
    """``thing`` cannot be kept, in words that say what it is; None: the data of a variable."""

    def __init__(self, words: str, thing: object = None) -> None:
        super().__init__(words)
        self.thing = thing


def why(value: Any, torch: Any) -> str | None:
    """Return what this is, if it ends with the process, or belongs to another one."""
    kind = type(value)
    if torch is not None and issubclass(kind, (torch.Stream, torch.Event)):
        return "a stream or event of a GPU"
    if torch is not None and issubclass(kind, torch.utils.data.dataloader._BaseDataLoaderIter):
        return "an iterator of a DataLoader"
    if kind is types.FunctionType and "_torchdynamo_orig_callable" in vars(value):
        return "a compiled function; compile it again"
    if _is_file(value):  # of which cloudpickle would copy what it contains
        return None if value.closed else "an open file"
    if kind in LOCKS:
        return "a lock that is held" if _is_held(value) else None
    modules = [introspection.module_of(each) for each in introspection.mro(kind)]
    if issubclass(kind, threading.Thread):
        return "a thread"
    if any(each in _BY_NAME for each in modules):
        return "shared memory or a lock of multiprocessing"
    if "ipywidgets.widgets.widget" in modules:
        return "a widget"
    if is_bar(kind) and not is_over(value):
        return "a progress bar that goes on"
    if kind is weakref.finalize:  # as a `tempfile.TemporaryDirectory` has
        return "it is cleaned up when this process ends"
    if kind is memoryview:  # of which cloudpickle would make bytes
        return "cannot pickle 'memoryview' object"
    return None


def is_bar(kind: type) -> bool:
    """Return whether this is a progress bar of tqdm: one that is made has a line of its own."""
    return any(
        f"{introspection.module_of(each)}.{introspection.name_of(each)}" == "tqdm.std.tqdm"
        for each in introspection.mro(kind)
    )


def is_over(value: Any) -> bool:
    """Return whether nothing is lost with this: a file, a thread or a bar that has ended."""
    if is_a(value, threading.Thread):
        return value.ident is not None and not value.is_alive()
    if is_bar(type(value)):
        return bool(getattr(value, "disable", False))
    return _is_file(value) and bool(value.closed)


def what(value: Any) -> str:
    """Return the type of an object of a library, in words; "" for the notebook's and Python's."""
    kind = value if is_a(value, type, types.FunctionType) else type(value)
    package = kind.__module__.split(".")[0]
    if package in ("__main__", "builtins", "types", "functools", "gpumagic"):
        return ""
    return f"{kind.__qualname__.split('.')[0]} of {package.removeprefix('_')}"


def _is_file(value: object) -> bool:
    kind = type(value)  # Python's own are registered with the class, and do not inherit from it
    return issubclass(kind, io.IOBase) and not issubclass(kind, (io.StringIO, io.BytesIO))


def _is_held(lock: Any) -> bool:
    if type(lock) is not _RLOCK:
        return bool(lock.locked())
    free = not lock._is_owned() and lock.acquire(blocking=False)
    if free:
        lock.release()
    return not free


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
