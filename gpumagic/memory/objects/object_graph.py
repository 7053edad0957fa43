"""Of the objects of a `Walk`, those that lead to memory: what each leads to, what else holds it."""

from __future__ import annotations

import gc
import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, compress
from typing import Any, TypeAlias

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.pytorch.tensors import plain_functions, tensor_base
from gpumagic.memory.objects.blocks import BlockIndex
from gpumagic.memory.objects.torch_graph import GRADIENTS, GRAPH
from gpumagic.memory.objects.walk import AT_ONCE, ObjectId, Walk
from gpumagic.system import introspection

_PARAMETERS = "parameters"
#: What a block is to what leads to it, the clearest last: what autograd's graph refers to is also a
#: variable's, or a model's.
_ROLES = (GRAPH, "", _PARAMETERS, GRADIENTS)
#: The objects to which running code refers, beside those that were found.
_OF_RUNNING_CODE = (types.FrameType, types.TracebackType, type)

_Edges: TypeAlias = "dict[ObjectId, list[ObjectId]]"


class ObjectGraph:
    """The objects that lead to memory, and to which of them each refers."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self.things = self._leading_to_memory()
        self.edges: _Edges = {}
        #: By role, the objects that something leads to in it.
        self._led_to: dict[str, set[ObjectId]] = {role: set() for role in _ROLES}
        parameters = self._kinds(torch_cuda.module().nn.Parameter)
        is_known = self.things.__contains__
        for here, thing in self.things.items():
            self.edges[here] = below = [*filter(is_known, map(id, gc.get_referents(thing)))]
            self._led_to[""].update(below)
            for role, to in walk.hidden.get(here, ()):
                if is_known(to):
                    below.append(to)
                    self._led_to[role].add(to)
            if id(type(thing)) in parameters:
                self._led_to[_PARAMETERS].add(here)

    def _leading_to_memory(self) -> dict[ObjectId, Any]:
        things, block_of = self._walk.things, self._walk.block_of
        memory = [*compress(things, map(block_of.__contains__, map(id, things)))]
        found, before = dict(zip(map(id, memory), memory, strict=True)), 0
        while before < (before := len(found)):
            for end in range(len(things), 0, -AT_ONCE):
                some = things[max(end - AT_ONCE, 0) : end]
                if not found.keys().isdisjoint(self._below(some)):
                    found.update(
                        (id(each), each)
                        for each in reversed(some)
                        if not found.keys().isdisjoint(self._below([each]))
                    )
        return found

    def _below(self, things: list[Any]) -> Iterator[ObjectId]:
        """Yield the objects that some refer to, also where Python's collector does not look."""
        hidden = self._walk.hidden
        yield from map(id, gc.get_referents(*things))
        for key in hidden.keys() & {*map(id, things)}:
            yield from (to for _, to in hidden[key])

    def roles(self, named: Iterable[ObjectId]) -> dict[BlockIndex, str]:
        """Return what each block is: ``parameters``, ``gradients``…, or "".

        ``named`` are the objects that variables refer to themselves.
        """
        found: dict[BlockIndex, str] = {}
        led_to = self._led_to | {"": self._led_to[""].union(named)}
        for role in _ROLES:
            found.update(dict.fromkeys(self.blocks(led_to[role]), role))
        return found

    # --- ways -------------------------------------------------------------------------------------

    def reached(self, start: Iterable[ObjectId]) -> set[ObjectId]:
        """Return all to which some objects lead, and these themselves."""
        return _reached(start, self.edges)

    def above(self, start: Iterable[ObjectId]) -> set[ObjectId]:
        """Return all that lead to some objects, and these themselves."""
        return _reached(start, _reversed(self.edges))

    def blocks(self, keys: Iterable[ObjectId]) -> set[BlockIndex]:
        """Return the blocks of some objects."""
        block_of = self._walk.block_of
        return {block_of[key] for key in block_of.keys() & keys}

    def staying(self) -> set[ObjectId]:
        """Return the objects that stay when nothing refers to them any more.

        Python's collector does not see references in C++, and breaks no cycle through one. Such a
        cycle is what ``backward(create_graph=True)`` makes: a parameter, its gradient, the graph of
        that, the parameter.
        """
        hidden, with_graph = self._walk.hidden, dict[ObjectId, ObjectId]()
        for here in self.edges.keys() & hidden.keys():
            for role, to in hidden[here]:
                if role == GRADIENTS and any(inner == GRAPH for inner, _ in hidden.get(to, ())):
                    with_graph[here] = to
        return self.reached(with_graph.keys() & self.reached(with_graph.values()))

    # --- references from elsewhere ----------------------------------------------------------------

    def held_elsewhere(
        self, holders: Iterable[Iterable[Any]], *, running: bool = False
    ) -> set[ObjectId]:
        """Return the objects to which something refers that is not here, nor one of ``holders``.

        ``running``: also frames, tracebacks and classes, to which running code refers.
        """
        known = Counter(chain(*self.edges.values()))
        known.update(id(each) for some in holders for each in some)
        things = [*self.things.values()]
        (of_call,) = map(sys.getrefcount, [object()])
        counts = dict(zip(self.things, map(sys.getrefcount, things), strict=True))
        torch, kinds = torch_cuda.module(), self._walk.kinds.items()
        tensors = self._kinds(torch.Tensor)
        uncounted = self._kinds(torch.UntypedStorage, *(() if running else _OF_RUNNING_CODE))
        uncounted |= {key for key, kind in kinds if self._walk.torch_graph.is_node(kind.type)}
        found = set[ObjectId]()
        with plain_functions():
            for key, thing in self.things.items():
                # Our own are those of the list here, of `things` and of the walk.
                count = counts[key] - of_call - 2
                if id(type(thing)) in tensors:
                    uses = tensor_base()._use_count(thing)
                    count += uses - 1 - (uses > 1)  # all of C++ refers once to Python's object
                if count > known[key] and id(type(thing)) not in uncounted:
                    found.add(key)
        return found

    def _kinds(self, *bases: type) -> set[ObjectId]:
        """Return the types that derive from one of some."""
        kinds = self._walk.kinds.items()
        return {key for key, kind in kinds if introspection.derives(kind.type, *bases)}


# --- any graph ------------------------------------------------------------------------------------


def _reached(start: Iterable[ObjectId], edges: _Edges) -> set[ObjectId]:
    """Return all to which some lead, and these themselves, as far as there are ``edges``."""
    found = edges.keys() & start
    work = [*found]
    while work:
        new = {*edges[work.pop()]} - found
        found |= new
        work += new
    return found


def _reversed(edges: _Edges) -> _Edges:
    """Return by each object those that lead to it."""
    found: _Edges = {here: [] for here in edges}
    for here, below in edges.items():
        for to in below:
            found[to].append(here)
    return found
