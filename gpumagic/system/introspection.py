"""The one door through which objects that are not ours are asked. No code of theirs is run.

An object may answer anything to ``isinstance``, ``==``, ``hash``, ``vars`` or an attribute's name,
may compute for seconds over it, raise, or import a package (a lazily loaded module does). So a
type is asked by ``type()`` and compared by identity, and attributes are read from where C keeps
them: the slots of Python's and torch's own types, and an instance's real dictionary.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from inspect import CO_OPTIMIZED
from typing import Any, cast

_OF_TYPE = vars(type)
_MRO, _NAME, _FLAGS, _CLASS_DICT, _MODULE = (
    _OF_TYPE[name].__get__
    for name in ("__mro__", "__name__", "__flags__", "__dict__", "__module__")
)
#: `issubclass` without the hooks of metaclasses.
_DERIVES = type.__subclasscheck__
_MODULE_DICT = vars(types.ModuleType)["__dict__"].__get__
_ERROR = {
    name: vars(BaseException)[name].__get__
    for name in ("__traceback__", "__cause__", "__context__", "__suppress_context__", "args")
}
#: Kinds of attributes that a type made in C has: to read one runs C's code.
_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)

#: Exception groups came with Python 3.11.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)


# --- types ---------------------------------------------------------------------------------------


def derives(kind: type, *bases: type) -> bool:
    """Whether a type is one of ``bases`` or a subclass of one, whatever these say of it."""
    return any(_DERIVES(base, kind) for base in bases)


def is_a(thing: Any, *bases: type) -> bool:
    """Whether an object's type is one of ``bases`` or a subclass of one."""
    return derives(type(thing), *bases)


def mro(kind: type) -> tuple[type, ...]:
    """The classes that a type inherits from, itself first."""
    return cast("tuple[type, ...]", _MRO(kind))


def name_of(kind: type) -> str:
    """A type's name."""
    return cast(str, _NAME(kind))


def module_of(kind: type) -> str:
    """The name of the module that a type says it is of; "" where it names none.

    On Python 3.10 a type made in C may have a slot of its objects there: Cython's functions have.
    """
    try:
        module = _MODULE(kind)
    except AttributeError:  # deleted
        return ""
    return module if type(module) is str else ""


def in_python(kind: type) -> bool:
    """Whether a class statement made the type (Py_TPFLAGS_HEAPTYPE)."""
    return bool(_FLAGS(kind) & (1 << 9))


def class_attributes(kind: type) -> Mapping[str, Any]:
    """What a class itself defines."""
    return cast("Mapping[str, Any]", _CLASS_DICT(kind))


def find(kind: type, name: str) -> Any:
    """What a type or one of its bases defines as ``name``; None for nothing."""
    for base in mro(kind):
        inside = class_attributes(base)
        if name in inside:
            return inside[name]
    return None


# --- attributes ----------------------------------------------------------------------------------


def slot(thing: Any, name: str) -> Any:
    """An attribute that the object's type keeps in C; None where it has none of that name."""
    kept = find(type(thing), name)
    return kept.__get__(thing) if type(kept) in _SLOTS else None


def attributes(thing: Any, base: type) -> dict[str, Any]:
    """An object's own attributes, from the slot that its type inherits from ``base``."""
    return cast("dict[str, Any]", class_attributes(base)["__dict__"].__get__(thing))


def entries(mapping: Any) -> list[tuple[Any, Any]]:
    """What a dictionary, or a subclass's object, has in it; nothing for any other object."""
    return list(dict.items(mapping)) if is_a(mapping, dict) else []


def names(mapping: Any) -> list[tuple[str, Any]]:
    """Those of `entries` whose keys are names."""
    return [(name, value) for name, value in entries(mapping) if type(name) is str]


def module_attributes(module: Any) -> dict[str, Any]:
    """What is in a module, as far as it is loaded; empty for what is no module."""
    if not is_a(module, types.ModuleType):
        return {}
    return cast("dict[str, Any]", _MODULE_DICT(module) or {})


def module_file(module: Any) -> str | None:
    """The file that a module says it is from."""
    file = dict.get(module_attributes(module), "__file__")
    return file if type(file) is str else None


def local_variables(frame: types.FrameType) -> list[tuple[str, Any]]:
    """The names and values of a frame's own variables."""
    found: Any = frame.f_locals
    if frame.f_code.co_flags & CO_OPTIMIZED:
        return list(found.items())
    # A class body's, or those of ``exec``: any mapping that somebody has made.
    return names(found)


def running_variables(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Those of a frame that may still run; none where to read them would change them.

    Up to Python 3.12 ``f_locals`` is a dictionary that stays with the frame, and holds what is in
    it: it is emptied here. It is also what ``locals()`` has returned there, and what a trace
    function's frame is filled from afterwards: such frames are not read.
    """
    code, caller = frame.f_code, frame.f_back
    if _COPIED and code.co_flags & CO_OPTIMIZED:
        if frame.f_trace is not None or (caller is not None and caller.f_trace is not None):
            return []
        if not _READING.isdisjoint(code.co_names):
            return []
    found: Any = frame.f_locals
    if not code.co_flags & CO_OPTIMIZED:
        # A module's names are found there; a class body's, or those of ``exec``, are its own.
        return [] if found is frame.f_globals else names(found)
    variables = list(found.items())
    if _COPIED and sys.getrefcount(found) <= 3:  # the frame's, ours, and the call's
        found.clear()
    return variables


#: Whether ``f_locals`` of a function is a copy.
_COPIED = sys.version_info < (3, 13)
#: What code uses that has, or may have, asked for its variables as a dictionary.
_READING = frozenset({"locals", "vars", "dir", "eval", "exec"})


# --- exceptions ----------------------------------------------------------------------------------


def traceback(error: BaseException) -> types.TracebackType | None:
    """An exception's traceback."""
    return cast("types.TracebackType | None", _ERROR["__traceback__"](error))


def message(error: BaseException) -> str:
    """The texts that an exception was made with, a line each. Its ``__str__`` is its own code."""
    texts = (each for each in _ERROR["args"](error) if is_a(each, str))
    return "\n".join(map(str.__str__, texts))


def linked(error: BaseException, *, shown: bool = False) -> Iterator[BaseException]:
    """An exception with its causes and contexts, and those of a group. Each once.

    With ``shown`` without the contexts that a traceback does not show, after ``raise … from …``.
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
