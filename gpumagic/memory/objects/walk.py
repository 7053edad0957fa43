"""All objects that some lead to: many at once, in C, and no user code run.

Python's references come from ``gc.get_referents``; those that it does not know, of tensors,
autograd's nodes and NumPy's arrays of objects, are read object by object.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, cast

from gpumagic.cuda.storages import plain_functions
from gpumagic.memory.objects.blocks import Blocks
from gpumagic.memory.objects.torch_graph import Rule, TorchGraph
from gpumagic.system import introspection

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The most objects that a walk notes: some 300 MiB.
LIMIT = 2_000_000
#: The objects that are visited at once; the references from them above which fewer are.
_AT_ONCE, _MANY = 1000, 20_000
#: How far it is looked whether objects lead on, before they are noted.
_STEPS = 4
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
        #: Of some of them together, where they begin, and the ids of all to which they lead; None
        #: where that is a lot.
        self.batches: list[tuple[int, set[int] | None]] = []
        #: By the id of an object, the place of its block in ``blocks.all``.
        self.block_of: dict[int, int] = {}
        #: By the id of an object, what it keeps where Python's collector does not look: pairs of a
        #: role and an id.
        self.hidden: dict[int, list[tuple[str, int]]] = {}
        self._excluded = excluded
        #: Why it has not visited all objects; empty where it has.
        self.ended = ""
        self.torch_graph = TorchGraph()
        self._blocks = blocks
        self._user_modules = {*user_modules}
        self._deadline = None if seconds is None else time.thread_time() + seconds
        #: Objects to visit. What many objects refer to comes last, so that one large variable does
        #: not take all the time.
        self._waiting: deque[list[Any]] = deque()
        self._seen: set[int] = set()
        #: The ids of objects that are not entered: the excluded ones, and classes of libraries.
        self._closed = {*map(id, excluded)}
        #: The types met so far, by id: to hash or compare one may run a metaclass's code.
        self.kinds: dict[int, type] = {}
        #: The ids of those whose objects may lead on, and of those whose objects are classes.
        self._inner: set[int] = set()
        self._metaclasses: set[int] = set()
        #: By such an id, what returns the objects that one hides; and the address of its memory.
        self._hiding: dict[int, Rule] = {}
        self._address: dict[int, Callable[[Any], int]] = {}

    def visit(self, things: Iterable[Any]) -> None:
        """Visit these objects and all that they lead to, as far as there is time."""
        self._waiting.append([*things])
        with plain_functions():
            while self._waiting and not self.ended:
                self._visit(self._waiting.popleft())
                if len(self.things) > LIMIT:
                    self.ended = "there are too many objects to visit them all"
                elif self._waiting and self.is_late():
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

    def _visit(self, things: list[Any]) -> None:
        """Note some objects, and what they lead to is to be visited; unless that ends soon."""
        steps: list[tuple[dict[int, Any], set[int] | None]] = []
        (inner, hide), leads_on = self._inner_of(things), False
        batch = self._unseen(inner)
        while batch and not leads_on:
            some = [*batch.values()]
            inside = gc.get_referents(*some)
            if len(inside) > _MANY and len(some) > 1:
                half, leads_on = len(some) // 2, True
                self._waiting.extendleft((some[half:], some[:half]))
                break
            if hide:
                hiding = [each for each in some if id(type(each)) in self._hiding]
                inside += chain.from_iterable(map(self._hidden_in, hiding))
            if len(inside) > _MANY:
                starts, leads_on = range(0, len(inside), _AT_ONCE), True
                self._waiting.extend(inside[start : start + _AT_ONCE] for start in starts)
                steps.append((batch, None))
                break
            leads_on = hide
            inner, hide = self._inner_of(inside)
            steps.append((batch, {*inner}))
            batch = self._unseen(inner)
            leads_on |= len(batch) < len(inner) or len(steps) == _STEPS
            leads_on |= not all(batch.keys().isdisjoint(step) for step, _ in steps)
            if batch and leads_on:
                self._waiting.appendleft([*batch.values()])
        for step, below in steps if leads_on else ():
            self._seen.update(step)
            self.batches.append((len(self.things), below))
            self.things += step.values()

    def _unseen(self, found: dict[int, Any]) -> dict[int, Any]:
        if self._seen.isdisjoint(found):
            return found
        return {key: found[key] for key in found if key not in self._seen}

    def _inner_of(self, things: list[Any]) -> tuple[dict[int, Any], bool]:
        """Return those of some objects that may lead on, by id; and whether any hides others."""
        kinds = [*map(id, map(type, things))]
        distinct = {*kinds}
        if not self.kinds.keys() >= distinct:
            for thing in things:
                if id(type(thing)) not in self.kinds:
                    self._learn(type(thing))
        inner = distinct & self._inner
        if inner != distinct:
            things = [*compress(things, map(inner.__contains__, kinds))] if inner else []
        found = dict(zip(map(id, things), things, strict=True))
        if not self._metaclasses.isdisjoint(distinct):
            # The classes of libraries lead to half of the process.
            self._closed.update(key for key, each in found.items() if self._is_librarys(each))
        for key in self._closed & found.keys():
            del found[key]
        return found, not self._hiding.keys().isdisjoint(distinct)

    def _is_librarys(self, thing: Any) -> bool:
        """Return whether an object is a class, and not the user's own."""
        if id(type(thing)) not in self._metaclasses:
            return False
        module = introspection.class_attributes(thing).get("__module__")
        return type(module) is not str or (
            module not in self._user_modules and module in sys.modules
        )

    def _hidden_in(self, thing: Any) -> list[Any]:
        """Note an object's block and what it hides; return the latter."""
        found = [*self._hiding[id(type(thing))](thing)]
        if found:
            self.hidden[id(thing)] = [(role, id(each)) for role, each in found]
        address = self._address.get(id(type(thing)))
        block = None if address is None else self._blocks.find(address(thing))
        if block is not None:
            self.block_of[id(thing)] = block
        return [each for _, each in found]

    def _learn(self, kind: type) -> None:
        key = id(kind)
        self.kinds[key] = kind
        array = getattr(sys.modules.get("numpy"), "ndarray", None)
        is_array = array is not None and introspection.derives(kind, array)
        hiding = _of_array if is_array else self.torch_graph.rule(kind)
        if hiding is not None:
            self._hiding[key] = hiding
        if hiding is not None or _flags(kind) & _HAVE_GC:
            self._inner.add(key)
        if self.torch_graph.is_tensor(kind):
            self._address[key] = self.torch_graph.address
        elif self.torch_graph.is_storage(kind):
            self._address[key] = self.torch_graph.address_of_storage
        if introspection.derives(kind, type):
            self._metaclasses.add(key)


def _of_array(array: NDArray[Any]) -> list[tuple[str, Any]]:
    """Return what a NumPy array refers to, which the collector does not know."""
    plain = cast(Any, sys.modules["numpy"]).ndarray
    base = plain.base.__get__(array)
    if base is not None:
        return [("", base)]
    objects = plain.dtype.__get__(array).hasobject
    return [("", each) for each in plain.flat.__get__(array)] if objects else []
