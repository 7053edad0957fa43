"""Reduce objects that cloudpickle refuses, or would not restore as they were."""

from __future__ import annotations

import _thread
import array
import collections
import contextvars
import gc
import importlib
import io
import pickle
import sys
import types
import typing
import weakref
from typing import Any

from gpumagic.restart.variables import constructors

VIEWS: dict[type, str] = {
    type(made): kind
    for kind in ("keys", "values", "items")
    for made in (getattr({}, kind)(), getattr(collections.OrderedDict(), kind)())
}
LOCKS: dict[Any, Any] = {
    type(_thread.allocate_lock()): _thread.allocate_lock,
    _thread.RLock: _thread.RLock,
}


class Cell:
    """A closure's cell, which stays empty until all that may refer to it exists."""

    def __reduce__(self) -> Any:
        return types.CellType, ()


def content(cell: Any) -> tuple[Any, ...]:
    """Return a cell's content in a tuple, which is empty for an empty cell."""
    try:
        return (cell.cell_contents,)
    except ValueError:  # not assigned yet
        return ()


class Mapped:
    """A map of a file, the same one for all arrays in it."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._arguments = arguments

    def __reduce__(self) -> Any:
        return constructors.mapped, self._arguments


def map_of(array: Any, numpy: Any) -> Any:
    """Return the outermost `numpy.memmap` that contains an array; None for other arrays."""
    found = None
    while array is not None:
        if isinstance(array, numpy.memmap):
            found = array
        array = getattr(array, "base", None) if isinstance(array, numpy.ndarray) else None
    return found


def state(generator: Any) -> bytes:
    """Return the state of torch's random generator as bytes."""
    return bytes(generator.get_state().tolist())


def lock(value: Any) -> Any:
    """Reduce a lock that is free to a new one."""
    free = value.acquire(blocking=False)
    if free:
        value.release()
    kind: Any = type(value)
    if not free or (kind is _thread.RLock and value._is_owned()):
        raise pickle.PicklingError("a lock that is held")
    return LOCKS[type(value)], ()


#: Python 3.13 and newer: what a `threading.Thread` has of the thread that it runs.
HANDLES: list[type] = [*filter(None, [getattr(_thread, "_ThreadHandle", None)])]


def thread_handle(value: Any) -> Any:
    """Reduce the handle of a thread that has not started, or has ended."""
    if value.ident and not value.is_done():
        raise pickle.PicklingError("a running thread")
    return constructors.thread_handle, (value.ident,)


def view(value: memoryview) -> Any:
    """Reduce a memoryview to one of the same object."""
    of = value.obj
    if memoryview(of).nbytes != value.nbytes:
        raise pickle.PicklingError("a memoryview of a part of an object")
    if not value.c_contiguous:
        raise pickle.PicklingError("a memoryview in another order than the object's memory")
    numpy: Any = sys.modules.get("numpy")
    kinds = (bytes, bytearray, array.array, getattr(numpy, "ndarray", bytes))
    if type(of) not in kinds or len(value.format) != 1:
        raise pickle.PicklingError(f"a memoryview of a {type(of).__name__}")
    shape = value.shape if value.ndim != 1 or value.format != "B" else None
    return constructors.view, (of, value.format, shape)


def slots(kind: type) -> tuple[Any, set[str]]:
    """Return the ``__slots__`` of a class, None without; and the names of their descriptors."""
    members = [n for n, m in vars(kind).items() if isinstance(m, types.MemberDescriptorType)]
    names = vars(kind).get("__slots__")
    if names is not None and not isinstance(names, (str, tuple, list, dict)):
        names = members  # an iterator, at its end
    return names, {*members}


def parametrized(value: Any, parametrize: Any) -> Any:
    """Reduce a torch module with parametrizations, for which torch makes a class."""
    kind = parametrize.type_before_parametrizations(value)
    if kind is type(value):
        return NotImplemented
    return (
        object.__new__,
        (kind,),
        dict(value.__dict__),
        None,
        None,
        constructors.set_parametrized,
    )


def dict_view(value: Any) -> Any:
    """Reduce the keys, values or items of a dictionary to those of the same dictionary."""
    found = [each for each in gc.get_referents(value) if isinstance(each, dict)]
    if len(found) != 1:
        return NotImplemented
    return constructors.dict_view, (VIEWS[type(value)], found[0])


def file(value: io.IOBase) -> Any:
    """Reduce a standard stream to that of the new process; refuse what is open."""
    for name in ("stdin", "stdout", "stderr"):
        if value is getattr(sys, name):
            return getattr, (sys, name)
    if not isinstance(value, (io.StringIO, io.BytesIO)):
        raise pickle.PicklingError("an open file")  # cloudpickle would copy its content
    return NotImplemented


def module(value: types.ModuleType) -> Any:
    """Reduce a module of a special class, as ``torch.backends.cudnn``, to its import."""
    found = sys.modules.get(value.__name__) is value
    return (importlib.import_module, (value.__name__,)) if found else NotImplemented


def finalizer(value: weakref.finalize[Any, Any]) -> Any:
    """Refuse an object with a finalizer, a temporary folder for example."""
    raise pickle.PicklingError("something that is cleaned up when the process ends")


def proxy(value: Any) -> Any:
    """Reduce a mappingproxy to one of the same dictionary."""
    found = [each for each in gc.get_referents(value) if isinstance(each, dict)]
    return NotImplemented if len(found) != 1 else (types.MappingProxyType, (found[0],))


def reference(value: Any) -> Any:
    """Reduce a weak reference to one of the same object."""
    if value() is None or value.__callback__ is not None:
        raise pickle.PicklingError("a weak reference with a callback, or to what is gone")
    return weakref.ref, (value(),)


def new_type(value: Any) -> Any:
    """Reduce a `typing.NewType` of the notebook, which pickle looks for in its module."""
    if value.__module__ != "__main__":
        return NotImplemented
    return typing.NewType, (value.__name__, value.__supertype__), dict(value.__dict__)


#: Type parameters that cloudpickle leaves to pickle, which looks for them in their module.
PARAMETERS = [
    getattr(typing, name) for name in ("ParamSpec", "TypeVarTuple") if hasattr(typing, name)
]


def type_parameter(value: Any) -> Any:
    """Reduce a type parameter of the notebook to a new one of its name."""
    found = getattr(sys.modules.get(value.__module__), value.__name__, None) is value
    return NotImplemented if found else (type(value), (value.__name__,))


def default(variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    """Return the default of a context variable in a tuple, which is empty without one."""
    try:
        return (contextvars.Context().run(variable.get),)
    except LookupError:
        return ()


def scheduler(value: Any, torch: Any) -> Any:
    """Reduce a learning-rate scheduler, which has replaced its optimizer's ``step``."""
    kind = type(value)
    module = getattr(torch.optim, "lr_scheduler", None)
    if not isinstance(value, getattr(module, "LRScheduler", ())):
        return NotImplemented
    optimizer = vars(value).get("optimizer")
    plain = all(getattr(kind, name) is getattr(object, name) for name in _REDUCE)
    watched = "_wrapped_by_lr_sched" in vars(vars(optimizer or kind).get("step", kind))
    if not plain or not watched or hasattr(kind, "__setstate__"):
        return NotImplemented
    reduced: Any = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    make, arguments, attributes, *items = reduced
    state = attributes, vars(optimizer).get("_opt_called", False)
    return make, arguments, state, *items, constructors.set_scheduler


_REDUCE = ("__reduce__", "__reduce_ex__")
#: Pickle asks an object for ``__setstate__`` before it has any attribute, and before Python 3.11
#: also for ``__getstate__``: a ``__getattr__`` that passes on to an attribute never ends, one that
#: raises something else ends the pickle.
_OWN_WAYS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__")


def looks_attributes_up(kind: type) -> bool:
    """Return whether a class has a ``__getattr__`` and no way of pickling of its own.

    Of plain objects, or of dictionaries or lists.
    """
    names = [name for base in kind.__mro__[:-1] for name in vars(base)]
    has_own_way = any(name in names for name in (*_OWN_WAYS, "__getnewargs_ex__"))
    known = all(base in _BARE or base.__flags__ & (1 << 9) for base in kind.__mro__)
    return "__getattr__" in names and not has_own_way and known


#: What classes may inherit from for their objects to be made anew by it, without arguments.
_BARE = (object, dict, list)


def past_getattr(value: Any) -> Any:
    """Reduce an object of a class that `looks_attributes_up`, without looking attributes up."""
    kind = type(value)
    base = next(each for each in (dict, list, object) if issubclass(kind, each))
    state = attributes(value)
    items = list.__iter__(value) if base is list else None
    pairs = iter(dict.items(value)) if base is dict else None
    return base.__new__, (kind,), state, items, pairs, constructors.set_attributes


def attributes(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give an object's attributes and slots, past its ``__getattr__``."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        attributes = {}
    slots = {}
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    slots[name] = member.__get__(value)
                except AttributeError:  # a slot that was never set
                    continue
    return attributes, slots


#: Classes whose objects load in any process.
PLAIN = {*LOCKS, *HANDLES, *VIEWS, memoryview, Cell, Mapped}
PLAIN |= {types.ModuleType, io.BytesIO, io.StringIO}
