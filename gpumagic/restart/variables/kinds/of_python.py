"""Rules for Python's own classes, and tqdm's bars; with what makes the objects again."""

from __future__ import annotations

import enum
import functools
import importlib
import io
import os
import sys
import threading
import types
import typing
import weakref
from typing import Any

from gpumagic.restart.variables.kinds import refused
from gpumagic.restart.variables.kinds.refused import Refused
from gpumagic.restart.variables.kinds.rules import (
    Pickling,
    Reduced,
    Rule,
    set_variables,
    with_variables,
)
from gpumagic.system import introspection

#: Files of Python's own: a closed one is kept, as closed.
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom)

# --- functions and classes ------------------------------------------------------------------------


def _code(code: types.CodeType, pickler: Pickling) -> Reduced:
    """Reduce code with the name of its cell: cloudpickle drops it, and with it the source."""
    pickler.cells.add(code.co_filename)
    make, arguments = pickler.dispatch_table[types.CodeType](code)
    return make, tuple(code.co_filename if e == "<dynamic-code>" else e for e in arguments)


def _cell(cell: types.CellType, _: Pickling) -> Reduced:
    """Reduce a cell that is filled afterwards, since what is in it may refer to it."""
    try:
        return types.CellType, (), (None, {"cell_contents": cell.cell_contents})
    except ValueError:  # it is empty
        return types.CellType, ()


def _function(function: types.FunctionType, pickler: Pickling) -> Any:
    """Reduce a function with its cells, which it may share; cloudpickle gives it new ones.

    It comes back also where one of its globals is a variable that cannot.
    """
    if "_torchdynamo_orig_callable" in vars(function):
        raise Refused("a compiled function; compile it again", function)
    reduced = pickler.default(function)
    if reduced is NotImplemented:
        return reduced
    make, (*arguments, _), (variables, state), *more = reduced
    used = state["__globals__"].items()
    state["__globals__"] = {n: each for n, each in used if (n, id(each)) not in pickler.absent}
    state["__closure__"] = None  # so that cloudpickle fills none
    return make, (*arguments, function.__closure__), (variables, state), *more


def _cached(function: Any, _: Pickling) -> Reduced | None:
    """Reduce a function of the notebook with ``functools.lru_cache``, without what is cached."""
    if function.__module__ != "__main__":
        return None
    options = function.cache_parameters()
    arguments = function.__wrapped__, options["maxsize"], options["typed"]
    made = vars(_cached_again(*arguments))
    own = {name: each for name, each in vars(function).items() if name not in made}
    return _cached_again, arguments, own or None, None, None, set_variables


def _cached_again(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _class(kind: Any, pickler: Pickling) -> Any:
    """Reduce a class with its full name, and its slots, which are set when it is made."""
    reduced = pickler.default(kind)
    if reduced is not NotImplemented and len(reduced) > 2:
        reduced[2][0]["__qualname__"] = kind.__qualname__
        named = typing.NamedTuple in getattr(kind, "__orig_bases__", ())
        if "__slots__" in vars(kind) and not named:
            reduced[1][3]["__slots__"] = kind.__slots__
        if introspection.is_a(kind, enum.EnumMeta):
            return _enum(kind, reduced)
    return reduced


def _enum(kind: enum.EnumMeta, reduced: Reduced) -> Reduced:
    """Reduce an enum with its aliases and what its members have: cloudpickle has their values."""
    make, arguments, state, *more, set_state = reduced
    members: dict[str, Any] = dict(kind.__members__)
    values = arguments[3]
    values.clear()
    for name, each in members.items():
        values[name] = each._value_
        state[0].pop(name, None)
    if "_generate_next_value_" in vars(kind):
        state[0]["_generate_next_value_"] = vars(kind)["_generate_next_value_"]
    own = {name: vars(each) for name, each in members.items()}
    return make, arguments, (set_state, state, own), *more, _set_enum


def _set_enum(kind: enum.EnumMeta, state: tuple[Any, Any, dict[str, dict[str, Any]]]) -> None:
    set_state, of_class, own = state
    set_state(kind, of_class)
    for name, variables in own.items():
        set_variables(kind.__members__[name], variables)


def _module(module: types.ModuleType, _: Pickling) -> Reduced | None:
    name = introspection.imported_as(module)
    return None if name is None else (importlib.import_module, (name,))


# --- objects --------------------------------------------------------------------------------------


def _file(file: Any, _: Pickling) -> Reduced | None:
    if type(file) in (io.StringIO, io.BytesIO):
        return None
    if not file.closed:  # cloudpickle would copy what it contains
        raise Refused("an open file", file)
    # A number opens that descriptor.
    if type(file) not in _FILES or type(file.name) is int:
        return None
    return _closed_file, (file.name, file.mode, getattr(file, "encoding", None))


def _closed_file(name: Any, mode: str, encoding: str | None) -> Any:
    """Make a closed file, of which only what it was remains."""
    with open(name, mode, encoding=encoding, opener=_nothing) as file:
        return file


def _nothing(*_: object) -> int:
    return os.open(os.devnull, os.O_RDWR)


def _lock(lock: Any, _: Pickling) -> Reduced:
    """Reduce a lock that nobody holds to a new one."""
    is_owned = getattr(lock, "_is_owned", None)  # a lock that its owner may take once more has it
    if (is_owned and is_owned()) or not lock.acquire(blocking=False):
        raise Refused("a lock that is held", lock)
    lock.release()
    return threading.RLock if is_owned else threading.Lock, ()


def _bar(bar: Any, _: Pickling) -> Reduced:
    """Reduce a progress bar that is over: a new one would take a line of the screen."""
    if not refused.is_over(bar):
        raise Refused("a progress bar that goes on", bar)
    return object.__new__, (type(bar),), vars(bar), None, None, set_variables


def _reference(reference: Any, _: Pickling) -> Reduced | None:
    is_plain = type(reference) is weakref.ref and reference.__callback__ is None
    return (weakref.ref, (reference(),)) if is_plain and reference() is not None else None


def _proxy(proxy: Any, _: Pickling) -> Reduced:
    return weakref.proxy, (proxy.__reduce_ex__.__self__,)


def _object(value: Any, pickler: Pickling) -> Reduced | None:
    """Reduce an object that its class would not give all its variables, or not in time.

    Objects share variables by ``self.__dict__ = Class.state``. An object computes attributes by
    ``__getattr__``, as a wrapper does: it gets its own variables first when it is loaded.
    """
    find, kind = introspection.find, type(value)
    own = [find(kind, each) is not vars(object)[each] for each in ("__reduce_ex__", "__reduce__")]
    if kind in pickler.dispatch_table:
        return None
    if any(own):
        return _of_subclass(value, "__reduce_ex__" if own[0] else "__reduce__")
    if find(kind, "__setstate__") is not None:
        return None
    is_shared = _references(value) > _references(_ALONE)
    if not is_shared and type(find(kind, "__getattr__")) is not types.FunctionType:
        return None
    make, arguments, state, *parts = value.__reduce_ex__(5)
    if is_shared and state is introspection.slot(value, "__dict__"):
        return make, arguments, state, *parts, _set_shared_variables
    if type(state) is not dict or any(parts):
        return None
    return make, arguments, state, None, None, set_variables


def _of_subclass(value: Any, method: str) -> Reduced | None:
    """Reduce an object of a subclass of `collections.Counter`, `datetime.datetime` or the like.

    By this method, these classes of Python's have an object made by a call, without its variables.
    """
    kind, variables = type(value), introspection.slot(value, "__dict__")
    if not variables or introspection.is_a(kind, enum.EnumMeta):  # the class has its members
        return None
    owner = next(e for e in introspection.mro(kind) if method in introspection.class_attributes(e))
    if introspection.module_of(owner).partition(".")[0] not in sys.stdlib_module_names:
        return None
    reduced = value.__reduce_ex__(5)
    if type(reduced) is not tuple or reduced[0] is not kind:
        return None
    state = (*reduced, None)[2]
    has_them = dict in map(type, state if type(state) is tuple else (state,))
    return None if has_them else with_variables(reduced, variables)


class _Alone:
    """Its objects share their variables with none."""


_ALONE = _Alone()


def _references(value: object) -> int:
    """Return how many references there are to the dictionary of an object's variables; 0: none."""
    variables = introspection.slot(value, "__dict__")
    return 0 if variables is None else sys.getrefcount(variables)


def _set_shared_variables(made: object, variables: dict[str, Any]) -> None:
    object.__setattr__(made, "__dict__", variables)


RULES: dict[str, Rule] = {
    "types:CodeType": _code,
    "types:CellType": _cell,
    "types:FunctionType": _function,
    "functools:_lru_cache_wrapper": _cached,
    "builtins:type": _class,
    "types:ModuleType": _module,
    "_io:_IOBase": _file,
    "_thread:LockType": _lock,
    "_thread:RLock": _lock,
    "tqdm.std:tqdm": _bar,
    "weakref:ReferenceType": _reference,
    "weakref:ProxyType": _proxy,
    "weakref:CallableProxyType": _proxy,
    "builtins:object": _object,
}
