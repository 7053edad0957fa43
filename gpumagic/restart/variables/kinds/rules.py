"""A rule says how objects of a class are pickled; the modules beside this have them, in tables.

A table names classes as ``module:name``. Those of a library that is not loaded have no objects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, TypeVar

from gpumagic.system import introspection

_T = TypeVar("_T")
#: What ``__reduce_ex__`` returns.
Reduced = tuple[Any, ...]


class Pickling(Protocol):
    """What the rules need of a `Pickler`."""

    mapped_files: Any
    dispatch_table: Any
    #: The files of the code that is pickled.
    cells: set[str]
    #: Name and id of each variable that functions do without.
    absent: Collection[tuple[str, int]]

    def default(self, value: Any) -> Any:
        """Return how cloudpickle reduces an object; `NotImplemented` leaves it to pickle."""


#: Returns how an object is reduced; None leaves it to the rules of its other bases, and at last to
#: pickle. Raises `Refused` where it cannot be kept.
Rule = Callable[[Any, Pickling], "Reduced | None"]

#: The methods that decide how an object is pickled.
_REDUCING = ("__reduce_ex__", "__reduce__", "__getstate__")


def of(kind: type, table: Mapping[str, _T]) -> list[_T]:
    """Return what a table has for a class and its bases, that of the class itself first."""
    known = dict[type, _T]()
    for place, entry in table.items():
        module, _, name = place.partition(":")
        base: Any = introspection.module_attributes(sys.modules.get(module)).get(name)
        known[base] = entry
    return [known[base] for base in introspection.mro(kind) if base in known]


def reduces_as(kind: type, base: type) -> bool:
    """Return whether objects of a class are pickled as those of a base of it."""
    find = introspection.find  # Python 3.10's objects have no ``__getstate__``
    return all(find(kind, each) is find(base, each) for each in _REDUCING)


def with_variables(reduced: Reduced, variables: dict[str, Any]) -> Reduced:
    """Return how an object is reduced with these of its variables, which its class leaves out."""
    make, arguments, state, items, entries = (*reduced, None, None, None)[:5]
    return make, arguments, (state, variables), items, entries, _set_with_variables


def _set_with_variables(made: Any, state: tuple[Any, dict[str, Any]]) -> None:
    of_class, variables = state
    if of_class is not None:
        made.__setstate__(of_class)
    set_variables(made, variables)


def set_variables(made: object, variables: dict[str, Any]) -> None:
    """Set the variables of an object without asking its class, when all they refer to is made."""
    vars(made).update(variables)
