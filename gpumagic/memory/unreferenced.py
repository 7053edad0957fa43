"""Whose the memory is that no variable leads to: garbage in reference cycles, or live objects.

Objects in cycles are freed only when Python's collector comes to them. Which these are is found as
the collector finds it, without collecting: what has more references than those of other objects is
held from outside, and so is all that it leads to.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Set
from itertools import chain
from types import FrameType
from typing import Any, NamedTuple, cast

from gpumagic.cells import tracebacks
from gpumagic.cuda import torch_cuda
from gpumagic.cuda.storages import plain_functions
from gpumagic.memory.torch_memory import Blocks, TorchGraph
from gpumagic.memory.walk import Name, Root, Walk
from gpumagic.system import introspection

#: The most objects of which garbage is looked for: some seconds on a slow machine.
MOST = 1_000_000


class Unreferenced(NamedTuple):
    """The places in `Blocks.all` of what no variable leads to; in neither: what C++ alone holds."""

    garbage: Set[int] = frozenset()
    live: Set[int] = frozenset()


def unreferenced(
    blocks: Blocks, owned: Set[int], make_walk: Callable[[], Walk]
) -> Unreferenced | None:
    """Return whose the blocks are that are not ``owned``; None where that takes too long.

    Python's objects are only counted where tensors among them hold such blocks.
    """
    with plain_functions():
        if not _tensors(blocks, owned):
            return Unreferenced()
        garbage = _unreachable()
        if garbage is None:
            return None
        # What has other references, too, also has the bit above that of the root.
        alone = make_walk().run([Root(Name("", "garbage"), garbage)], [])
        only = {place for place, mask in alone.owners.items() if mask == 1} - owned
        others = Root(Name("", "live"), _tensors(blocks, owned | only))
        used = make_walk().run([others])
        if not (alone.complete and used.complete):
            return None
        live = used.owners.keys() - owned  # autograd's graph may be of both
        return Unreferenced(only - live, live)


def _tensors(blocks: Blocks, owned: Set[int]) -> list[Any]:
    """Return Python's tensors whose blocks are not ``owned``."""
    graph = TorchGraph()
    found = objects_of(cast(Any, torch_cuda.loaded()).Tensor)
    places = [blocks.find(graph.address(tensor, storage=False)) for tensor in found]
    paired = zip(found, places, strict=True)
    return [tensor for tensor, place in paired if place is not None and place not in owned]


def objects_of(base: type) -> list[Any]:
    """Return all objects of a type and of those that derive from it."""
    things = gc.get_objects()
    # By `id`: the hash of a type may be the user's code.
    kinds = {id(type(thing)): type(thing) for thing in things}
    derived = {number for number, kind in kinds.items() if introspection.derives(kind, base)}
    return [thing for thing in things if id(type(thing)) in derived]


def _unreachable() -> list[Any] | None:
    """Return the objects to which only each other refer; None where there are too many to look."""
    things = gc.get_objects()
    if len(things) > MOST:
        return None
    (own,) = map(sys.getrefcount, [object()])  # that of the list, and the call's
    outside = [count - own for count in map(sys.getrefcount, things)]
    rest = dict(zip(map(id, things), things, strict=True))
    inside = Counter(_led_to(things, rest))
    counted = zip(rest, outside, strict=True)
    held = {number for number, count in counted if count > inside[number]}
    while held:
        held = set(_led_to([rest.pop(number) for number in held], rest))
    return list(rest.values())


def _led_to(things: Iterable[Any], among: Container[int]) -> Iterator[int]:
    """Yield the ids of those ``among`` that things refer to, for each reference.

    One thing at a time: its referents are a list, which may be longer than all that is kept.
    """
    referents = chain.from_iterable(map(gc.get_referents, things))
    return filter(among.__contains__, map(id, referents))


def running_threads(cell_of: tracebacks.CellOf | None) -> Iterator[str]:
    """Yield what other threads run of the user's: ``thread engine runs In[3] line 2 in serve``.

    Their variables are not read: before Python 3.13 that may change them.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, running in sys._current_frames().items():
        frame: FrameType | None = running
        while frame and not tracebacks.is_users(frame.f_code.co_filename, cell_of):
            frame = frame.f_back
        if frame and ident != threading.get_ident():
            where = tracebacks.described(frame, frame.f_lineno, cell_of)
            yield f"thread {names.get(ident, ident)} runs {where}"
