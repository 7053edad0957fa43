"""Whose memory it is that no variable leads to, for `holders`: garbage, or objects in use.

Garbage are objects in reference cycles to which nothing else refers: it is freed only when Python's
collector comes to it. It is found as the collector finds it, without collecting: what has more
references than those of objects that are themselves garbage is in use, and so is all that it leads
to. But not of all objects: from the tensors in question up, to what refers to them, as far as that
leads. A look at who refers to some objects is a pass over the whole process, in C.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from itertools import compress
from types import FrameType
from typing import Any, NamedTuple

from gpumagic.cells import tracebacks
from gpumagic.cells.tracebacks import CellOf
from gpumagic.cuda import torch_cuda
from gpumagic.cuda.storages import plain_functions, tensor_base
from gpumagic.memory.objects.blocks import Blocks
from gpumagic.memory.objects.torch_graph import TorchGraph
from gpumagic.memory.objects.walk import Name, Root, Walk
from gpumagic.system import introspection

#: The objects of which a pass looks for what refers to them: each takes time, and each pass does.
_AT_ONCE = 32


class Unreferenced(NamedTuple):
    """The places in `Blocks.all` of what no variable leads to; in neither: what C++ alone holds."""

    garbage: Set[int] = frozenset()
    live: Set[int] = frozenset()


def unreferenced(
    blocks: Blocks,
    owned: Set[int],
    make_walk: Callable[[], Walk],
    hubs: Set[int],
    *,
    collected: bool = False,
    seconds: float | None = None,
) -> Unreferenced | None:
    """Return whose the blocks are that are not ``owned``; None where that takes too long.

    Args:
        blocks: The allocated blocks.
        owned: Their places, where a variable leads to them.
        make_walk: Returns a `Walk` over the objects.
        hubs: The ids of objects in use that lead to the whole process.
        collected: Whether Python's collector has just run: there is no garbage.
        seconds: The CPU time after which it looks no further; None for any.
    """
    deadline = math.inf if seconds is None else time.thread_time() + seconds
    with plain_functions():
        start, places = _start(blocks, owned)
        if not start:
            return Unreferenced()
        garbage, waiting = set[int](), [] if collected else [*start]
        while waiting:
            chosen, waiting = waiting[-_AT_ONCE:], waiting[:-_AT_ONCE]
            found = _above(start, chosen, hubs, deadline)
            if found is None:
                return None
            # What has other references, too, also has the bit above that of the root.
            walks = [make_walk().run([Root(Name("", ""), each)], [start]) for each in found]
            if not all(walked.complete for walked in walks):
                return None
            alone = {place for place, mask in walks[0].owners.items() if mask == 1}
            alone -= owned | walks[0].staying
            garbage |= alone
            reached = alone | walks[1].owners.keys()
            waiting = [key for key in waiting if places[key] not in reached]
        rest = [thing for key, thing in start.items() if places[key] not in garbage]
        used = make_walk().run([Root(Name("", ""), rest)])
        if not used.complete:
            return None
        live = used.owners.keys() - owned  # autograd's graph may be of both
        return Unreferenced(garbage - live, live)


def _start(blocks: Blocks, owned: Set[int]) -> tuple[dict[int, Any], dict[int, int]]:
    """Return Python's tensors whose blocks are not ``owned``, and the places of these, by id."""
    graph = TorchGraph()
    found = objects_of(torch_cuda.module().Tensor)
    at = [blocks.find(graph.address(tensor, storage=False)) for tensor in found]
    places = {
        id(tensor): place
        for tensor, place in zip(found, at, strict=True)
        if place is not None and place not in owned
    }
    return {id(tensor): tensor for tensor in found if id(tensor) in places}, places


def objects_of(base: type) -> list[Any]:
    """Return all objects of a type and of those that derive from it."""
    kinds = [base]
    for kind in kinds:  # which grows; by `type`: a metaclass may have its own
        kinds += type.__subclasses__(kind)
    derived, things = {*map(id, kinds)}, gc.get_objects()
    return [*compress(things, map(derived.__contains__, map(id, map(type, things))))]


class _Above(NamedTuple):
    """What leads to some objects: garbage, and what is held from outside of what leads to them."""

    garbage: list[Any]
    held: list[Any]


def _above(
    start: dict[int, Any], chosen: list[int], hubs: Set[int], deadline: float
) -> _Above | None:
    """Return what leads to the chosen ones of ``start``, by id; None where there was no time."""
    known, searched = {key: start[key] for key in chosen}, set[int]()
    hubs = {*hubs, *map(id, _running_frames()), id(known), id(start)}
    while time.thread_time() < deadline:
        below, inside = dict[int, list[int]](), Counter[int]()
        for here in known:
            below[here] = _led_to(known, here)
            inside.update(below[here])
        outside = _outside(known, start, inside)
        held = {key for key in searched if outside[key] > 0}
        _spread(held, below)
        above: dict[int, list[int]] = {}
        for here, below_it in below.items():
            for to in below_it:
                above.setdefault(to, []).append(here)
        free = {*chosen} - held
        _spread(free, above)
        wanted = [key for key in known if key in free - searched and outside[key] > 0]
        if not wanted:
            seeds = [key for key in searched if outside[key] > 0 and not _in_cpp(known[key])]
            found = _Above([known[key] for key in free], [known[key] for key in seeds])
            known.clear()  # Python 3.12 frees it late, and a `Walk` would count its references
            return found
        searched.update(wanted[-_AT_ONCE:])
        _add_referrers(known, wanted[-_AT_ONCE:], hubs)
    return None


def _add_referrers(known: dict[int, Any], keys: list[int], hubs: Set[int]) -> None:
    """Add what refers to some of the known objects, but for the ``hubs``."""
    batch = [known[key] for key in keys]
    for each in gc.get_referrers(*batch):
        if each is not batch and id(each) not in hubs:
            known.setdefault(id(each), each)


def _led_to(known: dict[int, Any], here: int) -> list[int]:
    """Return those of the known objects to which one of them refers from Python, by id."""
    return [*filter(known.__contains__, map(id, gc.get_referents(known[here])))]


def _outside(known: dict[int, Any], start: dict[int, Any], inside: Counter[int]) -> dict[int, int]:
    """Return the number of references to each of the known objects from others, by id."""
    things = [*known.values()]
    (of_call,) = map(sys.getrefcount, [object()])
    counts = dict(zip(known, map(sys.getrefcount, things), strict=True))
    return {
        # Ours are those of the list, of `known` and of `start`.
        key: count - of_call - 1 - (key in start) - inside[key] - _by_cpp(known[key])
        for key, count in counts.items()
    }


def _by_cpp(thing: object) -> int:
    """Return 1 where C++ refers to a tensor, and so to Python's object; `Walk` counts by whom."""
    if not introspection.is_a(thing, torch_cuda.module().Tensor):
        return 0
    return int(tensor_base()._use_count(thing) > 1)


def _in_cpp(thing: object) -> bool:
    """Return whether C++ may refer to an object: it is not known to be in use by that."""
    graph, kind = TorchGraph(), type(thing)
    return graph.is_tensor(kind) or graph.is_node(kind)


def _spread(keys: set[int], edges: dict[int, list[int]]) -> None:
    """Add to ``keys`` all to which they lead."""
    work = [*keys]
    while work:
        new = {*edges.get(work.pop(), ())} - keys
        keys |= new
        work += new


def _running_frames() -> Iterator[FrameType]:
    for running in sys._current_frames().values():
        frame: FrameType | None = running
        while frame:
            yield frame
            frame = frame.f_back


def running_threads(cell_of: CellOf | None) -> Iterator[str]:
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
