"""What can be kept of the variables that were asked for, found out before anything is written."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from gpumagic.restart.variables import library_settings, shared_memory
from gpumagic.restart.variables import names as naming
from gpumagic.restart.variables.pickler import PickleNotes, Tables, VariablePickler
from gpumagic.system.text import reason

#: Called while a pickle is written, with its bytes until now.
Progress = Callable[[int], None]
#: Variables whose pickles are longer in total come back together, or not at all.
_MAX_SEPARATE = 256 << 20


@dataclass
class Plan:
    """What can be kept, and how."""

    #: The notebook's namespace.
    namespace: Mapping[str, Any]
    #: Objects that the new process has by itself: their identities, and their numbers.
    existing: dict[int, str]
    names: list[str] = field(default_factory=list)
    #: Names that were not asked for, but that functions among ``names`` use.
    needed: list[str] = field(default_factory=list)
    #: Names that are imported again.
    imports: dict[str, naming.Import] = field(default_factory=dict)
    #: What cannot be kept, and why.
    failures: dict[str, str] = field(default_factory=dict)
    #: What does not come back with a variable that does.
    omitted: dict[str, set[str]] = field(default_factory=dict)
    #: The CUDA devices that a variable names, by their ordinals (None for the current one).
    devices: dict[str, set[int | None]] = field(default_factory=dict)
    #: The pickle of each variable by itself, as far as there is room.
    pickles: dict[str, bytes] = field(default_factory=dict)
    #: Names whose pickles are trusted to load in another process.
    trusted: set[str] = field(default_factory=set)
    #: The files that functions of the notebook say they come from: its cells.
    files: set[str] = field(default_factory=set)
    #: Where in the user's modules objects are, by their identities; those met in each variable.
    module_data: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    shared: dict[str, set[int]] = field(default_factory=dict)
    #: Settings of libraries that are functions: their pickles (None if they cannot be kept), and
    #: the variables that they use.
    functions: dict[str, tuple[bytes | None, list[str]]] = field(default_factory=dict)
    tables: Tables = field(default_factory=Tables)
    #: Bytes of the pickles.
    pickled: int = 0

    def size(self) -> int:
        """The bytes that all will take on the disk, memory that is shared counted once."""
        arrays, tensors = self.tables.arrays, self.tables.tensors
        memory = sum(
            arrays[block.arrays[0]].nbytes if shared_memory.is_sparse(block, arrays) else block.size
            for block in shared_memory.memory_blocks(arrays, tensors)
        )
        storages: dict[int, int] = {}
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
        """Keep ``name`` no more."""
        self.failures[name] = reason
        for names in (self.names, self.needed):
            if name in names:
                names.remove(name)


def plan(
    namespace: Mapping[str, Any],
    asked: Iterable[str],
    variables: Mapping[str, Any],
    *,
    sources: Iterable[str] = (),
    existing: Iterable[int] = (),
    progress: Progress = lambda pickled: None,
) -> Plan:
    """Try every variable by itself, omitted copying data; ``variables`` are all of the user's.

    ``existing`` are the identities of objects that the new process has by itself.
    """
    numbered = {identity: str(number) for number, identity in enumerate(existing)}
    found = Plan(namespace, numbered, imports=naming.imports(variables, sources))
    found.module_data = naming.data_of_modules()
    waiting = list(dict.fromkeys(asked))
    user_of: dict[str, str] = dict.fromkeys(waiting, "")
    while waiting:
        name = waiting.pop(0)
        value, user = namespace[name], user_of[name]
        place = found.imports.get(name)
        # Data of a module of the user's may have been changed: it is kept.
        if place is not None and not naming.is_users_data(value, place):
            continue
        if isinstance(value, ModuleType) and value.__name__ == "__main__":
            found.imports[name] = ("__main__", None)
            continue
        try:
            pickled, notes = dumped(found, value, progress)
        except RecursionError:
            reason = "it is nested too deeply"
        except Exception as error:
            reason = why(error)
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
        except Exception:  # it is said after the restart
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
    """The pickle of a value, and what was met in it."""
    out = _ProgressBytes(progress)
    keeper = VariablePickler(out, found.tables, found.namespace, found.existing, found.module_data)
    keeper.dump(value)
    return out.getvalue(), keeper.notes


class _ProgressBytes(io.BytesIO):
    """Bytes in memory; says how many there are as they come."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def write(self, data: Any) -> int:
        written = super().write(data)
        self._progress(self.tell())
        return written


def why(error: BaseException) -> str:
    """An exception as a reason, in one short line."""
    return reason(error, 100)
