"""Whether a ``for`` loop may wait for its input: not where it loops over a container."""

from __future__ import annotations

import ast
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import FunctionType
from typing import Any

from gpumagic.system import introspection

#: Types whose next value is there.
_CONTAINERS = frozenset(
    {
        *(list, tuple, dict, set, frozenset, range, str, bytes, bytearray),
        *(deque, OrderedDict, defaultdict),
        *map(type, ({}.keys(), {}.values(), {}.items())),
        *map(type, (iter([]), iter(()), iter({}), iter({1}), iter(range(1)), iter(""), iter(b""))),
    }
)
#: Functions that return one, and those whose values are those of their arguments.
_MADE = frozenset({"range", "list", "tuple", "dict", "set", "frozenset", "sorted", "str", "bytes"})
_PASSED_ON = frozenset({"enumerate", "zip", "reversed"})
_METHODS = frozenset({"items", "keys", "values", "split", "splitlines"})
_DISPLAYS = (
    *(ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.ListComp, ast.SetComp, ast.DictComp),
)


def is_container(iterated: ast.expr, names: Mapping[str, Any], is_in_names: bool = True) -> bool:
    """Return whether the expression certainly is a container, or passes the values of some on.

    ``names`` are the cell's; ``is_in_names``: the expression's names are among these, since it is
    not in a function. No code of the user's runs.
    """
    if isinstance(iterated, _DISPLAYS):
        return True
    if isinstance(iterated, ast.Name):
        return is_in_names and type(names.get(iterated.id)) in _CONTAINERS
    if isinstance(iterated, ast.Subscript):
        is_slice = isinstance(iterated.slice, ast.Slice)
        return is_slice and is_container(iterated.value, names, is_in_names)
    if not isinstance(iterated, ast.Call):
        return False
    called = iterated.func
    if isinstance(called, ast.Attribute):
        return called.attr in _METHODS
    if not isinstance(called, ast.Name) or called.id in names:  # the user's own function
        return False
    if called.id in _PASSED_ON:
        return all(is_container(each, names, is_in_names) for each in iterated.args)
    return called.id in _MADE


#: Functions that compute nothing before the first value is asked for, and the cheap `range`.
_LAZY = _PASSED_ON | {"iter", "map", "filter", "aiter", "range"}
#: Modules whose classes are made without asking what they iterate for a value.
_LAZY_MODULES = ("itertools.", "tqdm.", "torch.utils.data.")
_FLAGS = CO_GENERATOR | CO_ASYNC_GENERATOR


def is_at_hand(iterated: ast.expr, names: Mapping[str, Any], is_in_names: bool = True) -> bool:
    """Return whether evaluating the expression certainly takes no time: its values alone may.

    For ``names`` and ``is_in_names`` see `is_container`.
    """
    if isinstance(iterated, (ast.Name, ast.Attribute, ast.Constant, ast.Lambda)):
        return True
    if isinstance(iterated, ast.Starred):
        return is_at_hand(iterated.value, names, is_in_names)
    if isinstance(iterated, ast.GeneratorExp):  # evaluates what its first loop is over
        return is_at_hand(iterated.generators[0].iter, names, is_in_names)
    if not isinstance(iterated, ast.Call) or not _is_lazy(iterated.func, names, is_in_names):
        return False
    arguments = [*iterated.args, *(each.value for each in iterated.keywords)]
    return all(is_at_hand(each, names, is_in_names) for each in arguments)


def _is_lazy(function: ast.expr, names: Mapping[str, Any], is_in_names: bool) -> bool:
    """Return whether a call computes nothing: a generator, or a class that is known for it."""
    if isinstance(function, ast.Name) and function.id not in names:
        return function.id in _LAZY
    called: Any = _object(function, names) if is_in_names else None
    if type(called) is FunctionType:
        return bool(called.__code__.co_flags & _FLAGS)
    if not introspection.is_a(called, type):
        return False
    return f"{introspection.module_of(called)}.".startswith(_LAZY_MODULES)


def _object(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return what a name, or a name in a module, refers to; None if that is not known."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute):
        module = _object(expression.value, names)
        return introspection.module_attributes(module).get(expression.attr)
    return None
