"""What imported modules hold: it is referred to, and the new process has its module's own.

A copy would be another object: the functions of its module would not see what is set on it, a seed
would not govern it, and a sentinel would be itself no more. What is compared by its value, a number
or a path, is copied. Of an object of the user's own modules, the content goes to the fresh one.
"""

from __future__ import annotations

import copyreg
import importlib
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpumagic.cells import tracebacks
from gpumagic.system import introspection, text
from gpumagic.system.introspection import derives, find, is_a

#: Objects that every process has once, and what an import finds by its name.
_EVERYWHERE = (type(None), type(...), type(NotImplemented))
_NAMED = (type, types.FunctionType, types.ModuleType)


class Reference(NamedTuple):
    """Where a module has an object."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def found(self) -> Any:
        """Return what a fresh import has there.

        Raises:
            Exception: as the import does; `AttributeError` where it has none.
        """
        return getattr(importlib.import_module(self.module), self.name)


def type_name(value: object) -> str:
    """Return the module and the name of a value's type."""
    kind = type(value)
    return f"{introspection.module_of(kind)}.{kind.__qualname__}"


class ModuleObjects:
    """What the modules of this process hold, by identity."""

    def __init__(self, namespace: dict[str, Any], known: Iterable[Reference] = ()) -> None:
        self._users = tracebacks.users_modules().keys() - {"__main__"}
        #: Those that a fresh import does not have so.
        self.missing: set[Reference] = set()
        #: Those whose content has no pickle, and why.
        self.without_content: dict[str, str] = {}
        #: The modules of types whose objects are known by identity; None for other types.
        owners = dict[type, str | None]()
        best = dict[int, tuple[tuple[bool, bool, int], Reference]]()
        for module, loaded in list(sys.modules.items()):
            inside = introspection.module_attributes(loaded)
            if inside is namespace or module.startswith(("builtins", "gpumagic.", "_frozen")):
                continue
            for name, value in introspection.names(inside):
                kind = type(value)
                if kind not in owners:
                    has_identity = _has_identity(kind)
                    owners[kind] = introspection.module_of(kind) if has_identity else None
                if owners[kind] is None or name.startswith("__"):
                    continue
                if kind is str and not _is_constant(name, value):
                    continue
                if kind is float and value == value:
                    continue
                # The module of its type is the first, the user's own are the last.
                rank = owners[kind] != module, module in self._users, len(module)
                if id(value) not in best or rank < best[id(value)][0]:
                    best[id(value)] = rank, Reference(module, name)
        self._found = {key: reference for key, (_, reference) in best.items()}
        self._found.update({id(each.found()): each for each in known})  # others may have them, too

    def get(self, value: object) -> Reference | None:
        """Return where a module has this object, if it is to be referred to."""
        reference = self._found.get(id(value))
        if reference is None or reference in self.missing:
            return None
        if is_a(value, *_NAMED):  # by its own name, where it has one
            own = introspection.is_imported(value) or getattr(value, "__module__", 0) == "__main__"
            return None if own else reference
        if self._is_carried(reference):
            try:
                if _parts(value) is None:
                    self.missing.add(reference)
                    return None
            except Exception as error:
                self.without_content[str(reference)] = text.reason(error)
        return reference

    def is_anew(self, value: object, contents: Mapping[str, object]) -> bool:
        """Return whether a value is a fresh import's, without what it contained."""
        reference = self.get(value)
        return reference is not None and str(reference) not in contents

    def has_content(self, reference: Reference, value: object) -> bool:
        """Return whether an object has content that is kept."""
        is_carried = self._is_carried(reference) and not is_a(value, *_NAMED)
        return is_carried and any(_parts(value) or ())

    def _is_carried(self, reference: Reference) -> bool:
        """Return whether content goes to the new process: of the user's own modules, if it can."""
        return reference.module in self._users and str(reference) not in self.without_content


def _is_constant(name: str, value: str) -> bool:
    """Return whether a text is its module's own: ``argparse.SUPPRESS``, no word as any other."""
    return name.isupper() and len(value) > 1 and not value.isidentifier()


def _has_identity(kind: type) -> bool:
    """Return whether objects of this type are known by identity: not by value, nor by name."""
    if kind in (str, float) or derives(kind, *_NAMED):  # of floats `nan`, which equals none
        return True
    by_value = find(kind, "__hash__") not in (object.__hash__, None)
    ours = introspection.module_of(kind) == "__main__"
    return not by_value and not ours and not derives(kind, *_EVERYWHERE)


def _parts(value: Any) -> tuple[Any, Any, Any] | None:
    """Return an object's state, items and entries as pickle has them; None for a mere value.

    Raises:
        Exception: it has no pickle.
    """
    reduced: Any = value.__reduce_ex__(5)
    if type(reduced) is str:
        return None
    make, arguments, *parts = reduced
    state, items, entries = (*parts, None, None, None)[:3]
    if make is copyreg.__newobj__ and len(arguments) == 1:  # type: ignore[attr-defined]
        return state, items, entries
    is_made = make is type(value) and any(each is not None for each in (state, items, entries))
    return (state, items, entries) if is_made else None


class Content:
    """The content of an object of a module: when it is loaded, the fresh object has it."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        parts = _parts(self._value)
        assert parts is not None
        _, items, entries = parts
        return _emptied, (self._value, bool(items or entries)), *parts


def _emptied(value: Any, has_items: bool) -> Any:
    if has_items:
        value.clear()
    return value
