"""Tell whether memory that no variable holds is garbage or in use, for `holders`.

Objects that refer to each other, and to which nothing else refers, are garbage: they live until
Python's collector runs. Garbage is found as the collector finds it, without collecting: an object
with more references than those of garbage is in use, and so is all that it leads to. The collector
looks at all objects; here it is the tensors in question, and what refers to them, as far up as that
leads. To ask what refers to some objects is one pass over all objects of the process, in C.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable, Iterator, Set
from itertools import chain, compress
from types import FrameType
from typing import Any, NamedTuple

from gpumagic.cells import tracebacks
from gpumagic.cells.tracebacks import CellOf
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.pytorch.tensors import plain_functions
from gpumagic.memory.objects.blocks import BlockIndex, Blocks
from gpumagic.memory.objects.object_graph import ObjectGraph
from gpumagic.memory.objects.torch_graph import TorchGraph
from gpumagic.memory.objects.walk import ObjectId, Walk

#: The objects of which one pass looks for what refers to them: each takes time, and each pass does.
_PER_PASS = 32


class Unreferenced(NamedTuple):
    """The blocks that no variable leads to. Those that C++ alone holds are in neither set."""

    garbage: Set[BlockIndex]
    live: Set[BlockIndex]


def unreferenced(
    blocks: Blocks, owned: Set[BlockIndex], walk: Walk, *, collected: bool = False
) -> Unreferenced | None:
    """Tell garbage from memory in use, in blocks that are not ``owned``; None if it takes too long.

    Args:
        blocks: The allocated blocks.
        owned: Those that a variable leads to.
        walk: A walk that has not begun.
        collected: Whether Python's collector has just run: there is no garbage.
    """
    tensors = _tensors(blocks, owned)
    walk.visit(tensors)
    searched = set[ObjectId]()
    while not (walk.ended or walk.is_late()):
        graph = ObjectGraph(walk)
        held = {*graph.things} if collected else graph.held_elsewhere([tensors], running=True)
        in_use = graph.reached(held & searched)
        # What leads to those that may be garbage as yet, and is held by what is not known yet.
        unknown = graph.above({*map(id, tensors)} - in_use) & held - searched
        if collected or not unknown:
            in_use = graph.reached(held) | graph.staying()
            live = graph.blocks(in_use) - owned
            return Unreferenced(graph.blocks(graph.things.keys() - in_use) - owned - live, live)
        newest = [*filter(unknown.__contains__, map(id, walk.things))][-_PER_PASS:]
        searched.update(newest)
        _visit_referrers(walk, graph, newest, tensors)
    return None


def _tensors(blocks: Blocks, owned: Set[BlockIndex]) -> list[Any]:
    """Return Python's tensors whose blocks are not ``owned``."""
    address, known = TorchGraph().address, {None, *owned}
    with plain_functions():
        found = objects_of(torch_cuda.module().Tensor)
        return [each for each in found if blocks.find(address(each)) not in known]


def _visit_referrers(
    walk: Walk, graph: ObjectGraph, keys: Iterable[ObjectId], ours: list[Any]
) -> None:
    """Visit what refers to some of a graph's objects, but for running code and ``ours``."""
    things = [graph.things[key] for key in keys]
    own = (things, ours, *vars(walk).values(), *walk.kinds.values(), *vars(graph).values())
    left_out = {*map(id, chain(own, _running_frames()))}
    walk.visit([each for each in gc.get_referrers(*things) if id(each) not in left_out])


def objects_of(base: type) -> list[Any]:
    """Return all objects of a type and of those that derive from it."""
    kinds = [base]
    for kind in kinds:  # which grows; by `type`: a metaclass may have its own
        kinds += type.__subclasses__(kind)
    derived, things = {*map(id, kinds)}, gc.get_objects()
    return [*compress(things, map(derived.__contains__, map(id, map(type, things))))]


def _running_frames() -> Iterator[FrameType]:
    frame: FrameType | None
    for frame in sys._current_frames().values():
        while frame:
            yield frame
            # At last it is None: a frame that refers to itself lives on, with its variables.
            frame = frame.f_back


def running_threads(cell_of: CellOf | None) -> Iterator[str]:
    """Yield what other threads run of the user's: ``thread engine runs In[3] line 2 in serve``.

    Their variables are not read: before Python 3.13 that may change them.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frame: FrameType | None
    for ident, frame in sys._current_frames().items():
        while frame and not tracebacks.is_users(frame.f_code.co_filename, cell_of):
            frame = frame.f_back
        if frame and ident != threading.get_ident():
            where = tracebacks.described(frame, frame.f_lineno, cell_of)
            yield f"thread {names.get(ident, ident)} runs {where}"
