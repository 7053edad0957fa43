"""Whether a ``for`` loop may wait for its input: not where it loops over a container."""

from __future__ import annotations

import ast
import inspect
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from types import FunctionType
from typing import Any

#: Types whose next value is there.
_CONTAINERS = frozenset(
    {
        *(list, tuple, dict, set, frozenset, range, str, bytes, bytearray),
        *(deque, OrderedDict, defaultdict),
        *map(type, ({}.keys(), {}.values(), {}.items())),
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


#: Functions that compute nothing before the first value is asked for.
_LAZY = _PASSED_ON | {"iter", "map", "filter"}


def is_at_hand(iterated: ast.expr, names: Mapping[str, Any], is_in_names: bool = True) -> bool:
    """Return whether evaluating the expression certainly takes no time: its values alone may.

    For ``names`` and ``is_in_names`` see `is_container`.
    """
    if isinstance(iterated, (ast.Name, ast.Attribute, ast.Constant, ast.Lambda)):
        return True
    if not isinstance(iterated, ast.Call) or not isinstance(iterated.func, ast.Name):
        return False
    called = names.get(iterated.func.id)
    if called is None:
        is_lazy = iterated.func.id in _LAZY
    else:
        is_function = is_in_names and type(called) is FunctionType
        is_lazy = is_function and inspect.isgeneratorfunction(called)
    return is_lazy and all(is_at_hand(each, names, is_in_names) for each in iterated.args)
