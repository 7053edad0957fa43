"""Of the objects of a `Walk`, those that lead to memory: what each leads to, what else holds it."""

from __future__ import annotations

import gc
import sys
import types
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, compress
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.storages import plain_functions, tensor_base
from gpumagic.memory.objects.torch_graph import GRADIENTS, GRAPH
from gpumagic.memory.objects.walk import Walk
from gpumagic.system import introspection

PARAMETERS = "parameters"
#: What a block is to what leads to it, the clearest last: what autograd's graph refers to is also a
#: variable's, or a model's.
_ROLES = (GRAPH, "", PARAMETERS, GRADIENTS)


class ObjectGraph:
    """The objects that lead to memory, by id, and to which of them each refers."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self.things = self._leading()
        self.edges: dict[int, list[int]] = {}
        #: By the place of a block, what it is: an index of `_ROLES`.
        self._roles = dict.fromkeys(walk.block_of.values(), 0)
        led_to: dict[str, set[int]] = {role: set() for role in _ROLES}
        parameters = self._kinds(torch_cuda.module().nn.Parameter)
        is_known = self.things.__contains__
        for here, thing in self.things.items():
            self.edges[here] = below = [*filter(is_known, map(id, gc.get_referents(thing)))]
            led_to[""].update(below)
            for role, to in filter(lambda edge: is_known(edge[1]), walk.hidden.get(here, ())):
                below.append(to)
                led_to[role].add(to)
            if id(type(thing)) in parameters:
                led_to[PARAMETERS].add(here)
        for role, keys in led_to.items():
            self.add_role(role, keys)

    def _leading(self) -> dict[int, Any]:
        things, hidden = self._walk.things, self._walk.hidden
        memory = [*compress(things, map(self._walk.block_of.__contains__, map(id, things)))]
        found, before = dict(zip(map(id, memory), memory, strict=True)), 0
        while before < (before := len(found)):
            end = len(things)
            for start, inside in reversed(self._walk.batches):
                batch, end = things[start:end], start
                if inside is not None and found.keys().isdisjoint(inside):
                    continue
                for each in reversed(batch):
                    below = [*map(id, gc.get_referents(each))]
                    below += (to for _, to in hidden.get(id(each), ()))
                    if not found.keys().isdisjoint(below):
                        found.setdefault(id(each), each)
        return found

    def add_role(self, role: str, keys: Iterable[int]) -> None:
        """Note what some objects are to something that leads to them."""
        for place in self.places(keys):
            self._roles[place] = max(self._roles[place], _ROLES.index(role))

    @property
    def roles(self) -> dict[int, str]:
        """By the place of a block, what it is: ``parameters``, ``gradients``…, or ""."""
        return {place: _ROLES[role] for place, role in self._roles.items()}

    # --- ways -------------------------------------------------------------------------------------

    def reached(self, start: Iterable[int]) -> set[int]:
        """Return all to which some objects lead, and these themselves."""
        return _reached(start, self.edges)

    def above(self, start: Iterable[int]) -> set[int]:
        """Return all that lead to some objects, and these themselves."""
        return _reached(start, _reversed(self.edges))

    def places(self, keys: Iterable[int]) -> set[int]:
        """Return the places of the blocks of some objects."""
        block_of = self._walk.block_of
        return {block_of[key] for key in block_of.keys() & keys}

    def staying(self) -> set[int]:
        """Return the objects that stay when nothing refers to them any more.

        Python's collector does not see references in C++. It breaks no cycle through one, as
        ``backward(create_graph=True)`` makes it: parameter, gradient, its graph, parameter.
        """
        in_cpp: dict[int, list[int]] = {}
        for here in self.edges.keys() & self._walk.hidden.keys():
            seen = {*map(id, gc.get_referents(self.things[here]))}
            in_cpp[here] = [to for _, to in self._walk.hidden[here] if to not in seen]
        if not any(self.edges.get(to) for to in chain(*in_cpp.values())):
            return set()
        cycle = _cycles(self.edges)
        return self.reached(
            here
            for here, below in in_cpp.items()
            if any(cycle[here] == cycle.get(to) for to in below)
        )

    # --- references from elsewhere ----------------------------------------------------------------

    def held_elsewhere(
        self, holders: Iterable[Iterable[Any]], *, running: bool = False
    ) -> set[int]:
        """Return the objects with more references than each other's and those in ``holders``.

        ``running``: also frames, tracebacks and classes, to which running code refers.
        """
        known = Counter(chain(*self.edges.values()))
        known.update(id(each) for some in holders for each in some)
        things = [*self.things.values()]
        (of_call,) = map(sys.getrefcount, [object()])
        counts = dict(zip(self.things, map(sys.getrefcount, things), strict=True))
        torch, kinds = self._walk.torch_graph, self._walk.kinds.items()
        tensors = {key for key, kind in kinds if torch.is_tensor(kind)}
        uncounted = {key for key, kind in kinds if torch.is_storage(kind) or torch.is_node(kind)}
        if not running:
            uncounted |= self._kinds(types.FrameType, types.TracebackType, type)
        found = set[int]()
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

    def _kinds(self, *bases: type) -> set[int]:
        """Return the ids of the types that derive from one of some."""
        kinds = self._walk.kinds.items()
        return {key for key, kind in kinds if introspection.derives(kind, *bases)}


def _reached(start: Iterable[int], edges: Mapping[int, list[int]]) -> set[int]:
    """Return all to which some lead, and these themselves, as far as there are ``edges``."""
    found = edges.keys() & start
    work = [*found]
    while work:
        new = {*edges[work.pop()]} - found
        found |= new
        work += new
    return found


def _reversed(edges: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """Return by each object those that lead to it."""
    found: dict[int, list[int]] = {here: [] for here in edges}
    for here, below in edges.items():
        for to in below:
            found[to].append(here)
    return found


def _cycles(edges: Mapping[int, list[int]]) -> dict[int, int]:
    """Return by each object the one that stands for all in its cycles (Kosaraju's algorithm)."""
    work, order, seen = [*edges], list[int](), set[int]()
    while work:
        here = work.pop()
        if here < 0:  # all below it is done
            order.append(-here)
        elif here not in seen:
            seen.add(here)
            work += (-here, *edges[here])
    above, found = _reversed(edges), dict[int, int]()
    for start in reversed(order):
        work = [start]
        while work:
            here = work.pop()
            if here not in found:
                found[here] = start
                work += above[here]
    return found
