"""Which GPU memory each variable references: a walk over objects that runs no user code.

Children come from ``gc.get_referents``, which asks the types' own C code; no attribute of a user's
object is looked up, so properties and ``__getattr__`` never run. The walk has its own stack and
visits each object once, also in cycles; its cost grows with the number of objects.

Two steps: every root in turn leads to objects that were not yet visited, which gives each block its
first holder; then the roots are carried along the edges, which gives each block all its holders.

Where time is limited the roots take turns, so that a large one does not prevent visits to the
others: what the notebook references first, then the variables; each a few objects, then more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpumagic.cuda.storages import plain_functions
from gpumagic.memory.allocator_blocks import Blocks
from gpumagic.memory.reference_counts import held_elsewhere
from gpumagic.memory.referents import UNKNOWN, Part, Rules

#: The most objects that are visited: some seconds.
LIMIT = 3_000_000
#: The objects of each root that are visited in its first turn, and the factor for each next one.
_TURN, _MORE = 32, 8
#: A longer list of referents is visited in parts.
_LONG = 1 << 12


@dataclass(frozen=True)
class Root:
    """A variable, or another place that references objects, and these objects."""

    name: str
    kind: str
    objects: Sequence[Any]
    #: Whether the notebook references them, not a variable of the user's.
    by_notebook: bool = False


@dataclass
class Walked:
    """The result of a walk. References no object."""

    #: By block: the roots that lead to it, as a mask of bits.
    owners: dict[int, int] = field(default_factory=dict)
    #: By block: its role for its first root, such as "parameters".
    parts: dict[int, str] = field(default_factory=dict)
    #: Why not all objects were visited; empty where they were.
    incomplete: tuple[str, ...] = ()


def bits(mask: int) -> Iterator[int]:
    """Return the places of the bits that are set, lowest first."""
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
    seconds: float | None = None,
    places: Iterable[Any] | None = None,
) -> Walked:
    """Return which blocks each of the ``roots`` leads to.

    Args:
        roots: In the order in which blocks are counted to them.
        blocks: The allocator's blocks.
        without: Objects that are not visited (the shell, its namespaces).
        user_modules: Names of the modules whose classes are visited.
        seconds: CPU time of this thread after which no more is visited: time of other threads and
            processes does not count.
        places: The objects that reference the ``roots``. With them, one more root, after all
            others, leads to objects with references from ones that were not visited.
    """
    graph = _Graph(blocks, user_modules, seconds)
    graph.exclude(without)
    visits = [_Visit(root.objects) for root in roots]
    # torch's own methods, whatever mode or subclass of tensors is active.
    with plain_functions():
        if seconds is None:
            for visit in visits:
                graph.go_on(visit)
        else:
            graph.take_turns(
                [visit for visit, root in zip(visits, roots, strict=True) if root.by_notebook],
                [visit for visit, root in zip(visits, roots, strict=True) if not root.by_notebook],
            )
        return graph.result(roots, [visit.entries for visit in visits], places)


class _Visit:
    """The state of the walk from one root."""

    def __init__(self, objects: Iterable[Any]) -> None:
        #: The numbers of the root's own objects.
        self.entries: list[int] = []
        #: What is still to be visited: where the numbers go, the role of the objects, the objects.
        self.stack: list[tuple[list[int], str, Iterable[Any]]] = [(self.entries, "", objects)]


class _Graph:
    """The objects that were visited, by number, with the objects that each refers to."""

    def __init__(
        self, blocks: Blocks, user_modules: Iterable[str], seconds: float | None = None
    ) -> None:
        self._number: dict[int, int] = {}
        #: Keeps every visited object alive, so that its id stays its own.
        self._kept: list[Any] = []
        self._edges: list[list[int]] = []
        #: By number of a tensor: its block, and its role there.
        self._blocks: dict[int, tuple[int, str]] = {}
        #: By number of a tensor: its roles, each with the list in which its number is then. Which
        #: one counts is known when all roots are visited, in whatever order that is done.
        self._roles: dict[int, list[tuple[list[int], str]]] = {}
        self._deadline = None if seconds is None else time.thread_time() + seconds
        self._incomplete: set[str] = set()
        self._rules = Rules(blocks, frozenset(user_modules), self._blocks, self._incomplete)

    def exclude(self, objects: Iterable[Any]) -> None:
        for thing in objects:
            self._number[id(thing)] = -1
            self._kept.append(thing)
            self._edges.append([])

    def take_turns(self, first: Sequence[_Visit], then: Sequence[_Visit]) -> None:
        """Visit a few objects of each in a turn, until the time is over."""
        turn = _TURN
        pending = [visit for visit in first if not self.go_on(visit, turn)]
        pending += [visit for visit in then if not self.go_on(visit, turn)]
        while pending and not self._stop():
            turn *= _MORE
            pending = [visit for visit in pending if not self.go_on(visit, turn)]

    def go_on(self, visit: _Visit, objects: int = LIMIT) -> bool:
        """Visit at most ``objects`` more until the time is over; return whether none is left."""
        stack, blocks, roles = visit.stack, self._blocks, self._roles
        number, kept, edges, rules = self._number, self._kept, self._edges, self._rules
        rule_of, last = rules.of_type, len(kept) + objects
        split: Any = rule_of[id(list)]
        while stack:
            above, part, group = stack.pop()
            if type(group) is Part and self._stop():
                stack.append((above, part, group))
                return False
            rest = iter(group)
            for thing in rest:
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
                    number[id(thing)] = here
                    kept.append(thing)
                    edges.append([])
                    above.append(here)
                    for inner, things in rule(thing, part, here):
                        if type(things) is list and len(things) > _LONG:
                            for each, some in split(things, inner, here):
                                stack.append((edges[here], each, some))
                        else:
                            stack.append((edges[here], inner, things))
                    if here in blocks:
                        roles[here] = [(above, part)]
                    if here + 1 >= last or (not here & 0xFF and self._stop()):
                        stack.append((above, part, rest))
                        return False
                elif here >= 0:
                    above.append(here)
                    if here in blocks:
                        last_list, last_part = roles[here][-1]
                        if last_list is not above or last_part != part:
                            roles[here].append((above, part))
        return True

    def _stop(self) -> bool:
        if len(self._kept) > LIMIT:
            self._incomplete.add(f"more than {LIMIT:,} objects: the rest was not visited")
            return True
        if self._deadline is not None and time.thread_time() > self._deadline:
            self._incomplete.add("there was no time to visit all objects")
            return True
        return False

    def result(
        self, roots: Sequence[Root], entries: Sequence[list[int]], places: Iterable[Any] | None
    ) -> Walked:
        """Return the holders of each block; ``entries`` are the numbers of the roots' objects."""
        leading = numbers_leading_to(self._blocks, self._edges)
        if places is not None:
            objects = (root.objects for root in roots)
            elsewhere = held_elsewhere(self._kept, self._edges, leading, objects, places)
            entries = [*entries, elsewhere]
        masks = self._spread(entries, leading)
        role = self._role_for(entries, masks)
        found = Walked(incomplete=tuple(sorted(self._incomplete)))
        best: dict[int, int] = {}
        for number, (block, _) in self._blocks.items():
            mask = masks[number]
            found.owners[block] = found.owners.get(block, 0) | mask
            first = mask & -mask
            if block not in best or first < best[block]:
                best[block] = first
                found.parts[block] = role(number, first)
        return found

    def _role_for(
        self, entries: Sequence[list[int]], masks: Mapping[int, int]
    ) -> Callable[[int, int], str]:
        """Return a function of a tensor and a root, as a bit: the tensor's role for that root."""
        owners = {id(self._edges[number]): mask for number, mask in masks.items()}
        owners |= {id(numbers): 1 << root for root, numbers in enumerate(entries)}

        def role(number: int, root: int) -> str:
            roles = self._roles[number]
            fitting = (part for above, part in roles if owners.get(id(above), 0) & root)
            return next(fitting, roles[0][1])

        return role

    def _spread(self, entries: Sequence[list[int]], leading: Sequence[int]) -> dict[int, int]:
        """Return by number, for objects that lead to memory: the roots that lead to it, as bits."""
        masks = dict.fromkeys(leading, 0)
        edges = {here: [to for to in self._edges[here] if to in masks] for here in leading}
        work: list[int] = []
        for root, numbers in enumerate(entries):
            for number in numbers:
                if number in masks:
                    masks[number] |= 1 << root
                    work.append(number)
        work.reverse()
        while work:
            here = work.pop()
            mask = masks[here]
            for number in edges[here]:
                if masks[number] | mask != masks[number]:
                    masks[number] |= mask
                    work.append(number)
        return masks


#: The passes over all edges before they are reversed.
_PASSES = 4


def numbers_leading_to(targets: Iterable[int], edges: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers of the objects that lead to any of ``targets``, and the targets' own."""
    found = bytearray(len(edges))
    for number in targets:
        found[number] = 1
    if not any(found):
        return []
    leads = found.__getitem__
    pending = [number for number, inside in enumerate(edges) if inside and not found[number]]
    # Most objects have higher numbers than those that refer to them: backwards first.
    for _ in range(_PASSES):
        pending.reverse()
        rest = []
        for number in pending:
            if any(map(leads, edges[number])):
                found[number] = 1
            else:
                rest.append(number)
        if len(rest) == len(pending):
            break
        pending = rest
    else:
        _lead_backwards(found, pending, edges)
    return [number for number, leading in enumerate(found) if leading]


def _lead_backwards(
    found: bytearray, pending: Iterable[int], edges: Sequence[Sequence[int]]
) -> None:
    """Add to ``found`` those of ``pending`` that lead there, by the reversed edges."""
    above: dict[int, list[int]] = {}
    for number in pending:
        for inner in edges[number]:
            above.setdefault(inner, []).append(number)
    work = [number for number in above if found[number]]
    while work:
        for number in above.get(work.pop(), ()):
            if not found[number]:
                found[number] = 1
                work.append(number)
