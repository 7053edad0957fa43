"""Which tensors each name leads to: a walk over objects that runs none of the user's code.

Children come from ``gc.get_referents``, which asks the types' own C code; no attribute of a user's
object is looked up, so properties and ``__getattr__`` never run. The walk keeps its own stack and
visits each object once, whatever cycles there are; its cost grows with the number of objects.

Two steps: every root in turn leads to objects that were not yet visited, which gives each block its
first holder; then the roots are carried along the edges, which gives each block all its holders.
"""

from __future__ import annotations

import gc
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gpumagic import foreign, torch_cuda
from gpumagic.memory.blocks import Blocks

#: More objects than these are not visited: some seconds.
LIMIT = 3_000_000

#: Types that refer to nothing, or to nothing that belongs to the one who refers to them.
_LEAVES: tuple[type, ...] = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type(...)),
    *(type(NotImplemented), types.CodeType, types.ModuleType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, weakref.ref),
)

#: The part that the objects play, and the objects.
_Group: TypeAlias = "tuple[str, Iterable[Any]]"


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
) -> Walked:
    """Which blocks each of the ``roots`` leads to.

    Args:
        roots: In the order in which blocks are given to them.
        blocks: Where the storages lie.
        without: Objects that are not entered (the shell, its namespaces).
        user_modules: Names of the modules whose classes are entered.
        deadline: A value of `time.perf_counter` after which no more is visited.
    """
    graph = _Graph(blocks, user_modules, deadline)
    graph.exclude(without)
    # Whatever mode or subclass of tensors is active, torch's own methods are meant.
    with torch_cuda.plain_functions():
        entries = [graph.enter(root.objects) for root in roots]
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
        self._rules = _Rules(blocks, frozenset(user_modules), self._blocks, self._incomplete)

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
            for thing in group:
                kind = type(thing)
                # By its id: to hash a type, or to compare it, may run a metaclass's code.
                rule = rule_of.get(id(kind), _UNKNOWN)
                if rule is _UNKNOWN:
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


_Rule: TypeAlias = "Callable[[Any, str, int], Iterable[_Group]]"


def _unknown(thing: Any, part: str, here: int) -> Iterable[_Group]:
    raise AssertionError("a rule is learnt before it is used")


_UNKNOWN: Any = _unknown


class _Rules:
    """What an object of a type refers to, learnt once for each type. None: a leaf."""

    def __init__(
        self,
        blocks: Blocks,
        user_modules: frozenset[str],
        found: dict[int, tuple[int, str]],
        incomplete: set[str],
    ) -> None:
        #: By the id of a type.
        self.of_type: dict[int, _Rule | None] = {id(kind): None for kind in _LEAVES}
        #: Keeps the types alive whose ids are known.
        self._kinds: list[type] = []
        self._find = blocks.finder()
        self._find_storage = blocks.finder(storages=True)
        self._user_modules = user_modules
        self._blocks = found
        self._incomplete = incomplete
        self._torch: Any = torch_cuda.loaded()
        self._saved_names: dict[int, tuple[str, ...]] = {}
        self.of_type[id(types.FunctionType)] = _function
        self.of_type[id(types.BuiltinFunctionType)] = _builtin
        self.of_type[id(types.FrameType)] = _frame
        if self._torch is not None:
            plain = torch_cuda.tensor_base()
            self._grad_fn, self._grad, self._retains_grad, self._layout = (
                foreign.find(plain, name).__get__
                for name in ("grad_fn", "_grad", "retains_grad", "layout")
            )
            autograd = getattr(self._torch._C, "_autograd", None)
            self._saved_type = getattr(autograd, "SavedTensor", None)

    def learn(self, kind: type) -> _Rule | None:
        rule = self._rule(kind)
        self._kinds.append(kind)
        self.of_type[id(kind)] = rule
        return rule

    def _rule(self, kind: type) -> _Rule | None:
        torch, derives = self._torch, foreign.derives
        if derives(kind, type):
            return self._class
        if derives(kind, types.ModuleType, int, float, str, bytes):
            return None
        if torch is not None:
            if derives(kind, torch.Tensor):
                return self._tensor
            if derives(kind, torch.UntypedStorage):
                return self._storage
            if derives(kind, torch.nn.Module):
                return self._module
            if derives(kind, torch.optim.Optimizer):
                return self._optimizer
            if any(
                "next_functions" in foreign.class_attributes(base) and not foreign.in_python(base)
                for base in foreign.mro(kind)
            ):
                return self._node
        return _anything

    def _class(self, thing: Any, part: str, here: int) -> Iterable[_Group]:
        inside = foreign.class_attributes(thing)
        module = inside.get("__module__")
        if type(module) is str and module in self._user_modules:
            yield part, list(inside.values())

    # --- torch's ---------------------------------------------------------------------------------

    def _tensor(self, thing: Any, part: str, here: int) -> Iterable[_Group]:
        try:
            block = self._find(thing)
        except Exception:  # sparse: no storage of its own; or a subclass without any
            yield part, self._components(thing)
            block = None
        if block is not None:
            self._blocks[here] = (block, part)
        try:
            node = self._grad_fn(thing)
            # Only where torch has nothing to warn of.
            gradient = self._grad(thing) if node is None or self._retains_grad(thing) else None
        except Exception:  # a subclass that stands for no tensor
            gradient = node = None
        if gradient is not None:
            yield "gradients", (gradient,)
        if node is not None:
            yield "autograd graph", (node,)
        inside = gc.get_referents(thing)
        if len(inside) > 1:  # always its type; sometimes the node
            yield part, [each for each in inside if each is not node]

    def _storage(self, thing: Any, part: str, here: int) -> Iterable[_Group]:
        block = self._find_storage(thing)
        if block is not None:
            self._blocks[here] = (block, part)
        return ()

    def _components(self, thing: Any) -> list[Any]:
        torch, plain = self._torch, torch_cuda.tensor_base()
        try:
            layout = self._layout(thing)
            names: tuple[str, ...] = ()
            if layout is torch.sparse_coo:
                names = ("_indices", "_values")
            elif layout in (torch.sparse_csr, torch.sparse_bsr):
                names = ("crow_indices", "col_indices", "values")
            elif layout in (torch.sparse_csc, torch.sparse_bsc):
                names = ("ccol_indices", "row_indices", "values")
            return [getattr(plain, name)(thing) for name in names]
        except Exception:  # no tensor to ask
            pass
        return []

    def _module(self, thing: Any, part: str, here: int) -> Iterable[_Group]:
        rest: list[Any] = []
        for name, value in foreign.entries(foreign.attributes(thing, self._torch.nn.Module)):
            inner = _OWN.get(name) if type(name) is str else None
            if inner is None:
                rest.append(value)
            else:
                yield inner, [each for _, each in foreign.entries(value)]
            if type(value) is self._torch._C.ScriptModule:
                yield from self._scripted(value)
        yield part, rest

    def _scripted(self, module: Any) -> Iterable[_Group]:
        """What a scripted module keeps in C++."""
        inside = self._torch._C
        yield "parameters", [each for _, each in inside.ParameterDict(module).items()]
        yield "buffers", [each for _, each in inside.BufferDict(module).items()]
        for _, below in inside.ModuleDict(module).items():
            yield from self._scripted(below)

    def _optimizer(self, thing: Any, part: str, here: int) -> Iterable[_Group]:
        for name, value in foreign.entries(foreign.attributes(thing, self._torch.optim.Optimizer)):
            yield _OF_OPTIMIZER.get(name, part) if type(name) is str else part, (value,)

    def _node(self, thing: Any, part: str, here: int) -> Iterable[_Group]:
        """A node of autograd's graph: the nodes below it, and what it saved for backward."""
        kind = type(thing)
        names = self._saved_names.get(id(kind))
        if names is None:
            defined = {n for base in foreign.mro(kind) for n in foreign.class_attributes(base)}
            # "variable": the leaf whose gradient is summed up here.
            names = tuple(n for n in defined if n.startswith("_raw_saved_") or n == "variable")
            self._saved_names[id(kind)] = names
        held: list[Any] = []
        try:
            held += [below for below, _ in foreign.slot(thing, "next_functions") or ()]
            for name in names:
                saved = foreign.slot(thing, name)
                for each in saved if type(saved) in (tuple, list) else (saved,):
                    held += self._saved(each)
        except RuntimeError:  # freed by a backward pass
            pass
        held += gc.get_referents(thing)
        yield part, held

    def _saved(self, saved: Any) -> list[Any]:
        if type(saved) is not self._saved_type:
            return [saved]
        # Not unpacked: that would run hooks, which may move memory or compute anew.
        if hasattr(self._saved_type, "data"):
            return [saved.data, saved.unpack_hook]
        self._incomplete.add("this torch does not tell what autograd has saved for backward")
        return []


#: The parts that the attributes of a module play, and of an optimizer.
_OWN = {"_parameters": "parameters", "_buffers": "buffers"}
_OF_OPTIMIZER = {"state": "optimizer state", "param_groups": "parameters"}


def _anything(thing: Any, part: str, here: int) -> Iterable[_Group]:
    # What the collector does not track refers to nothing that it could see.
    return ((part, gc.get_referents(thing)),) if gc.is_tracked(thing) else ()


def _function(thing: Any, part: str, here: int) -> Iterable[_Group]:
    """Not its globals, which are its module's."""
    yield "closure", (thing.__closure__, thing.__defaults__, thing.__kwdefaults__, vars(thing))


def _builtin(thing: Any, part: str, here: int) -> Iterable[_Group]:
    """A method made in C holds its object; a function made in C refers to its module."""
    return ((part, (thing.__self__,)),)


def _frame(thing: Any, part: str, here: int) -> Iterable[_Group]:
    """What a frame holds itself. Not by ``f_locals``, which would hold on to it all once more."""
    others = {id(thing.f_back), id(thing.f_globals), id(thing.f_builtins)}
    yield "locals", [inner for inner in gc.get_referents(thing) if id(inner) not in others]
