"""Variables written to a file by one process and brought back by the one that replaces it.

All are written as one graph of objects, so that what they share stays shared: an optimizer still
steps the parameters of its model. Tensors are saved by `torch.save`, big buffers (NumPy's) as they
are, everything else by cloudpickle; modules by their name. A function that was defined in the
notebook lives in the notebook's namespace afterwards too.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import os
import pickle
import shutil
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from gpumagic import torch_cuda
from gpumagic.errors import RestartError

#: Called while writing, with the bytes written and the bytes expected.
Progress = Callable[[int, int], None]

#: A pickle of at most so many bytes is tried out before anything is lost.
_TRIED = 256 << 20


@dataclass
class Plan:
    """What can be kept of the variables that were asked for."""

    names: list[str] = field(default_factory=list)
    #: Names that were not asked for, but that functions among ``names`` use.
    needed: list[str] = field(default_factory=list)
    #: What cannot be kept, and why.
    failures: dict[str, str] = field(default_factory=dict)
    #: Bytes that the kept variables will take, at least.
    size: int = 0


def plan(namespace: Mapping[str, Any], names: Iterable[str]) -> Plan:
    """Try every variable by itself, without copying any data.

    Raises:
        RestartError: cloudpickle is missing.
    """
    found = Plan()
    waiting, tried = list(dict.fromkeys(names)), set[str]()
    asked = set(waiting)
    while waiting:
        name = waiting.pop(0)
        tried.add(name)
        try:
            size = _try(namespace[name], namespace)
        except RecursionError:
            found.failures[name] = "it is nested too deeply"
        except RestartError:
            raise
        except Exception as error:
            found.failures[name] = _reason(error)
        else:
            found.size += size
            (found.names if name in asked else found.needed).append(name)
            for other in _used_by(namespace[name], namespace):
                if other not in tried and other not in waiting:
                    waiting.append(other)
    return found


def _reason(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 100 else text[:99] + "…"


def _try(value: Any, namespace: Mapping[str, Any]) -> int:
    """Pickle and unpickle a value, tensors and big buffers left out; the bytes it will take."""
    if isinstance(value, ModuleType):
        if importlib.util.find_spec(value.__name__) is None:
            raise ValueError(f"no module named {value.__name__} can be imported")
        return 0
    dumped = _dump(value, namespace)
    # To load a class that was defined in the notebook would change the class that is there.
    if len(dumped.pickled) <= _TRIED and not dumped.classes:
        _load(dumped.pickled, dumped.buffers, dumped.tensors, {})
    return len(dumped.pickled) + sum(dumped.sizes()) + sum(map(_bytes_of, dumped.tensors))


def _bytes_of(tensor: Any) -> int:
    return int(tensor.element_size() * tensor.numel())


def _used_by(value: Any, namespace: Mapping[str, Any]) -> Iterator[str]:
    """The variables that a function, or the methods of a class, of the notebook mention."""
    if isinstance(value, type) and value.__module__ == "__main__":
        for member in vars(value).values():
            yield from _used_by(getattr(member, "__func__", member), namespace)
    if isinstance(value, types.FunctionType) and value.__globals__ is namespace:
        codes = [value.__code__]
        while codes:
            code = codes.pop()
            yield from (n for n in code.co_names if n in namespace and not n.startswith("_"))
            codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]


# --- pickling ------------------------------------------------------------------------------------


def require() -> ModuleType:
    """Cloudpickle.

    Raises:
        RestartError: it is not installed.
    """
    try:
        import cloudpickle  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise RestartError(
            "--keep needs cloudpickle: %pip install cloudpickle (or gpumagic[keep])"
        ) from None
    found: ModuleType = cloudpickle
    return found


@dataclass
class _Dumped:
    """A pickled graph of objects, and what was left out of the pickle."""

    #: The notebook's: functions whose globals these are, will have the new notebook's.
    namespace: Mapping[str, Any]
    pickled: bytes = b""
    buffers: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    #: Whether classes were pickled by value.
    classes: bool = False

    def sizes(self) -> list[int]:
        """The bytes of each buffer."""
        return [len(buffer.raw()) for buffer in self.buffers]


@functools.cache
def _pickler() -> type[Any]:
    cloudpickle = require()
    base: Any = cloudpickle.Pickler

    class Keeper(base):  # type: ignore[misc, unused-ignore]
        def __init__(self, file: IO[bytes], dumped: _Dumped) -> None:
            super().__init__(file, protocol=5, buffer_callback=dumped.buffers.append)
            self._dumped, self._numbers = dumped, dict[int, int]()
            torch = torch_cuda.loaded()
            self._kinds = () if torch is None else (torch.Tensor, torch.nn.Parameter)

        def persistent_id(self, value: Any) -> Any:
            if type(value) not in self._kinds:
                return None
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self._dumped.tensors)
                self._dumped.tensors.append(value)
            return self._numbers[id(value)]

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, io.IOBase) and not (
                isinstance(value, _IN_MEMORY) or value is sys.stdout or value is sys.stderr
            ):
                raise pickle.PicklingError("an open file")  # cloudpickle would copy its content
            reduced = super().reducer_override(value)
            if isinstance(value, type) and isinstance(reduced, tuple):
                self._dumped.classes = True
            if (
                isinstance(value, types.FunctionType)
                and value.__globals__ is self._dumped.namespace
                and isinstance(reduced, tuple)
                and len(reduced) == 6
            ):
                # cloudpickle's copy of a function has globals of its own, a copy of what it uses.
                _, (code, *_, closure), (attributes, slots), *_, set_state = reduced
                slots = {**slots, "__globals__": {}}
                return _function, (code, closure), (attributes, slots), None, None, set_state
            return reduced

    return Keeper


_IN_MEMORY = (io.StringIO, io.BytesIO)

#: Where the functions that are being brought back shall live.
_home: dict[str, Any] = {}


def _function(code: types.CodeType, closure: Any) -> types.FunctionType:
    return types.FunctionType(code, _home, None, None, closure)


def _dump(value: Any, namespace: Mapping[str, Any]) -> _Dumped:
    file, dumped = io.BytesIO(), _Dumped(namespace)
    _pickler()(file, dumped).dump(value)
    dumped.pickled = file.getvalue()
    return dumped


class _Loader(pickle.Unpickler):
    def __init__(self, pickled: bytes, buffers: Iterable[Any], tensors: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(pickled), buffers=buffers)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Any:
        return self._tensors[number]


def _load(
    pickled: bytes, buffers: Iterable[Any], tensors: Sequence[Any], home: dict[str, Any]
) -> Any:
    global _home
    _home = home
    return _Loader(pickled, buffers, tensors).load()


# --- files ---------------------------------------------------------------------------------------


def save(
    namespace: Mapping[str, Any],
    chosen: Plan,
    create: Callable[[str], IO[bytes]],
    progress: Progress,
) -> list[IO[bytes]]:
    """Write the variables of a plan to new files; see `restore`.

    ``create`` makes a private file in a folder.

    Raises:
        RestartError: they do not fit on the disk, or cannot be written together.
    """
    folder = _folder_for(chosen.size)
    values = {name: namespace[name] for name in (*chosen.names, *chosen.needed)}
    modules = {n: v.__name__ for n, v in values.items() if isinstance(v, ModuleType)}
    dumped = _dump({n: v for n, v in values.items() if n not in modules}, namespace)
    files = [create(folder)]
    try:
        out = _Counted(files[0], chosen.size, progress)
        head = {"modules": modules, "values": dumped.pickled, "sizes": dumped.sizes()}
        pickle.dump(head, files[0])
        for buffer in dumped.buffers:
            out.write(buffer.raw())
        if dumped.tensors:
            files.append(create(folder))
            out.file = files[1]
            torch_cuda.require().save(dumped.tensors, out)
    except OSError as error:
        _close(files)
        raise RestartError(f"the variables cannot be written: {error.strerror}") from None
    except BaseException:
        _close(files)
        raise
    return files


def _close(files: Iterable[IO[bytes]]) -> None:
    for file in files:
        file.close()


def _folder_for(size: int) -> str:
    """A folder with room for ``size`` bytes: the usual one for temporary files, or /var/tmp."""
    free: dict[str, int] = {}
    for folder in (tempfile.gettempdir(), "/var/tmp"):
        if Path(folder).is_dir() and os.access(folder, os.W_OK):
            free[folder] = shutil.disk_usage(folder).free
            if free[folder] > size * 1.02 + (16 << 20):
                return folder
    room = ", ".join(f"{folder} has {_gib(amount)}" for folder, amount in free.items())
    raise RestartError(f"the variables take {_gib(size)} on the disk, and {room}; set TMPDIR")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


class _Counted:
    """A file that tells how much has been written to it."""

    def __init__(self, file: IO[bytes], expected: int, progress: Progress) -> None:
        self.file = file
        self._written, self._expected, self._progress = 0, expected, progress
        self._told = time.monotonic()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), 64 << 20):
            self._written += self.file.write(view[start : start + (64 << 20)])
            if time.monotonic() - self._told > 0.2:
                self._told = time.monotonic()
                self._progress(self._written, self._expected)
        return len(view)

    def flush(self) -> None:
        self.file.flush()


def restore(
    namespace: dict[str, Any], files: Sequence[IO[bytes]], location: Callable[[Any, str], Any]
) -> dict[str, str]:
    """Bring back into ``namespace`` what `save` wrote; returns what failed, and why.

    ``location`` is `torch.load`'s ``map_location``.
    """
    failures: dict[str, str] = {}
    kept = pickle.load(files[0])
    for name, module in kept["modules"].items():
        try:
            namespace[name] = importlib.import_module(module)
        except Exception as error:
            failures[name] = _reason(error)
    buffers = [bytearray(size) for size in kept["sizes"]]
    for buffer in buffers:
        _read(files[0], buffer)
    tensors: list[Any] = []
    if len(files) > 1:
        tensors = torch_cuda.require().load(files[1], map_location=location, weights_only=False)
    namespace.update(_load(kept["values"], buffers, tensors, namespace))
    return failures


def _read(file: IO[bytes], buffer: bytearray) -> None:
    view, done = memoryview(buffer), 0
    while done < len(view):
        amount = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not amount:
            raise EOFError("the file of the kept variables is shorter than it should be")
        done += amount
