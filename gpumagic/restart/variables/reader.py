"""Read the kept variables from their files: as one graph or, if it does not load, one by one."""

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
from gpumagic.restart.variables.pickler import VariableUnpickler
from gpumagic.restart.variables.plan import REASON
from gpumagic.restart.variables.writer import Index
from gpumagic.system import text

#: `torch.load`'s ``map_location``: a storage on the host, and where it was → where it is now.
Location = Callable[[Any, str], Any]
DeviceNow = Callable[["int | None"], str]


class Reader:
    """Loads what is in the files, each tensor and array once."""

    def __init__(
        self,
        files: Sequence[IO[bytes]],
        namespace: dict[str, Any],
        existing: Mapping[str, Any],
        location: Location | str,
        device_now: DeviceNow,
    ) -> None:
        self._files, self._namespace, self._existing = files, namespace, existing
        self._location, self._device_now = location, device_now
        self._raw: dict[int, Any] = {}
        self._arrays: dict[int, Any] = {}
        self._tensors: dict[int, Any] = {}
        self._saved: list[Any] | None = None
        #: The storages that were parked, by number.
        self._parked: dict[int, Any] = {}
        #: What the user's modules had too, and where; set when `load_graph` has ended.
        self.module_data: list[tuple[str, str, Any]] = []
        file = files[0]
        end = file.seek(-8, os.SEEK_END)
        start = int.from_bytes(file.read(8), "little")
        self.index: Index = pickle.loads(self._bytes(start, end - start))

    def _bytes(self, start: int, size: int) -> bytes:
        self._files[0].seek(start)
        return self._files[0].read(size)

    def load_graph(self) -> Iterator[tuple[str, Any]]:
        """Yield the variables in order; what they share is shared."""
        if self.index.graph:
            with self._opened(0) as memory:
                loader = VariableUnpickler(memory, self._find)
                for name in self.index.graph:
                    yield name, loader.load()
                self.module_data = loader.load()

    def load_variable(self, name: str) -> Any:
        """Load one variable by itself."""
        if name not in self.index.separate:
            raise ValueError("it is too large to be restored by itself")
        with self._opened(self.index.separate[name][0]) as memory:
            return VariableUnpickler(memory, self._find).load()

    def load_function(self, start: int) -> Any:
        """Load a library setting that is a function."""
        with self._opened(start) as memory:
            return VariableUnpickler(memory, self._find).load()

    def _opened(self, start: int) -> mmap.mmap:
        """Map the first file, at ``start``: a pickle may be long."""
        constructors.namespace, constructors.device_now = self._namespace, self._device_now
        memory = mmap.mmap(self._files[0].fileno(), 0, access=mmap.ACCESS_READ)
        memory.seek(start)
        return memory

    def _find(self, key: tuple[Any, ...]) -> Any:
        kind, *rest = key
        if kind == "namespace":
            return self._namespace
        if kind == "existing":
            return self._existing[rest[0]]
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

    def _read_block(self, written: shared_memory.BlockRecord) -> None:
        buffer, owner = self._memory(written)
        arrays, tensors = shared_memory.rebuild(written, buffer, owner)
        self._arrays.update(arrays)
        self._tensors.update({n: self._finished(n, tensor) for n, tensor in tensors.items()})

    def _memory(self, written: shared_memory.BlockRecord) -> tuple[Any, Any]:
        buffer, owner = shared_memory.allocate(written)
        self._fill(memoryview(buffer)[: written.size], written.offset)
        return buffer, owner

    def _fill(self, view: memoryview, start: int) -> None:
        """Read as many bytes as the buffer takes."""
        done = 0
        self._files[0].seek(start)
        while done < len(view):
            amount = self._files[0].readinto(view[done:])  # type: ignore[attr-defined]
            if not amount:
                raise EOFError("the file of the kept variables is shorter than it should be")
            done += amount

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
                warnings.simplefilter("ignore")  # torch's own, about some kinds of tensors
                how: Any = {"map_location": self._location, "weights_only": False}
                bare, storages = torch.load(self._files[1], **how)
                self._saved = [torch.load(io.BytesIO(bare), **how), storages]
        kind = self.index.tensors[number]
        if kind.view is None:
            return self._saved[0][number]
        storage = self._storage(kind.view.storage)
        return kind.view.on_storage(storage.share_memory_() if kind.shared else storage)

    def _storage(self, number: int) -> Any:
        assert self._saved is not None
        if number not in self.index.parked:
            return self._saved[1][number].untyped_storage()
        if number not in self._parked:
            start, size, where = self.index.parked[number]
            torch = torch_cuda.require()
            content = torch.empty(size, dtype=torch.uint8, device="cpu")
            self._fill(memoryview(content.numpy()), start)
            on_host = content.untyped_storage()
            to = self._location
            self._parked[number] = on_host if isinstance(to, str) else to(on_host, where)
        return self._parked[number]

    def _finished(self, number: int, tensor: Any) -> Any:
        kind = self.index.tensors[number]
        if kind.parameter:
            return torch_cuda.require().nn.Parameter(tensor, kind.requires_grad)
        return tensor.requires_grad_() if kind.requires_grad else tensor


@dataclass
class Restored:
    """The outcome of restoring variables."""

    names: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    #: Names that were imported again.
    imported: list[str] = field(default_factory=list)
    not_imported: dict[str, str] = field(default_factory=dict)
    #: Why the variables were not restored as one graph, if they were not.
    separate_because: str | None = None
    #: The old process's GPUs whose random state is lost.
    random_lost: list[str] = field(default_factory=list)
    #: Settings of libraries that could not be restored.
    settings_lost: list[str] = field(default_factory=list)


def restore(
    namespace: dict[str, Any],
    files: Sequence[IO[bytes]],
    *,
    existing: Mapping[str, Any],
    location: Location | str,
    device_now: DeviceNow,
) -> Restored:
    """Restore into ``namespace`` as much as possible of what `variables.write` wrote.

    ``existing`` are the objects of this process that replace some of the old one.
    """
    reader, outcome = Reader(files, namespace, existing, location, device_now), Restored()
    index = reader.index
    for file, lines in index.sources.items():
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    sys.path[:] = [
        *index.import_path,
        *(entry for entry in sys.path if entry not in index.import_path),
    ]
    for name, (module, attribute) in index.imports.items():
        try:
            value = imported(module, attribute)
        except Exception as error:
            outcome.not_imported[name] = text.reason(error, REASON)
            continue
        if "." not in name:  # of `import a.b` only `a` is bound
            namespace[name] = value
            outcome.imported.append(name)
    try:
        for name, value in reader.load_graph():
            namespace[name] = value
            outcome.names.append(name)
    except Exception as error:
        outcome.separate_because = text.reason(error, REASON)
        for name in [*index.graph][len(outcome.names) :]:
            try:
                namespace[name] = reader.load_variable(name)
                outcome.names.append(name)
            except Exception as reason:
                outcome.failures[name] = text.reason(reason, REASON)
    _share_with_modules(reader.module_data, outcome)
    outcome.names.sort(key=index.names.index)
    outcome.random_lost = random_state.restore(index.random, device_now)
    outcome.settings_lost = library_settings.restore(index.settings, device_now)
    for phrase, (place, used) in index.functions.items():
        try:
            if place is None or any(name not in namespace for name in used):
                raise LookupError
            library_settings.set_function_setting(phrase, reader.load_function(place))
        except Exception:
            outcome.settings_lost.append(phrase)
    return outcome


def _share_with_modules(found: Sequence[tuple[str, str, Any]], outcome: Restored) -> None:
    """Have the user's modules refer to the kept objects again."""
    for module, attribute, value in found:
        try:
            setattr(importlib.import_module(module), attribute, value)
        except Exception as error:
            outcome.not_imported[module] = text.reason(error, REASON)


def imported(module: str, attribute: str | None) -> Any:
    """Import a module again, or get an attribute of it."""
    found = importlib.import_module(module)
    return found if attribute is None else getattr(found, attribute)


def preserve(files: Sequence[IO[bytes]]) -> str:
    """Move unnamed files to a new folder; return its path."""
    folder = tempfile.mkdtemp(prefix="gpumagic-kept-")
    for file, name in zip(files, ("variables", "tensors"), strict=False):
        path = Path(folder, name)
        try:
            os.link(f"/proc/self/fd/{file.fileno()}", path, follow_symlinks=True)
        except OSError:  # the system gives an unlinked file no new name
            file.seek(0)
            with path.open("xb") as copy:
                path.chmod(0o600)
                shutil.copyfileobj(file, copy, 16 << 20)
    return folder


def _check_own(folder: str) -> None:
    """Refuse a folder that is not as `preserve` makes it: this user's, closed to all others."""
    found = Path(folder).lstat()
    if os.name != "nt" and (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.geteuid()
        or stat.S_IMODE(found.st_mode) & 0o077
    ):
        raise PermissionError(f"{folder} is not a folder of this user's, closed to all others")


def load(folder: str, *names: str) -> dict[str, Any]:
    """Load variables that a restart could not restore, from the folder it has named.

    Without ``names`` all that load; CUDA tensors are on the CPU.

    Raises:
        PermissionError: another user can write to the folder, whose content would run as code.
        KeyError: a name that was not kept. What loading one of ``names`` raises is passed on.
    """
    _check_own(folder)
    namespace = vars(sys.modules["__main__"])
    paths = [Path(folder, name) for name in ("variables", "tensors")]
    files = [path.open("rb") for path in paths if path.exists()]
    existing = {"0": namespace.get("get_ipython", lambda: None)()}
    found: dict[str, Any] = {}
    try:
        reader = Reader(files, namespace, existing, "cpu", lambda ordinal: "cpu")
        for name in names or reader.index.names:
            if name not in reader.index.names:
                raise KeyError(name)
            try:
                found[name] = reader.load_variable(name)
            except Exception:
                if names:
                    raise
    finally:
        for file in files:
            file.close()
    return found
