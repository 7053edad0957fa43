"""Write the kept variables to files.

The first file has pickles of all variables that refer to each other, so that what they share
stays shared; one of each variable by itself, in case those do not load; arrays and long byte
strings; and at its end an index. The second one has the tensors, written by `torch.save`.
"""

from __future__ import annotations

import io
import linecache
import os
import pickle
import shutil
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gpumagic.cuda import storages, torch_cuda
from gpumagic.cuda.storages import plain_functions
from gpumagic.errors import RestartError
from gpumagic.restart.variables import library_settings, random_state, shared_memory
from gpumagic.restart.variables.names import Import
from gpumagic.restart.variables.pickler import VariablePickler
from gpumagic.restart.variables.plan import Plan

#: Called while writing, with the bytes written and the bytes expected.
Progress = Callable[[int, int], None]
#: Returns the bytes of a storage whose content is parked in host memory, in parts.
Content = Callable[[Any], Iterable[Any]]
_CHUNK = 64 << 20


@dataclass(frozen=True)
class TensorKind:
    """The properties of a tensor that its data do not contain."""

    parameter: bool
    requires_grad: bool
    #: None for tensors that torch pickles itself: sparse, quantized, nested.
    view: shared_memory.TensorView | None
    dtype: Any
    #: Whether its memory is shared with other processes.
    shared: bool
    #: The size of a quantized tensor, and the axis of its channels if each has its own scale.
    quantized: tuple[tuple[int, ...], int | None] | None


@dataclass
class Index:
    """Where everything is in the file."""

    names: list[str]
    imports: dict[str, Import]
    import_path: list[str]
    #: Pickles that refer to each other, to be loaded by one unpickler in this order.
    graph: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: Pickles that are each loaded by themselves.
    separate: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: A pickle for the same unpickler: objects that the user's modules have too, and where.
    module_data: tuple[int, int] = (0, 0)
    raw: list[tuple[int, int, str]] = field(default_factory=list)
    blocks: list[shared_memory.BlockRecord] = field(default_factory=list)
    tensors: list[TensorKind] = field(default_factory=list)
    #: By the number of a storage that was parked: where its bytes are, and its device.
    parked: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    #: The lines of the cells that kept functions were defined in, by the names of their files.
    sources: dict[str, list[str]] = field(default_factory=dict)
    random: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    #: Settings that are functions: where their pickles are, and the variables that they use.
    functions: dict[str, tuple[int | None, list[str]]] = field(default_factory=dict)


def write(
    chosen: Plan,
    create: Callable[[str], IO[bytes]],
    progress: Progress = lambda written, expected: None,
    begin: Callable[[IO[bytes]], None] = lambda file: None,
    content: Content | None = None,
) -> list[IO[bytes]]:
    """Write the variables of a plan to new files; the second one only if there are tensors.

    ``create`` creates a private file in a folder; ``begin`` is called with the first one when it is
    complete. ``content`` is needed where storages are parked.

    Raises:
        RestartError: they do not fit on the disk.
    """
    files: list[IO[bytes]] = []
    size = chosen.size()
    folder = folder_for(size)
    try:
        files.append(create(folder))
        out = _ProgressFile(files[0], size, progress)
        _write(chosen, out, content)
        begin(files[0])
        if chosen.tables.tensors:
            files.append(create(folder))
            out.file = files[1]
            _write_tensors(chosen, out)
        for file in files:
            file.flush()
    except OSError as error:
        close(files)
        raise RestartError(f"the variables cannot be written: {error.strerror}") from None
    except BaseException:
        close(files)
        raise
    return files


def close(files: Iterable[IO[bytes]]) -> None:
    """Close unnamed files, which then no longer exist."""
    for file in files:
        file.close()


def _write(chosen: Plan, out: _ProgressFile, content: Content | None) -> None:
    tables = chosen.tables
    # Objects that are loaded later may call earlier ones, in a `__setstate__` for example.
    asked = [*chosen.names, *chosen.needed]
    names = sorted(asked, key=lambda name: not _is_first(chosen.namespace[name]))
    index = Index(asked, chosen.imports, [p for p in sys.path if isinstance(p, str)])
    pickler = VariablePickler(out, tables, chosen.namespace, chosen.existing)
    for name in names:
        start = out.file.tell()
        pickler.dump(chosen.namespace[name])
        index.graph[name] = (start, out.file.tell() - start)
    start = out.file.tell()
    pickler.dump(_module_data(chosen))
    index.module_data = (start, out.file.tell() - start)
    for name in names:
        if name in chosen.pickles:
            index.separate[name] = _append(out, chosen.pickles[name])
    for phrase, (pickled, used) in chosen.functions.items():
        index.functions[phrase] = (None if pickled is None else _append(out, pickled)[0], used)
    for value, kind in tables.raw:
        index.raw.append((*_append(out, value), kind))
    for block in shared_memory.memory_blocks(tables.arrays, tables.tensors):
        index.blocks.append(_write_block(out, block, tables.arrays, tables.tensors))
    if tables.tensors:
        with plain_functions():
            index.tensors, owners = _kinds(tables.tensors)
            if content is not None:
                index.parked = _write_parked(owners, out, content)
    for name in chosen.files:
        entry = linecache.cache.get(name, ())
        if len(entry) == 4 and entry[1] is None:  # a cell, not a file on disk
            index.sources[name] = list(entry[2])
    index.random, index.settings = random_state.capture(), library_settings.capture()
    start, _ = _append(out, pickle.dumps(index))
    out.write(start.to_bytes(8, "little"))


def _module_data(chosen: Plan) -> list[tuple[str, str, Any]]:
    """Return the kept objects that are also in modules of the user's, and where."""
    kept = [*chosen.names, *chosen.needed]
    return [
        (module, attribute, vars(sys.modules[module])[attribute])
        for identity in set[int]().union(*(chosen.shared[name] for name in kept))
        for module, attribute in chosen.module_data[identity]
    ]


def _is_first(value: Any) -> bool:
    return isinstance(value, (type, types.FunctionType, int, float, complex, str, bytes))


def _append(out: _ProgressFile, data: Any) -> tuple[int, int]:
    start = out.file.tell()
    return start, out.write(data)


def _write_block(
    out: _ProgressFile, block: shared_memory.Block, arrays: Sequence[Any], tensors: Sequence[Any]
) -> shared_memory.BlockRecord:
    if not shared_memory.is_sparse(block, arrays):
        start, _ = _append(out, block.memory()) if block.size else (out.file.tell(), 0)
        return shared_memory.record_of(block, start, arrays, tensors)
    (number,) = block.arrays
    whole = arrays[number].copy(order="K")
    copied = shared_memory.Block(*shared_memory.extent(whole), arrays=[0])
    start, _ = _append(out, copied.memory()) if copied.size else (out.file.tell(), 0)
    written = shared_memory.record_of(copied, start, [whole], ())
    dtype, shape, strides, within, _ = written.arrays.pop(0)
    writeable = arrays[number].flags.writeable
    written.arrays[number] = (dtype, shape, strides, within, writeable)
    return written


def _write_parked(
    owners: Sequence[Any], out: _ProgressFile, content: Content
) -> dict[int, tuple[int, int, str]]:
    """Write the bytes of parked storages, and return where they are."""
    written = {}
    for number, tensor in enumerate(owners):
        storage = tensor.untyped_storage()
        if storages.is_parked(storage):
            start = out.file.tell()
            for part in content(storage):
                out.write(part)
            written[number] = (start, storage.nbytes(), str(storage.device))
    return written


def _kinds(tensors: Sequence[Any]) -> tuple[list[TensorKind], list[Any]]:
    """Return the kinds of the tensors, and one tensor of each storage."""
    torch, numbers = torch_cuda.require(), dict[int, int]()
    kinds: list[TensorKind] = []
    owners: list[Any] = []
    for tensor in tensors:
        how = None
        if shared_memory.has_storage(tensor):
            identity = tensor.untyped_storage()._cdata
            if identity not in numbers:
                numbers[identity] = len(owners)
                owners.append(tensor)
            how = shared_memory.view_of(tensor, numbers[identity])
        kinds.append(
            TensorKind(
                parameter=type(tensor) is torch.nn.Parameter,
                # A tensor that is the result of an operation is kept without its autograd graph.
                requires_grad=tensor.requires_grad and tensor.is_leaf,
                view=how,
                dtype=tensor.dtype,
                shared=how is not None and tensor.device.type == "cpu" and tensor.is_shared(),
                quantized=(tuple(tensor.size()), _axis(tensor)) if tensor.is_quantized else None,
            )
        )
    return kinds, owners


def _axis(tensor: Any) -> int | None:
    by_channel = "per_channel" in str(tensor.qscheme())
    return int(tensor.q_per_channel_axis()) if by_channel else None


def _write_tensors(chosen: Plan, out: _ProgressFile) -> None:
    """Write each storage as bytes, and tensors without one as they are; without attributes.

    Not those that are written already: on the host and shared with arrays, or parked.
    """
    torch, tables = torch_cuda.require(), chosen.tables
    in_blocks: set[int] = set()
    for block in shared_memory.memory_blocks(tables.arrays, tables.tensors):
        in_blocks.update(tables.tensors[n].untyped_storage()._cdata for n in block.tensors)
    with torch.no_grad(), plain_functions():
        kinds, owners = _kinds(tables.tensors)
        bare = [
            tensor.detach() if kind.view is None else None
            for kind, tensor in zip(kinds, tables.tensors, strict=True)
        ]
        contents = []
        for tensor in owners:
            storage = tensor.untyped_storage()
            written = storage._cdata in in_blocks or storages.is_parked(storage)
            contents.append(None if written else storages.as_bytes(storage))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about some kinds of tensors
            # In its own archive: torch refuses one storage with two types in one archive, and the
            # values of a sparse tensor, for example, may also be a tensor of the user's.
            torch.save(bare, apart := io.BytesIO())
            torch.save((apart.getvalue(), contents), out)
    except RuntimeError as error:
        # An interrupt or a full disk: torch closes its archive all the same, and that fails.
        stopped: BaseException | None = error
        while stopped is not None and not isinstance(stopped, (KeyboardInterrupt, OSError)):
            stopped = stopped.__context__
        if stopped is None:
            raise
        raise stopped from None


def folder_for(size: int) -> str:
    """Return a folder with ``size`` bytes free: the default for temporary files, or /var/tmp.

    Raises:
        RestartError: there is none.
    """
    free: dict[str, int] = {}
    for folder in (tempfile.gettempdir(), "/var/tmp"):
        if Path(folder).is_dir() and os.access(folder, os.W_OK):
            free[folder] = shutil.disk_usage(folder).free
            if free[folder] > size * 1.02 + (16 << 20):
                return folder
    available = ", ".join(f"{folder} has {_gib(amount)}" for folder, amount in free.items())
    raise RestartError(f"the variables take {_gib(size)} on the disk, and {available}; set TMPDIR")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


class _ProgressFile:
    """A file that reports how much has been written to it."""

    def __init__(self, file: IO[bytes], expected: int, progress: Progress) -> None:
        self.file = file
        self._written, self._expected, self._progress = 0, expected, progress
        self._told = time.monotonic()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _CHUNK):
            self._written += self.file.write(view[start : start + _CHUNK])
            if time.monotonic() - self._told > 0.2:
                self._told = time.monotonic()
                self._progress(self._written, self._expected)
        return len(view)

    def flush(self) -> None:
        self.file.flush()
