"""Whether all references to an object are known, by Python's reference counts.

As the garbage collector does it: the references in an object's count that are not from the visited
objects are from elsewhere: from C (where the list of `atexit` is), a library, running code. Whether
such memory can be freed is not known.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.storages import tensor_base
from gpumagic.system import introspection

#: The ids of the containers that a walk may leave out: dictionaries of attributes, closures.
_BETWEEN = {id(kind) for kind in (dict, list, tuple, set, types.CellType)}
#: Types whose counts are not compared: instances, code and the interpreter refer to them.
_UNCOUNTED = (type, types.ModuleType, types.FrameType, types.TracebackType)


def held_elsewhere(
    kept: Sequence[Any],
    edges: Sequence[Sequence[int]],
    numbers: Sequence[int],
    roots: Iterable[Iterable[Any]],
    places: Iterable[Any],
) -> list[int]:
    """Return those of ``numbers`` whose objects are referred to from elsewhere, too.

    Args:
        kept: The visited objects, by number.
        edges: By number, the numbers of the objects that it leads to.
        numbers: Of the objects that lead to GPU memory.
        roots: The objects that the walk began with: references of the caller's own.
        places: The objects that reference those: namespaces, and what holds the notebook's results.
            References to these do not count.
    """
    places = list(places)
    given = set(map(id, places))
    place_of = {id(kept[number]): number for number in numbers}
    own = (place_of.get(id(each)) for objects in roots for each in objects)
    known = Counter(number for number in own if number is not None)
    known.update(numbers)  # from ``kept``
    known.update(_references(kept, edges, place_of, places))
    things = [kept[number] for number in numbers]
    # What a version of Python counts for such a call is in the count of the new object, too.
    (plain,) = map(sys.getrefcount, [object()])
    found: list[int] = []
    for number, count in zip(numbers, list(map(sys.getrefcount, things)), strict=True):
        more = count - plain - known[number]
        thing = kept[number]
        if more > 0 and id(thing) not in given and not _explained(thing, more):
            found.append(number)
    return found


def _references(
    kept: Sequence[Any],
    edges: Sequence[Sequence[int]],
    place_of: dict[int, int],
    places: Iterable[Any],
) -> Iterator[int]:
    """Return the number of an object for each reference to it from a visited one."""
    array = introspection.module_attributes(sys.modules.get("numpy")).get("ndarray")
    seen = set(map(id, kept))
    seen.update(introspection.module_namespaces())
    pending = [kept[number] for number in place_of.values()]
    # A frame refers to the one that called it, which a walk leaves out.
    pending += [each for each in kept if type(each) is types.FrameType and id(each) not in place_of]
    pending += {id(each): each for each in places}.values()
    between: list[Any] = []  # kept alive, so that the ids stay their own
    while pending:
        thing = pending.pop()
        if array is not None and introspection.is_a(thing, array):
            yield from edges[place_of[id(thing)]] if id(thing) in place_of else ()
            continue
        for inner in gc.get_referents(thing):
            number = place_of.get(id(inner))
            if number is not None:
                yield number
            elif id(type(inner)) in _BETWEEN and id(inner) not in seen:
                seen.add(id(inner))
                between.append(inner)
                pending.append(inner)


def _explained(thing: Any, more: int) -> bool:
    """Return whether such an object always has ``more`` references than are known."""
    kind, torch = type(thing), torch_cuda.loaded()
    if introspection.derives(kind, *_UNCOUNTED):
        return True
    if torch is not None and introspection.derives(kind, torch.Tensor):
        # C++ that refers to a tensor (autograd, a view of it) refers once to Python's object.
        count = getattr(tensor_base(), "_use_count", None)
        return more == 1 and (count is None or count(thing) > 1)
    if torch is not None and introspection.derives(kind, torch.UntypedStorage):
        return True
    if type(thing) is dict:  # of code that is no module: all its functions refer to it
        return any(name == "__builtins__" for name, _ in introspection.names(thing))
    # Nodes of autograd's graph, which torch keeps in C++.
    return (
        not introspection.in_python(kind)
        and introspection.slot(thing, "next_functions") is not None
    )
