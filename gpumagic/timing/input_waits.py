"""Whether a ``for`` loop may wait for its input: not where it loops over a container."""

from __future__ import annotations

import ast
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
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
