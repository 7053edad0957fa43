"""Find out, before anything is written, which of the requested variables can be kept."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from gpumagic.cuda import failure
from gpumagic.cuda.storages import plain_functions
from gpumagic.restart.variables import library_settings, shared_memory
from gpumagic.restart.variables.names import Import, data_of_modules, imports, is_users_data
from gpumagic.restart.variables.pickler import LostWithContextError, VariablePickler
from gpumagic.restart.variables.tables import PickleNotes, Tables
from gpumagic.system import text

#: Characters of a reason why a variable cannot be kept.
REASON = 100

#: Called while a pickle is written, with its length so far.
Progress = Callable[[int], None]
#: Where the pickles are longer in total, variables are restored together or not at all.
_MAX_SEPARATE = 256 << 20


@dataclass
class Plan:
    """What can be kept, and how."""

    #: The notebook's namespace.
    namespace: Mapping[str, Any]
    #: Objects that the new process has anyway: their identities and numbers.
    existing: dict[int, str]
    names: list[str] = field(default_factory=list)
    #: Names that were not requested, but that functions among ``names`` use.
    needed: list[str] = field(default_factory=list)
    #: Names that are imported again.
    imports: dict[str, Import] = field(default_factory=dict)
    #: What cannot be kept, and why.
    failures: dict[str, str] = field(default_factory=dict)
    #: What cannot be kept since the GPU that it is on can no longer be read.
    lost_with_context: list[str] = field(default_factory=list)
    #: What is not kept of a variable that is.
    omitted: dict[str, set[str]] = field(default_factory=dict)
    #: The CUDA devices that a variable refers to, by ordinal (None for the current one).
    devices: dict[str, set[int | None]] = field(default_factory=dict)
    #: The pickle of each variable by itself, up to a total length.
    pickles: dict[str, bytes] = field(default_factory=dict)
    #: Names whose pickles certainly load in another process.
    trusted: set[str] = field(default_factory=set)
    #: The file names of the notebook's functions: its cells.
    files: set[str] = field(default_factory=set)
    #: Where in the user's modules objects are, by identity; and those found in each variable.
    module_data: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    shared: dict[str, set[int]] = field(default_factory=dict)
    #: Settings of libraries that are functions: their pickles (None if they cannot be kept), and
    #: the variables that they use.
    functions: dict[str, tuple[bytes | None, list[str]]] = field(default_factory=dict)
    tables: Tables = field(default_factory=Tables)
    #: Bytes of the pickles.
    pickled: int = 0

    def size(self) -> int:
        """Return the bytes on disk; memory that is shared counts once."""
        arrays, tensors = self.tables.arrays, self.tables.tensors
        memory = sum(
            arrays[block.arrays[0]].nbytes if shared_memory.is_sparse(block, arrays) else block.size
            for block in shared_memory.memory_blocks(arrays, tensors)
        )
        storages: dict[int, int] = {}
        with plain_functions():
            for tensor in tensors:
                if shared_memory.has_storage(tensor):
                    storage = tensor.untyped_storage()
                    storages[storage._cdata] = storage.nbytes()
                elif tensor.is_sparse:
                    values = tensor.detach()._values()
                    storages[-id(tensor)] = values.element_size() * values.numel() * 2
        raw = sum(memoryview(value).nbytes for value, _ in self.tables.raw)
        return int(self.pickled + memory + sum(storages.values()) + raw)

    def drop(self, name: str, reason: str) -> None:
        """Do not keep ``name``."""
        self.failures[name] = reason
        for listed in (self.names, self.needed):
            if name in listed:
                listed.remove(name)


def plan(
    namespace: Mapping[str, Any],
    asked: Iterable[str],
    variables: Mapping[str, Any],
    *,
    sources: Iterable[str] = (),
    existing: Iterable[int] = (),
    progress: Progress = lambda pickled: None,
) -> Plan:
    """Try to pickle each variable by itself, without copying data.

    ``variables`` are all of the user's; ``existing`` are the identities of objects that the new
    process has anyway.
    """
    numbered = {identity: str(number) for number, identity in enumerate(existing)}
    found = Plan(namespace, numbered, imports=imports(variables, sources))
    found.module_data = data_of_modules()
    waiting = list(dict.fromkeys(asked))
    user_of: dict[str, str] = dict.fromkeys(waiting, "")
    while waiting:
        name = waiting.pop(0)
        value, user = namespace[name], user_of[name]
        place = found.imports.get(name)
        # Data of a user's module may have changed: it is kept.
        if place is not None and not is_users_data(value, place):
            continue
        if isinstance(value, ModuleType) and value.__name__ == "__main__":
            found.imports[name] = ("__main__", None)
            continue
        try:
            pickled, notes = dumped(found, value, progress)
        except LostWithContextError:
            found.lost_with_context.append(name)
            continue
        except RecursionError:
            reason = "it is nested too deeply"
        except Exception as error:
            reason = text.reason(error, REASON)
            if failure.dead_context() is not None and failure.is_cuda_error(reason):
                found.lost_with_context.append(name)  # another library's
                continue
        else:
            _add(found, name, pickled, notes)
            found.imports.pop(name, None)
            (found.needed if user else found.names).append(name)
            for other in sorted(notes.used):
                if other in variables and other not in user_of:
                    user_of[other] = name
                    waiting.append(other)
            continue
        if place is None:
            found.failures[name] = f"{reason}; {user} uses it" if user else reason
    for phrase, value in library_settings.function_settings().items():
        try:
            pickled, notes = dumped(found, value, progress)
        except Exception:  # reported after the restart
            found.functions[phrase] = (None, [])
        else:
            found.files |= notes.files
            found.functions[phrase] = (pickled, [n for n in notes.used if n in variables])
    return found


def _add(found: Plan, name: str, pickled: bytes, notes: PickleNotes) -> None:
    found.pickled += 2 * len(pickled)
    if found.pickled <= 2 * _MAX_SEPARATE:
        found.pickles[name] = pickled
    found.files |= notes.files
    found.shared[name] = notes.shared
    if notes.trusted:
        found.trusted.add(name)
    if notes.devices:
        found.devices[name] = notes.devices
    if notes.omitted:
        found.omitted[name] = notes.omitted


def dumped(found: Plan, value: Any, progress: Progress) -> tuple[bytes, PickleNotes]:
    """Return the pickle of a value, and notes on its content."""
    out = _ProgressBytes(progress)
    pickler = VariablePickler(out, found.tables, found.namespace, found.existing, found.module_data)
    pickler.dump(value)
    return out.getvalue(), pickler.notes


class _ProgressBytes(io.BytesIO):
    """Bytes in memory; reports its length at each write."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def write(self, data: Any) -> int:
        written = super().write(data)
        self._progress(self.tell())
        return written
