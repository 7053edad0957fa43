"""All objects that some lead to: many at once, in C, and no user code run.

Python's references come from ``gc.get_referents``; those that it does not know, of tensors,
autograd's nodes and NumPy's arrays of objects, are read object by object.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from gpumagic.cuda.pytorch.tensors import plain_functions
from gpumagic.memory.objects.blocks import BlockIndex, Blocks
from gpumagic.memory.objects.torch_graph import Hidden, Rule, TorchGraph
from gpumagic.system import introspection

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: An object's ``id()``: to hash or compare the object itself may run code of its class.
ObjectId: TypeAlias = int

#: The most objects that a walk notes: some 300 MiB.
LIMIT = 2_000_000
#: Objects that refer to more than `_MANY` others are visited in halves. What one such object refers
#: to waits, and is visited later, at most `AT_ONCE` objects at a time.
AT_ONCE, _MANY = 1000, 20_000
#: Py_TPFLAGS_HAVE_GC: objects of other types refer to nothing that Python knows.
_HAVE_GC = 1 << 14
_flags = vars(type)["__flags__"].__get__


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's collector from freeing what is looked at, as the look itself would have it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Kind(NamedTuple):
    """What is to be known of the objects of a type."""

    #: The type, so that its id stays its own.
    type: type
    #: Whether they may refer to other objects, and whether they are classes themselves.
    leads_on: bool
    is_class: bool
    #: What returns the objects that one hides from Python's collector; None if it hides none.
    hidden: Rule | None
    #: Whether they may have a block of the allocator.
    has_memory: bool


class Walk:
    """The objects that some lead to. Those that lead to nothing else are not noted."""

    def __init__(
        self,
        blocks: Blocks,
        *,
        excluded: Sequence[Any] = (),
        user_modules: Iterable[str] = (),
        seconds: float | None = None,
    ) -> None:
        """Prepare a walk that does not enter the ``excluded`` objects.

        Args:
            blocks: The blocks to look for.
            excluded: Objects that lead to the whole process.
            user_modules: The modules whose classes are visited.
            seconds: The CPU time that the visits may take; None for any.
        """
        #: The objects, in the order in which they were found.
        self.things: list[Any] = []
        #: The block of a tensor or a storage.
        self.block_of: dict[ObjectId, BlockIndex] = {}
        #: What an object keeps where Python's collector does not look, and in which role.
        self.hidden: dict[ObjectId, list[tuple[str, ObjectId]]] = {}
        #: Why it has not visited all objects; empty where it has.
        self.ended = ""
        self.torch_graph = TorchGraph()
        #: By the id of a type.
        self.kinds: dict[ObjectId, _Kind] = {}
        self._blocks = blocks
        self._user_modules = {*user_modules}
        self._deadline = None if seconds is None else time.thread_time() + seconds
        #: Objects to visit. What many objects refer to comes last, so that one large variable does
        #: not take all the time.
        self._waiting: deque[list[Any]] = deque()
        self._seen: set[ObjectId] = set()
        self._excluded = excluded
        #: The objects that are not entered: the excluded ones, and classes of libraries.
        self._closed = {*map(id, excluded)}

    def visit(self, things: Iterable[Any]) -> None:
        """Visit these objects and all that they lead to, as far as there is time."""
        self._waiting.append([*things])
        with plain_functions():
            while self._waiting and not self.ended:
                found = self._leading_on(self._waiting.popleft())
                while found and not self.ended:
                    found = self._visit(found)
                    if len(self.things) > LIMIT:
                        self.ended = "there are too many objects to visit them all"
                    elif self.is_late() and (found or self._waiting):
                        self.ended = "there was no time to visit all objects"

    def missed(self) -> Iterator[str]:
        """Yield what it could not look at."""
        if self.ended:
            yield f"{self.ended}: more may hold memory"
        if not self.torch_graph.knows_saved:
            yield "this torch does not say what autograd has saved for backward"

    def is_late(self) -> bool:
        """Return whether the time is over."""
        return self._deadline is not None and time.thread_time() > self._deadline

    def _visit(self, found: dict[ObjectId, Any]) -> dict[ObjectId, Any]:
        """Note some objects; return those to visit next, to which they lead."""
        if not self._seen.isdisjoint(found):
            found = {key: found[key] for key in found if key not in self._seen}
        things = [*found.values()]
        inside = gc.get_referents(*things)
        if len(inside) > _MANY and len(things) > 1:
            half = len(things) // 2
            self._waiting.extendleft((things[half:], things[:half]))
            return {}
        hiding = {key for key in {*map(id, map(type, things))} if self.kinds[key].hidden}
        for thing in things if hiding else ():
            if id(type(thing)) in hiding:
                inside += self._hidden_in(thing)
        if len(inside) > _MANY:
            starts, below = range(0, len(inside), AT_ONCE), dict[ObjectId, Any]()
            self._waiting.extend(inside[start : start + AT_ONCE] for start in starts)
        else:
            below = self._leading_on(inside)
        if below or hiding or len(inside) > _MANY:  # else nothing follows: they are not noted
            self._seen.update(found)
            self.things += things
        return below

    def _leading_on(self, things: list[Any]) -> dict[ObjectId, Any]:
        """Return those of some objects that may refer to others."""
        keys = [*map(id, map(type, things))]
        distinct = {*keys}
        if not self.kinds.keys() >= distinct:
            for thing in things:
                if id(type(thing)) not in self.kinds:
                    self.kinds[id(type(thing))] = self._kind(type(thing))
        inner = {key for key in distinct if self.kinds[key].leads_on}
        if inner != distinct:
            things = [*compress(things, map(inner.__contains__, keys))] if inner else []
        found = dict(zip(map(id, things), things, strict=True))
        if any(self.kinds[key].is_class for key in inner):
            # The classes of libraries lead to half of the process.
            self._closed.update(key for key, each in found.items() if self._is_librarys(each))
        for key in self._closed & found.keys():
            del found[key]
        return found

    def _is_librarys(self, thing: Any) -> bool:
        """Return whether an object is a class, and not the user's own."""
        if not self.kinds[id(type(thing))].is_class:
            return False
        module = introspection.class_attributes(thing).get("__module__")
        return type(module) is not str or (
            module not in self._user_modules and module in sys.modules
        )

    def _hidden_in(self, thing: Any) -> list[Any]:
        """Note an object's block and what it hides; return the latter."""
        kind = self.kinds[id(type(thing))]
        found = [*kind.hidden(thing)] if kind.hidden else []
        if found:
            self.hidden[id(thing)] = [(role, id(each)) for role, each in found]
        block = self._blocks.find(self.torch_graph.address(thing)) if kind.has_memory else None
        if block is not None:
            self.block_of[id(thing)] = block
        return [each for _, each in found]

    def _kind(self, kind: type) -> _Kind:
        graph, array = self.torch_graph, getattr(sys.modules.get("numpy"), "ndarray", None)
        is_array = array is not None and introspection.derives(kind, array)
        hidden = _of_array if is_array else graph.rule(kind)
        return _Kind(
            kind,
            leads_on=hidden is not None or bool(_flags(kind) & _HAVE_GC),
            is_class=introspection.derives(kind, type),
            hidden=hidden,
            has_memory=graph.has_memory(kind),
        )


def _of_array(array: NDArray[Any]) -> Hidden:
    """Return what a NumPy array refers to, which the collector does not know."""
    plain = cast(Any, sys.modules["numpy"]).ndarray
    base = plain.base.__get__(array)
    if base is not None:
        return [("", base)]
    objects = plain.dtype.__get__(array).hasobject
    return [("", each) for each in plain.flat.__get__(array)] if objects else []
