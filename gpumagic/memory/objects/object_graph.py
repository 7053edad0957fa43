"""The objects that a `Walk` has visited: which lead to memory, and which stay for ever."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from typing import Any

#: Where the numbers of objects are noted, at their end.
Numbers = MutableSequence[int]
#: By the number of each object that leads to memory, those of such objects to which it leads.
Leading = Mapping[int, Sequence[int]]


class ObjectGraph:
    """Objects, and to which others each of them leads."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        #: Where they lead, one after another: without a list for each.
        self.led_to = array("i")
        #: By number, the part of `led_to`: from here on in Python, from here on in C++, up to here.
        self.begin, self.cpp, self.end = array("i"), array("i"), array("i")

    def add(self, thing: object) -> int:
        """Add an object; return its number."""
        self.things.append(thing)
        for each in (self.begin, self.cpp, self.end):
            each.append(0)
        return len(self.things) - 1

    def leading(self, memory: Iterable[int]) -> Leading:
        """Return the objects that lead to ``memory``: those of these numbers."""
        led_to, begin, end = self.led_to, self.begin, self.end
        leads = bytearray(len(self.things))
        for number in memory:
            leads[number] = 1
        changed = any(leads)
        while changed:
            changed = False
            for number in range(len(leads) - 1, -1, -1):
                if not leads[number] and any(
                    map(leads.__getitem__, led_to[begin[number] : end[number]])
                ):
                    leads[number] = changed = True
        return {
            number: [to for to in led_to[begin[number] : end[number]] if leads[to]]
            for number, leading in enumerate(leads)
            if leading
        }

    def in_cycles_of_cpp(self, leading: Leading) -> set[int]:
        """Return what stays when nothing refers to it any more, and all to which that leads.

        Python's collector does not see references in C++. It breaks no cycle through one, as
        ``backward(create_graph=True)`` makes it: parameter, gradient, its graph, parameter.
        """
        pairs = {
            (here, to)
            for here in leading
            for to in self.led_to[self.cpp[here] : self.end[here]]
            if leading.get(to) and to not in self.led_to[self.begin[here] : self.cpp[here]]
        }
        if not pairs:
            return set()
        cycle = cycles(leading)
        closed = [here for here, to in pairs if cycle[here] == cycle[to]]
        return {number for number, mask in spread([closed], leading).items() if mask}


def spread(entries: Sequence[Sequence[int]], leading: Leading) -> dict[int, int]:
    """Return by number a bit for each of the ``entries`` that leads to an object."""
    masks = dict.fromkeys(leading, 0)
    for entry, numbers in enumerate(entries):
        bit = 1 << entry
        work = [number for number in numbers if number in masks]
        while work:
            here = work.pop()
            if not masks[here] & bit:
                masks[here] |= bit
                work += leading[here]
    return masks


def cycles(leading: Leading) -> dict[int, int]:
    """Return by number the one that stands for all in the same cycles (Kosaraju's algorithm)."""
    order, seen = list[int](), set[int]()
    for start in leading:
        work = [(start, False)]
        while work:
            here, done = work.pop()
            if done:
                order.append(here)
            elif here not in seen:
                seen.add(here)
                work.append((here, True))
                work += [(to, False) for to in leading[here] if to not in seen]
    above: dict[int, list[int]] = {here: [] for here in leading}
    for here, below in leading.items():
        for to in below:
            above[to].append(here)
    found: dict[int, int] = {}
    for start in reversed(order):
        pending = [start]
        while pending:
            here = pending.pop()
            if here not in found:
                found[here] = start
                pending += above[here]
    return found
