"""Rules for arrays that have no memory of their own or are of a subclass, and for DataFrames."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, cast

from gpumagic.restart.variables.kinds.refused import Refused
from gpumagic.restart.variables.kinds.rules import (
    Pickling,
    Rule,
    reduces_as,
    set_variables,
    with_variables,
)
from gpumagic.system import host_memory, introspection

if TYPE_CHECKING:
    from numpy.typing import NDArray


def address(array: NDArray[Any]) -> int:
    """Return where in memory the first element of an array is."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def is_view(array: NDArray[Any]) -> bool:
    """Return whether an array is in the memory of another one, which is in one piece."""
    owner = _owner(array)
    if owner is array or not owner.flags.forc or not array.nbytes:
        return False
    return bool(owner.flags.writeable or not array.flags.writeable)


def _owner(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array whose memory this one is in: itself, where it is in no other's."""
    base: Any = array.base
    if introspection.name_of(type(base)) == "DummyArray":  # of numpy.lib.stride_tricks
        base = base.base
    return _owner(base) if type(base) is sys.modules["numpy"].ndarray else array


def _array(array: Any, pickler: Pickling) -> Any:
    """Reduce an array to a view of another one, or with its attributes: NumPy keeps the values."""
    kind, ndarray = type(array), sys.modules["numpy"].ndarray
    if mapped := pickler.mapped_files.reduced(array):
        return mapped
    if not reduces_as(kind, ndarray):
        return None
    if kind is not ndarray:
        made = _of_subclass, (array.view(ndarray), kind)
        return *made, getattr(array, "__dict__", None), None, None, set_variables
    if not is_view(array):
        return None
    owner = _owner(array)
    place = address(array) - address(owner), array.shape, array.strides
    return _view, (owner, array.dtype, place, array.flags.writeable)


def _of_subclass(array: NDArray[Any], kind: type[NDArray[Any]]) -> NDArray[Any]:
    return array.view(kind)


def _view(
    base: NDArray[Any],
    dtype: Any,
    place: tuple[int, tuple[int, ...], tuple[int, ...]],
    writeable: bool,
) -> NDArray[Any]:
    """Make an array in the memory of another, at an offset in bytes, with a shape and strides."""
    numpy: Any = importlib.import_module("numpy")
    (offset, shape, strides), flat = place, base.ravel(order="K")
    if dtype.hasobject:  # NumPy takes no bytes for objects
        begin = flat[offset // base.itemsize :]
        made = numpy.lib.stride_tricks.as_strided(begin, shape, strides)
    else:
        made = numpy.ndarray(shape, dtype, flat.view("u1"), offset, strides)
    if not writeable:
        made.flags.writeable = False
    return cast("NDArray[Any]", made)


def _data_of_frame(manager: Any, _: Pickling) -> Any:
    """Reduce a copy of what other DataFrames share.

    pandas copies it before it writes to it, by references, which are not kept.

    Raises:
        Refused: there is no room for a copy.
    """
    copies = getattr(sys.modules["pandas"]._config, "using_copy_on_write", lambda: True)()
    blocks = [each for each in manager.blocks if copies and hasattr(each, "refs")]  # not pandas 1
    if not any(each.refs.has_reference() for each in blocks):
        return None
    if sum(each.values.nbytes for each in blocks) > host_memory.available():
        raise Refused("a DataFrame on shared memory; there is no room for a copy", manager)
    return manager.copy(deep=True).__reduce_ex__(5)


def _frame(value: Any, _: Pickling) -> Any:
    """Reduce a DataFrame, Series or Index with the attributes that were set on it.

    pandas leaves them out. Its own begin with an underscore, or are its class's, as ``plot`` is.
    """
    find, kind = introspection.find, type(value)
    own = {
        name: each
        for name, each in introspection.names(introspection.slot(value, "__dict__"))
        if not name.startswith("_") and find(kind, name) is None
    }
    return with_variables(value.__reduce_ex__(5), own) if own else None


RULES: dict[str, Rule] = {
    "pandas.core.generic:NDFrame": _frame,
    "pandas:Index": _frame,
    "numpy:ndarray": _array,
    "pandas.core.internals.managers:BaseBlockManager": _data_of_frame,
}
