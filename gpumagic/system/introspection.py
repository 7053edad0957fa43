"""Read foreign objects without running their code.

An object's class decides what ``isinstance``, ``==``, ``hash``, ``vars`` and attribute access do:
they may compute for seconds, raise, or import a package (a lazily loaded module does). Therefore a
type is read by ``type()`` and compared by identity, and attributes are read where C stores them: in
the slots of Python's and torch's own types, and in an instance's dictionary.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from inspect import CO_OPTIMIZED
from typing import Any, cast

_OF_TYPE = vars(type)
_MRO, _NAME, _CLASS_DICT, _MODULE = (
    _OF_TYPE[name].__get__ for name in ("__mro__", "__name__", "__dict__", "__module__")
)
#: `issubclass` without the hooks of a metaclass.
_DERIVES = type.__subclasscheck__
_MODULE_DICT = vars(types.ModuleType)["__dict__"].__get__
_ERROR = {
    name: vars(BaseException)[name].__get__
    for name in ("__traceback__", "__cause__", "__context__", "__suppress_context__", "args")
}
#: The descriptors of attributes that a type implements in C: reading one runs only C code.
_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)

#: Exception groups need Python 3.11.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)


# --- types ---------------------------------------------------------------------------------------


def derives(kind: type, *bases: type) -> bool:
    """Return whether a type is, or derives from, one of ``bases``; runs no metaclass's code."""
    return any(_DERIVES(base, kind) for base in bases)


def is_a(thing: object, *bases: type) -> bool:
    """Return whether an object's type is, or derives from, one of ``bases``."""
    return derives(type(thing), *bases)


def mro(kind: type) -> tuple[type, ...]:
    """Return the classes that a type inherits from, itself first."""
    return cast("tuple[type, ...]", _MRO(kind))


def name_of(kind: type) -> str:
    """Return a type's name."""
    return cast(str, _NAME(kind))


def class_attributes(kind: type) -> Mapping[str, Any]:
    """Return the attributes that a class itself defines."""
    return cast("Mapping[str, Any]", _CLASS_DICT(kind))


def find(kind: type, name: str) -> Any:
    """Return what a type or one of its bases defines as ``name``, or None."""
    for base in mro(kind):
        inside = class_attributes(base)
        if name in inside:
            return inside[name]
    return None


# --- attributes ----------------------------------------------------------------------------------


def slot(thing: object, name: str) -> Any:
    """Return an attribute that the object's type implements in C; None if there is none."""
    found = find(type(thing), name)
    return found.__get__(thing) if type(found) in _SLOTS else None


def names(mapping: Any) -> list[tuple[str, Any]]:
    """Return the items of a dictionary whose keys are strings; none for any other object."""
    items = dict.items(mapping) if is_a(mapping, dict) else ()
    return [(name, value) for name, value in items if type(name) is str]


def module_attributes(module: object) -> dict[str, Any]:
    """Return a module's attributes without loading a lazy module; empty for other objects."""
    if not is_a(module, types.ModuleType):
        return {}
    return cast("dict[str, Any]", _MODULE_DICT(module) or {})


def module_of(kind: type) -> str:
    """Return a type's ``__module__``; "" if that is no string.

    On Python 3.10 it may be a slot of the type's objects, as for Cython's functions.
    """
    try:
        module = _MODULE(kind)
    except AttributeError:  # deleted
        return ""
    return module if type(module) is str else ""


def module_file(module: object) -> str | None:
    """Return a module's ``__file__``, or None."""
    file = dict.get(module_attributes(module), "__file__")
    return file if type(file) is str else None


def imported_as(value: object) -> str | None:
    """Return the name that imports ``value``, a module of whatever type; else None."""
    name = dict.get(module_attributes(value), "__name__")
    found = type(name) is str and name != "__main__" and sys.modules.get(name) is value
    return name if found else None


def is_imported(value: Any) -> bool:
    """Return whether an import binds ``value``: a module, or a class or function of one."""
    if is_a(value, type):
        module, name = module_of(value), name_of(value)
    elif type(value) in (types.FunctionType, types.BuiltinFunctionType):
        module, name = value.__module__, value.__name__
    else:
        return imported_as(value) is not None
    if type(module) is not str or module in ("__main__", "builtins"):
        return False
    return dict.get(module_attributes(sys.modules.get(module)), name) is value


def local_variables(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return the names and values of a frame's own variables."""
    found: Any = frame.f_locals
    if frame.f_code.co_flags & CO_OPTIMIZED:
        return list(found.items())
    # The namespace of a class body or of ``exec`` may be any mapping.
    return names(found)


# --- exceptions ----------------------------------------------------------------------------------


def traceback(error: BaseException) -> types.TracebackType | None:
    """Return an exception's traceback."""
    return cast("types.TracebackType | None", _ERROR["__traceback__"](error))


def message(error: BaseException) -> str:
    """Return an exception's string arguments, one a line; ``__str__`` may be foreign code."""
    texts = (each for each in _ERROR["args"](error) if is_a(each, str))
    return "\n".join(map(str.__str__, texts))


def linked(error: BaseException, *, shown: bool = False) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and those of a group, each once.

    ``shown`` omits contexts that a traceback does not show, after ``raise … from …``.
    """
    seen: set[int] = set()
    pending = [error]
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        inside: Iterable[Any] = ()
        if _GROUP is not None and is_a(current, _GROUP):
            inside = vars(_GROUP)["exceptions"].__get__(current)
        hidden = shown and _ERROR["__suppress_context__"](current)
        context = None if hidden else _ERROR["__context__"](current)
        others = (context, _ERROR["__cause__"](current), *inside)
        pending += [other for other in others if other is not None]
