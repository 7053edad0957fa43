"""Which blocks each root leads to: one graph of objects, each visited once, and no user code run.

Python's references come from ``gc.get_referents``, torch's from `TorchGraph`. Both are counted, so
that an object with more references than were seen is known to be held from elsewhere, too: by a
thread, a library, C++.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.storages import plain_functions, tensor_base
from gpumagic.memory.objects.blocks import Blocks
from gpumagic.memory.objects.object_graph import Numbers, ObjectGraph, spread
from gpumagic.memory.objects.torch_graph import GRADIENTS, GRAPH, Rule, TorchGraph
from gpumagic.system import introspection

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The most objects that a walk notes, and the most references between them: some 300 MiB.
LIMIT, REFERENCES = 2_000_000, 10_000_000
#: The length of the parts of a list that are first looked at as a whole; how many steps down, and
#: at most how many times as many objects.
LONG = 1000
_DEEP, _MANY = 4, 20
#: The objects that are visited between two looks at the clock.
_AT_ONCE = 100
#: Py_TPFLAGS_HAVE_GC: objects of other types refer to nothing that Python knows.
_HAVE_GC = 1 << 14
_flags = vars(type)["__flags__"].__get__
#: The ids of types of which running code has references, too.
_RUNNING = {id(types.FrameType), id(types.TracebackType)}


PARAMETERS = "parameters"


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


def _clearer(*roles: str) -> str:
    """Return the role that says most: what a graph refers to is also a variable's, or a model's."""
    return max(roles, key=(GRAPH, "", PARAMETERS, GRADIENTS).index)


class Name(NamedTuple):
    """What a root is called."""

    name: str
    kind: str
    #: Whether the notebook refers to it, not a variable: ``%gpumem free`` frees it.
    by_notebook: bool = False


class Root(NamedTuple):
    """A place from which references come, and the objects there."""

    name: Name
    values: list[Any]


@dataclass
class Walked:
    """What a walk has found."""

    #: By a block's place, a bit for each root that leads to it. The bit above those of the roots
    #: is that of references from elsewhere.
    owners: dict[int, int] = field(default_factory=dict)
    #: By a block's place, what it is to those: ``parameters``, ``gradients``…, or "".
    roles: dict[int, str] = field(default_factory=dict)
    #: The places of the blocks that a reference cycle through C++ holds, which nothing breaks.
    staying: set[int] = field(default_factory=set)
    #: What it could not look at; empty where it has visited everything.
    missed: tuple[str, ...] = ()
    #: Whether it has visited all objects.
    complete: bool = True


class _Rule(NamedTuple):
    """How objects of a type are visited."""

    #: The type, so that its id stays its own.
    kind: type
    #: Whether they lead to nothing.
    leaf: bool = False
    #: Whether they are classes: libraries' classes lead to half of the process.
    classes: bool = False
    array: bool = False
    tensor: bool = False
    parameter: bool = False
    storage: bool = False
    #: Whether the references to them are not counted: running code has some, too.
    uncounted: bool = False
    in_cpp: Rule | None = None

    @property
    def plain(self) -> bool:
        """Whether the collector knows all to which they lead, and they are no memory."""
        return not (self.array or self.tensor or self.storage or self.in_cpp)


class Walk:
    """The objects that some roots lead to, by numbers."""

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
            seconds: The CPU time that visits may take; None for any.
        """
        self._torch: Any = torch_cuda.loaded()
        self._blocks = blocks
        self._graph = TorchGraph()
        self._user_modules = set(user_modules)
        self._deadline = None if seconds is None else time.thread_time() + seconds
        #: Why it visits no more objects; empty while it does.
        self._ended = ""
        #: The numbers that are to be visited; those of large containers, which come last.
        self._pending: list[int] = []
        self._large: list[int] = []
        self._postponed: set[int] = set()
        #: By id of an object, its number; -1 for those that are excluded.
        self._excluded = excluded
        self._number = {id(thing): -1 for thing in excluded}
        self._objects = ObjectGraph()
        #: By number, the references from Python and from C++ that were seen.
        self._seen: list[int] = []
        self._in_cpp: list[int] = []
        self._block_of: dict[int, int] = {}
        self._roles: dict[int, str] = {}
        #: By the id of a type: to hash or compare one may run a metaclass's code.
        self._rules: dict[int, _Rule] = {}

    def run(self, roots: Sequence[Root], places: Sequence[Any] | None = None) -> Walked:
        """Visit everything that the roots lead to.

        ``places`` are the objects that hold the roots' values. Without them references from
        elsewhere are not looked for.
        """
        with plain_functions():
            entries = self._visit(roots)
            leading = self._objects.leading(self._block_of)
            if places is not None:
                entries.append(self._held_elsewhere(roots, places, [*leading]))
            masks = spread(entries, leading)
            stay = self._objects.in_cycles_of_cpp(leading)
        found = Walked(missed=tuple(self._missed()), complete=not self._ended)
        found.staying = {self._block_of[number] for number in stay & self._block_of.keys()}
        for number, block in self._block_of.items():
            found.owners[block] = found.owners.get(block, 0) | masks[number]
            found.roles[block] = _clearer(found.roles.get(block, GRAPH), self._roles[number])
        return found

    def _missed(self) -> Iterator[str]:
        if self._ended:
            yield f"{self._ended}: more may hold memory"
        if not self._graph.knows_saved:
            yield "this torch does not say what autograd has saved for backward"

    # --- visits ----------------------------------------------------------------------------------

    def _visit(self, roots: Sequence[Root]) -> list[list[int]]:
        """Visit what the roots lead to; return the numbers of their values.

        Large containers come last, so that one variable does not take all the time.
        """
        entries: list[list[int]] = []
        for root in roots:
            entries.append([])
            self._add(root.values, entries[-1], None)
        while (self._pending or self._large) and self._go_on():
            if not self._pending:
                self._pending, self._large = self._large, []
            for _ in range(min(_AT_ONCE, len(self._pending))):
                self._visit_one(self._pending.pop())
        return entries

    def _visit_one(self, here: int) -> None:
        objects = self._objects
        thing, above = objects.things[here], objects.led_to
        rule = self._rules[id(type(thing))]
        inside: Sequence[Any]
        if rule.array:
            inside = self._of_array(thing)
        else:  # without a copy of a long list
            inside = thing if type(thing) is list else gc.get_referents(thing)
        if len(inside) > LONG and here not in self._postponed:
            self._postponed.add(here)
            self._large.append(here)
            return
        objects.begin[here] = len(above)
        self._add(inside, above, self._seen)
        objects.cpp[here] = len(above)
        if rule.in_cpp is not None:
            for role, each in rule.in_cpp(thing):
                self._add((each,), above, self._in_cpp, role)
        objects.end[here] = len(above)

    def _add(
        self, things: Sequence[Any], above: Numbers, count: list[int] | None, role: str = ""
    ) -> None:
        """Append the numbers of ``things`` to ``above``; new ones are to be visited."""
        if len(things) <= LONG:
            self._add_some(things, above, count, role)
            return
        for begin in range(0, len(things), LONG):
            if not self._go_on():
                return
            part = things[begin : begin + LONG]
            classes = self._all_inside(part)
            self._add_some(part if classes is None else classes, above, count, role)

    def _all_inside(self, things: Sequence[Any]) -> list[Any] | None:
        """Return the user's classes where some objects lead to nothing else; None where they do.

        For many at once, in C: records of numbers and strings are not worth a number each.
        """
        classes: dict[int, Any] = {}
        for _ in range(_DEEP):
            kinds = set(map(id, map(type, things)))
            if not kinds <= self._rules.keys():
                for thing in things:
                    if id(type(thing)) not in self._rules:
                        self._learn(type(thing))
            rules = {kind: self._rules[kind] for kind in kinds}
            if not all(rule.plain for rule in rules.values()):
                return None
            inner = {kind for kind, rule in rules.items() if not rule.leaf}
            found = things
            if inner != kinds:
                found = [*compress(things, map(inner.__contains__, map(id, map(type, things))))]
            new = dict(zip(map(id, found), found, strict=True))
            if any(rule.classes for rule in rules.values()):
                for key in [k for k, thing in new.items() if rules[id(type(thing))].classes]:
                    each = new.pop(key)
                    if self._is_users(each):
                        classes[key] = each
            if not self._number.keys().isdisjoint(new.keys()):
                return None
            if not new:
                return list(classes.values())
            things = gc.get_referents(*new.values())
            if len(things) > _MANY * LONG:
                return None
        return None

    def _add_some(
        self, things: Sequence[Any], above: Numbers, count: list[int] | None, role: str
    ) -> None:
        numbers, rules = self._number, self._rules
        for thing in things:
            rule = rules.get(id(type(thing))) or self._learn(type(thing))
            if rule.leaf or (rule.classes and not self._is_users(thing)):
                continue
            number = numbers.get(id(thing))
            if number is None:
                number = numbers[id(thing)] = self._objects.add(thing)
                self._seen.append(0)
                self._in_cpp.append(0)
                self._pending.append(number)
                if rule.tensor or rule.storage:
                    self._note_block(thing, number, rule, role)
            elif number in self._roles:  # something else has led here first
                self._roles[number] = _clearer(self._roles[number], role)
            if number >= 0:
                above.append(number)
                if count is not None:
                    count[number] += 1

    def _note_block(self, thing: object, number: int, rule: _Rule, role: str) -> None:
        block = self._blocks.find(self._graph.address(thing, storage=rule.storage))
        if block is not None:
            self._block_of[number] = block
            self._roles[number] = _clearer(role, PARAMETERS) if rule.parameter else role

    def _go_on(self) -> bool:
        if len(self._objects.things) > LIMIT or len(self._objects.led_to) > REFERENCES:
            self._ended = "there are too many objects to visit them all"
        elif self._deadline is not None and time.thread_time() > self._deadline:
            self._ended = "there was no time to visit all objects"
        return not self._ended

    def _learn(self, kind: type) -> _Rule:
        numpy: Any = sys.modules.get("numpy")
        array = getattr(numpy, "ndarray", None)
        in_cpp = self._graph.rule(kind)
        rule = _Rule(
            kind,
            leaf=in_cpp is None and not _flags(kind) & _HAVE_GC,
            classes=introspection.derives(kind, type),
            array=array is not None and introspection.derives(kind, array),
            tensor=self._graph.is_tensor(kind),
            parameter=introspection.derives(kind, self._torch.nn.Parameter),
            storage=self._graph.is_storage(kind),
            uncounted=id(kind) in _RUNNING or self._graph.is_node(kind),
            in_cpp=in_cpp,
        )
        if rule.array or rule.storage:
            rule = rule._replace(leaf=False)
        self._rules[id(kind)] = rule
        return rule

    def _is_users(self, kind: type) -> bool:
        """Return whether a class is the user's own."""
        module = introspection.class_attributes(kind).get("__module__")
        return type(module) is str and (module in self._user_modules or module not in sys.modules)

    def _of_array(self, array: NDArray[Any]) -> list[Any]:
        """Return what a NumPy array refers to, which the collector does not know."""
        plain = cast(Any, sys.modules["numpy"]).ndarray
        base = plain.base.__get__(array)
        inside = gc.get_referents(array) if type(array) is not plain else []
        if base is not None:
            return [*inside, base]
        if plain.dtype.__get__(array).hasobject:
            return [*inside, *plain.flat.__get__(array)]
        return inside

    # --- references that were not seen ------------------------------------------------------------

    def _held_elsewhere(
        self, roots: Sequence[Root], places: Sequence[Any], leading: list[int]
    ) -> list[int]:
        """Return those that have more references than were seen."""
        own = dict.fromkeys(leading, 2)  # the list of objects, and that of those compared here
        lists = [*(root.values for root in roots), places, self._excluded]
        # The attributes of an object are its own from Python 3.13 on: `vars` has no referents.
        held = (p.values() if type(p) is dict else gc.get_referents(p) for p in places)
        # No variable of this function holds one of them meanwhile.
        for number in (self._number.get(id(each)) for some in (*lists, *held) for each in some):
            if number in own:
                own[number] += 1
        things = [self._objects.things[number] for number in leading]
        (of_call,) = map(sys.getrefcount, [object()])
        counts = zip(leading, map(sys.getrefcount, things), strict=True)
        return [
            number
            for number, count in counts
            if self._unseen(number, count - of_call + 1 - own[number]) > 0
        ]

    def _unseen(self, number: int, count: int) -> int:
        """Return the references to an object that were not seen, of ``count`` and those in C++."""
        thing = self._objects.things[number]
        rule = self._rules[id(type(thing))]
        if rule.classes or rule.storage or rule.uncounted:
            return 0
        if rule.tensor:
            uses = tensor_base()._use_count(thing)
            count += uses - 1 - (uses > 1)  # all of C++ refers once to Python's object
        return count - self._seen[number] - self._in_cpp[number]
