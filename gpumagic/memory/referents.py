"""What an object refers to, and which part that plays: a rule for each type, learnt once.

Children come from ``gc.get_referents``, which asks the types' own C code, or from where torch keeps
them; objects are asked through `gpumagic.system.introspection`.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from gpumagic.cells import tracebacks
from gpumagic.cuda import torch_cuda
from gpumagic.cuda.tensor_functions import tensor_base
from gpumagic.memory.allocator_blocks import Blocks
from gpumagic.system import introspection

#: Types that refer to nothing, or to nothing that belongs to the one who refers to them.
_LEAVES: tuple[type, ...] = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, type(...)),
    *(type(NotImplemented), types.CodeType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
    types.WrapperDescriptorType,
)

#: The part that the objects play, and the objects.
Group: TypeAlias = "tuple[str, Iterable[Any]]"


_Rule: TypeAlias = "Callable[[Any, str, int], Iterable[Group]]"


def _unknown(thing: Any, part: str, here: int) -> Iterable[Group]:
    raise AssertionError("a rule is learnt before it is used")


UNKNOWN: Any = _unknown


class Rules:
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
        self.of_type[id(list)] = self.of_type[id(tuple)] = self._sequence
        self.of_type[id(types.FunctionType)] = self._function
        self.of_type[id(types.BuiltinFunctionType)] = _builtin
        self.of_type[id(types.FrameType)] = self._frame
        self.of_type[id(weakref.finalize)] = _finalizer
        self._numpy: Any = sys.modules.get("numpy")
        loaded = list(sys.modules.values())
        self._modules = {id(module) for module in loaded}
        self._spaces = {id(introspection.module_attributes(module)) for module in loaded}
        if self._torch is not None:
            plain = tensor_base()
            self._grad_fn, self._grad, self._retains_grad, self._layout = (
                introspection.find(plain, name).__get__
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
        torch, derives = self._torch, introspection.derives
        if derives(kind, type):
            return self._class
        if derives(kind, int, float, str, bytes):
            return None
        if derives(kind, types.ModuleType):
            return self._plugin
        array = introspection.module_attributes(self._numpy).get("ndarray")
        if array is not None and derives(kind, array):
            return self._array
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
                "next_functions" in introspection.class_attributes(base)
                and not introspection.in_python(base)
                for base in introspection.mro(kind)
            ):
                return self._node
        return self._anything

    def _sequence(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        """A sequence; a long one in parts, without those in which all refer to nothing."""
        if len(thing) <= _PART:
            return ((part, thing),)
        return ((part, Part(thing, at, self.of_type)) for at in range(0, len(thing), _PART))

    def _anything(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        # Whether the collector tracks it says nothing: not so a dictionary of arrays of objects.
        return self._sequence(gc.get_referents(thing), part, here)

    def _array(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        """A NumPy array, of which the collector knows nothing: its base, or its own objects."""
        base = introspection.slot(thing, "base")
        if gc.is_tracked(thing):  # a subclass: its attributes
            yield part, gc.get_referents(thing)
        if base is not None:  # a view: the elements are the base's
            yield part, (base,)
        elif introspection.slot(thing, "dtype").hasobject:
            yield from self._elements(thing, part)

    def _elements(self, array: Any, part: str) -> Iterable[Group]:
        fields = introspection.slot(array, "dtype").names
        if fields is None:
            flat, exact = introspection.slot(array, "flat"), type(array) is self._numpy.ndarray
            # To take a part of a subclass's runs its code, to go through it does not.
            yield from self._sequence(flat, part, 0) if exact else ((part, flat),)
        elif type(array) is self._numpy.ndarray:
            for name in fields:
                yield from self._elements(array[name], part)
        else:
            self._incomplete.add("records in subclasses of NumPy's arrays were not looked at")

    def _class(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        inside = introspection.class_attributes(thing)
        module = inside.get("__module__")
        if type(module) is not str:
            return
        if module in self._user_modules or module not in sys.modules:
            yield part, list(inside.values())

    # --- what belongs to modules -----------------------------------------------------------------

    def _plugin(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        """A module that is no other's to hold: loaded from a file of the user's, and not listed."""
        if id(thing) not in self._modules:
            yield from self._globals(introspection.module_attributes(thing), part)

    def _globals(self, space: dict[str, Any], part: str) -> Iterable[Group]:
        """The namespace of code; nothing where it is that of a module which is listed."""
        file = dict.get(space, "__file__")
        if id(space) not in self._spaces and tracebacks.is_own(file if type(file) is str else None):
            yield part, (space,)

    def _function(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        yield "closure", (thing.__closure__, thing.__defaults__, thing.__kwdefaults__, vars(thing))
        yield from self._globals(thing.__globals__, part)

    def _frame(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        """What a frame holds itself. Not by ``f_locals``, which would hold it all once more."""
        others = {id(thing.f_back), id(thing.f_globals), id(thing.f_builtins)}
        yield "locals", [inner for inner in gc.get_referents(thing) if id(inner) not in others]
        yield from self._globals(thing.f_globals, part)

    # --- torch's ---------------------------------------------------------------------------------

    def _tensor(self, thing: Any, part: str, here: int) -> Iterable[Group]:
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

    def _storage(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        block = self._find_storage(thing)
        if block is not None:
            self._blocks[here] = (block, part)
        return ()

    def _components(self, thing: Any) -> list[Any]:
        torch, plain = self._torch, tensor_base()
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

    def _module(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        rest: list[Any] = []
        for name, value in introspection.entries(
            introspection.attributes(thing, self._torch.nn.Module)
        ):
            inner = _OWN.get(name) if type(name) is str else None
            if inner is None:
                rest.append(value)
            else:
                yield inner, [each for _, each in introspection.entries(value)]
            if type(value) is self._torch._C.ScriptModule:
                yield from self._scripted(value)
        yield part, rest

    def _scripted(self, module: Any) -> Iterable[Group]:
        """What a scripted module keeps in C++."""
        inside = self._torch._C
        yield "parameters", [each for _, each in inside.ParameterDict(module).items()]
        yield "buffers", [each for _, each in inside.BufferDict(module).items()]
        for _, below in inside.ModuleDict(module).items():
            yield from self._scripted(below)

    def _optimizer(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        for name, value in introspection.entries(
            introspection.attributes(thing, self._torch.optim.Optimizer)
        ):
            yield _OF_OPTIMIZER.get(name, part) if type(name) is str else part, (value,)

    def _node(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        """A node of autograd's graph: the nodes below it, and what it saved for backward."""
        kind = type(thing)
        names = self._saved_names.get(id(kind))
        if names is None:
            defined = {
                n for base in introspection.mro(kind) for n in introspection.class_attributes(base)
            }
            # "variable": the leaf whose gradient is summed up here.
            names = tuple(n for n in defined if n.startswith("_raw_saved_") or n == "variable")
            self._saved_names[id(kind)] = names
        held: list[Any] = []
        try:
            held += [below for below, _ in introspection.slot(thing, "next_functions") or ()]
            for name in names:
                saved = introspection.slot(thing, name)
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


#: So many elements of a list are looked at before the time is.
_PART = 1 << 15


class Part:
    """A part of a long list or tuple, taken out when it is iterated over."""

    def __init__(self, whole: Any, at: int, of_type: Mapping[int, Any]) -> None:
        self._whole = whole
        self._at = at
        self._of_type = of_type

    def __iter__(self) -> Iterator[Any]:
        part = self._whole[self._at : self._at + _PART]
        # Without a step of Python's for each: most long lists are of numbers or texts.
        kinds = set(map(id, map(type, part)))
        leaves = all(self._of_type.get(kind, UNKNOWN) is None for kind in kinds)
        return iter(()) if leaves else iter(part)


#: The parts that the attributes of a module play, and of an optimizer.
_OWN = {"_parameters": "parameters", "_buffers": "buffers"}
_OF_OPTIMIZER = {"state": "optimizer state", "param_groups": "parameters"}


def _builtin(thing: Any, part: str, here: int) -> Iterable[Group]:
    """A method made in C holds its object; a function made in C refers to its module."""
    return ((part, (thing.__self__,)),)


def finalizers() -> list[tuple[Any, ...]]:
    """What each ``weakref.finalize`` that has not run yet is to call, and with what."""
    return [(told.func, told.args, told.kwargs) for told in list(_FINALIZERS.values())]


#: By such an object, what it is to call, which it does not keep itself.
_FINALIZERS: Mapping[Any, Any] = introspection.class_attributes(weakref.finalize).get(
    "_registry", {}
)


def _finalizer(thing: Any, part: str, here: int) -> Iterable[Group]:
    told = _FINALIZERS.get(thing)
    if told is not None:
        yield part, (told.func, told.args, told.kwargs)
