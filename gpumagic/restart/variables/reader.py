"""The file of the kept variables, as it is read: as one graph, or else one by one."""

from __future__ import annotations

import importlib
import io
import linecache
import mmap
import os
import pickle
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gpumagic.cuda import torch_cuda
from gpumagic.restart.variables import (
    constructors,
    library_settings,
    random_state,
    shared_memory,
)
from gpumagic.restart.variables.pickler import Loader
from gpumagic.restart.variables.plan import why
from gpumagic.restart.variables.writer import Index

#: `torch.load`'s ``map_location``: a storage on the host, and where it was → where it is now.
Location = Callable[[Any, str], Any]
DeviceNow = Callable[["int | None"], str]


class Reader:
    """Loads what lies in the files, tensors and arrays once each."""

    def __init__(
        self,
        files: Sequence[IO[bytes]],
        home: dict[str, Any],
        own: Mapping[str, Any],
        location: Location | str,
        device_now: DeviceNow,
    ) -> None:
        self._files, self._home, self._own = files, home, own
        self._location, self._device_now = location, device_now
        self._raw: dict[int, Any] = {}
        self._arrays: dict[int, Any] = {}
        self._tensors: dict[int, Any] = {}
        self._saved: list[Any] | None = None
        #: What the user's modules had too, and where; there when all is loaded `together`.
        self.of_modules: list[tuple[str, str, Any]] = []
        file = files[0]
        end = file.seek(-8, os.SEEK_END)
        start = int.from_bytes(file.read(8), "little")
        self.index: Index = pickle.loads(self._bytes(start, end - start))

    def _bytes(self, start: int, size: int) -> bytes:
        self._files[0].seek(start)
        return self._files[0].read(size)

    def together(self) -> Iterator[tuple[str, Any]]:
        """The variables one after the other; what they share is shared."""
        if self.index.together:
            with self._opened(0) as memory:
                loader = Loader(memory, self._find)
                for name in self.index.together:
                    yield name, loader.load()
                self.of_modules = loader.load()

    def single(self, name: str) -> Any:
        """One variable by itself."""
        if name not in self.index.singles:
            raise ValueError("it is too big to come back by itself")
        with self._opened(self.index.singles[name][0]) as memory:
            return Loader(memory, self._find).load()

    def function(self, start: int) -> Any:
        """One setting of a library that is a function."""
        with self._opened(start) as memory:
            return Loader(memory, self._find).load()

    def _opened(self, start: int) -> mmap.mmap:
        """The first file from ``start``, in place, since a pickle may be long."""
        constructors.home, constructors.device_now = self._home, self._device_now
        memory = mmap.mmap(self._files[0].fileno(), 0, access=mmap.ACCESS_READ)
        memory.seek(start)
        return memory

    def _find(self, key: tuple[Any, ...]) -> Any:
        kind, *rest = key
        if kind == "home":
            return self._home
        if kind == "own":
            return self._own[rest[0]]
        number = rest[0]
        if kind == "raw":
            if number not in self._raw:
                self._raw[number] = self._read_raw(*self.index.raw[number])
            return self._raw[number]
        if kind == "array":
            if number not in self._arrays:
                self._read_block(next(b for b in self.index.blocks if number in b.arrays))
            return self._arrays[number]
        tensor = self._tensor(number)
        return tensor.untyped_storage() if kind == "storage" else tensor

    def _read_raw(self, start: int, size: int, kind: str) -> Any:
        if kind != "bytearray":
            data = self._bytes(start, size)
            return data if kind == "bytes" else memoryview(data)
        return bytearray(self._bytes(start, size))

    def _read_block(self, written: shared_memory.Written) -> None:
        flat, alone = self._memory(written)
        arrays, tensors = shared_memory.brought_back(written, flat, alone)
        self._arrays.update(arrays)
        self._tensors.update({n: self._finished(n, tensor) for n, tensor in tensors.items()})

    def _memory(self, written: shared_memory.Written) -> tuple[Any, Any]:
        flat, alone = shared_memory.room(written)
        view, done = memoryview(flat), 0
        self._files[0].seek(written.offset)
        while done < written.size:
            amount = self._files[0].readinto(view[done:])  # type: ignore[attr-defined]
            if not amount:
                raise EOFError("the file of the kept variables is shorter than it should be")
            done += amount
        return flat, alone

    def _tensor(self, number: int) -> Any:
        if number not in self._tensors:
            for written in self.index.blocks:
                if number in written.tensors:
                    self._read_block(written)
                    return self._tensors[number]
            self._tensors[number] = self._finished(number, self._saved_tensor(number))
        return self._tensors[number]

    def _saved_tensor(self, number: int) -> Any:
        if self._saved is None:
            torch = torch_cuda.require()
            self._files[1].seek(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what it makes for some kinds of tensors
                how: Any = {"map_location": self._location, "weights_only": False}
                bare, storages = torch.load(self._files[1], **how)
                self._saved = [torch.load(io.BytesIO(bare), **how), storages]
        kind = self.index.tensors[number]
        if kind.shown is None:
            return self._saved[0][number]
        storage = self._saved[1][kind.shown.storage].untyped_storage()
        return kind.shown.over(storage.share_memory_() if kind.shared else storage)

    def _finished(self, number: int, tensor: Any) -> Any:
        kind = self.index.tensors[number]
        if kind.parameter:
            return torch_cuda.require().nn.Parameter(tensor, kind.requires_grad)
        return tensor.requires_grad_() if kind.requires_grad else tensor


@dataclass
class Restored:
    """What became of the kept variables."""

    names: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    #: Names that were imported again.
    imported: list[str] = field(default_factory=list)
    not_imported: dict[str, str] = field(default_factory=dict)
    #: Why the variables did not come back as one graph, if they did not.
    apart: str | None = None
    #: The old process's GPUs whose random state is lost.
    random: list[str] = field(default_factory=list)
    #: Settings of libraries that are not as they were.
    reset: list[str] = field(default_factory=list)


def restore(
    home: dict[str, Any],
    files: Sequence[IO[bytes]],
    *,
    own: Mapping[str, Any],
    location: Location | str,
    device_now: DeviceNow,
) -> Restored:
    """Bring back into ``home`` what `variables.save` wrote, all that is possible of it.

    ``own`` are the objects of this process that stand for some of the old one.
    """
    reader, outcome = Reader(files, home, own, location, device_now), Restored()
    index = reader.index
    for file, lines in index.sources.items():
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    sys.path[:] = [*index.path, *(entry for entry in sys.path if entry not in index.path)]
    for name, (module, attribute) in index.imports.items():
        try:
            value = imported(module, attribute)
        except Exception as error:
            outcome.not_imported[name] = why(error)
            continue
        if "." not in name:  # of `import a.b` only `a` is bound
            home[name] = value
            outcome.imported.append(name)
    try:
        for name, value in reader.together():
            home[name] = value
            outcome.names.append(name)
    except Exception as error:
        outcome.apart = why(error)
        for name in [*index.together][len(outcome.names) :]:
            try:
                home[name] = reader.single(name)
                outcome.names.append(name)
            except Exception as reason:
                outcome.failures[name] = why(reason)
    _share_with_modules(reader.of_modules, outcome)
    outcome.names.sort(key=index.names.index)
    outcome.random = random_state.restore(index.random, device_now)
    outcome.reset = library_settings.restore(index.settings, device_now)
    for phrase, (place, used) in index.functions.items():
        try:
            if place is None or any(name not in home for name in used):
                raise LookupError
            library_settings.tell_function(phrase, reader.function(place))
        except Exception:
            outcome.reset.append(phrase)
    return outcome


def _share_with_modules(found: Sequence[tuple[str, str, Any]], outcome: Restored) -> None:
    """Have the user's modules refer to what is kept of them, as they did."""
    for module, attribute, value in found:
        try:
            setattr(importlib.import_module(module), attribute, value)
        except Exception as error:
            outcome.not_imported[module] = why(error)


def imported(module: str, attribute: str | None) -> Any:
    """Import a module again, or get an attribute of it."""
    found = importlib.import_module(module)
    return found if attribute is None else getattr(found, attribute)


def leave(files: Sequence[IO[bytes]]) -> str:
    """Give files without names a place in a folder of their own; the folder's path."""
    folder = tempfile.mkdtemp(prefix="gpumagic-kept-")
    for file, name in zip(files, ("variables", "tensors"), strict=False):
        path = Path(folder, name)
        try:
            os.link(f"/proc/self/fd/{file.fileno()}", path, follow_symlinks=True)
        except OSError:  # its name was taken away, and the system gives it no other
            file.seek(0)
            with path.open("xb") as copy:
                path.chmod(0o600)
                shutil.copyfileobj(file, copy, 16 << 20)
    return folder


def _check_own(folder: str) -> None:
    """Refuse a folder that is not as `leave` makes it: this user's, and closed to all others."""
    found = Path(folder).lstat()
    if os.name != "nt" and (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.geteuid()
        or stat.S_IMODE(found.st_mode) & 0o077
    ):
        raise PermissionError(f"{folder} is not a folder of this user's, closed to all others")


def load(folder: str, *names: str) -> dict[str, Any]:
    """Load variables that a restart could not bring back, from where it has left them.

    Without ``names`` all that load; CUDA tensors come back on the CPU.

    Raises:
        PermissionError: somebody else can write to the folder: what it holds would run as code.
        KeyError: a name that was not kept. What loading one of ``names`` raises is passed on.
    """
    _check_own(folder)
    home = vars(sys.modules["__main__"])
    paths = [Path(folder, name) for name in ("variables", "tensors")]
    files = [path.open("rb") for path in paths if path.exists()]
    own = {"0": home.get("get_ipython", lambda: None)()}
    found: dict[str, Any] = {}
    try:
        reader = Reader(files, home, own, "cpu", lambda ordinal: "cpu")
        for name in names or reader.index.names:
            if name not in reader.index.names:
                raise KeyError(name)
            try:
                found[name] = reader.single(name)
            except Exception:
                if names:
                    raise
    finally:
        for file in files:
            file.close()
    return found
