"""Which tensors each name leads to: a walk over objects that runs none of the user's code.

Children come from ``gc.get_referents``, which asks the types' own C code; no attribute of a user's
object is looked up, so properties and ``__getattr__`` never run. The walk keeps its own stack and
visits each object once, whatever cycles there are; its cost grows with the number of objects.

Two steps: every root in turn leads to objects that were not yet visited, which gives each block its
first holder; then the roots are carried along the edges, which gives each block all its holders.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpumagic.memory.blocks import Blocks
from gpumagic.memory.certainty import held_elsewhere
from gpumagic.memory.referents import UNKNOWN, Part, Rules
from gpumagic.plain_tensors import plain_functions

#: More objects than these are not visited: some seconds.
LIMIT = 3_000_000


@dataclass(frozen=True)
class Root:
    """A name, or a place that holds on to something, and the objects there."""

    name: str
    kind: str
    objects: Sequence[Any]
    #: Held by the notebook, not by a name of the user's.
    pinned: bool = False


@dataclass
class Walked:
    """What a walk found. Holds no object."""

    #: By block: the roots that lead to it, as a mask of bits.
    owners: dict[int, int] = field(default_factory=dict)
    #: By block: the part that it plays for its first root.
    parts: dict[int, str] = field(default_factory=dict)
    #: Why not all was looked at; empty where it was.
    incomplete: tuple[str, ...] = ()


def bits(mask: int) -> Iterator[int]:
    """The places of the bits that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def walk(
    roots: Sequence[Root],
    blocks: Blocks,
    *,
    without: Iterable[Any] = (),
    user_modules: Iterable[str] = ("__main__",),
    deadline: float | None = None,
    places: Iterable[Any] | None = None,
) -> Walked:
    """Which blocks each of the ``roots`` leads to.

    Args:
        roots: In the order in which blocks are given to them.
        blocks: Where the storages lie.
        without: Objects that are not entered (the shell, its namespaces).
        user_modules: Names of the modules whose classes are entered.
        deadline: A value of `time.perf_counter` after which no more is visited.
        places: Where the ``roots`` were found. With them, what is held from elsewhere, too, is led
            to by one root more, after all others.
    """
    graph = _Graph(blocks, user_modules, deadline)
    graph.exclude(without)
    # Whatever mode or subclass of tensors is active, torch's own methods are meant.
    with plain_functions():
        entries = [graph.enter(root.objects) for root in roots]
        if places is not None:
            entries.append(graph.held_elsewhere(roots, places))
    return graph.result(entries)


class _Graph:
    """The objects that were visited, by number, with the objects that each refers to."""

    def __init__(
        self, blocks: Blocks, user_modules: Iterable[str], deadline: float | None = None
    ) -> None:
        self._number: dict[int, int] = {}
        #: Keeps every visited object alive, so that its id stays its own.
        self._kept: list[Any] = []
        self._edges: list[list[int]] = []
        #: By number of a tensor: its block, and the part that it plays.
        self._blocks: dict[int, tuple[int, str]] = {}
        self._deadline = deadline
        self._incomplete: set[str] = set()
        self._rules = Rules(blocks, frozenset(user_modules), self._blocks, self._incomplete)

    def exclude(self, objects: Iterable[Any]) -> None:
        for thing in objects:
            self._number[id(thing)] = -1
            self._kept.append(thing)
            self._edges.append([])

    def enter(self, objects: Iterable[Any]) -> list[int]:
        """Visit what ``objects`` lead to; returns their own numbers."""
        entries: list[int] = []
        stack: list[tuple[list[int], str, Iterable[Any]]] = [(entries, "", objects)]
        number, kept, edges, rules = self._number, self._kept, self._edges, self._rules
        rule_of = rules.of_type
        while stack:
            above, part, group = stack.pop()
            if type(group) is Part and self._stop():
                return entries
            for thing in group:
                kind = type(thing)
                # By its id: to hash a type, or to compare it, may run a metaclass's code.
                rule = rule_of.get(id(kind), UNKNOWN)
                if rule is UNKNOWN:
                    rule = rules.learn(kind)
                if rule is None:
                    continue
                here = number.get(id(thing))
                if here is None:
                    here = len(kept)
                    if not here & 0xFF and self._stop():
                        return entries
                    number[id(thing)] = here
                    kept.append(thing)
                    edges.append([])
                    for inner, things in rule(thing, part, here):
                        stack.append((edges[here], inner, things))
                if here >= 0:
                    above.append(here)
        return entries

    def held_elsewhere(self, roots: Iterable[Root], places: Iterable[Any]) -> list[int]:
        """The numbers of what leads to memory, and is held by what was not walked over, too."""
        objects = (root.objects for root in roots)
        return held_elsewhere(self._kept, self._edges, self._blocks, objects, places)

    def _stop(self) -> bool:
        if len(self._kept) > LIMIT:
            self._incomplete.add(f"more than {LIMIT:,} objects: the rest was not looked at")
            return True
        if self._deadline is not None and time.perf_counter() > self._deadline:
            self._incomplete.add("there was no time to look at all objects")
            return True
        return False

    def result(self, entries: Sequence[list[int]]) -> Walked:
        masks = self._spread(entries)
        found = Walked(incomplete=tuple(sorted(self._incomplete)))
        best: dict[int, int] = {}
        for number, (block, part) in self._blocks.items():
            mask = masks[number]
            found.owners[block] = found.owners.get(block, 0) | mask
            first = mask & -mask
            if block not in best or first < best[block]:
                best[block] = first
                found.parts[block] = part
        return found

    def _spread(self, entries: Sequence[list[int]]) -> list[int]:
        """By number of an object: the roots that lead to it, as a mask of bits."""
        masks = [0] * len(self._kept)
        edges = self._edges
        for root, numbers in enumerate(entries):
            for number in numbers:
                masks[number] |= 1 << root
        work = [number for numbers in reversed(entries) for number in numbers]
        while work:
            here = work.pop()
            mask = masks[here]
            for number in edges[here]:
                if masks[number] | mask != masks[number]:
                    masks[number] |= mask
                    work.append(number)
        return masks
