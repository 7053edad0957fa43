"""The referents of an object, with their roles: a rule for each type, determined once.

They come from ``gc.get_referents``, which calls the types' own C code, or from where torch keeps
them; objects are read through `gpumagic.system.introspection`.
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
from gpumagic.cuda.storages import tensor_base
from gpumagic.memory.allocator_blocks import Blocks
from gpumagic.system import introspection

#: Types whose objects have no referents that count.
_LEAVES: tuple[type, ...] = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, type(...)),
    *(type(NotImplemented), types.CodeType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
    types.WrapperDescriptorType,
)

#: The role of the objects ("parameters", "closure"), and the objects.
Group: TypeAlias = "tuple[str, Iterable[Any]]"


_Rule: TypeAlias = "Callable[[Any, str, int], Iterable[Group]]"


def _unknown(thing: Any, part: str, here: int) -> Iterable[Group]:
    raise AssertionError("a rule is determined before it is used")


UNKNOWN: Any = _unknown


class Rules:
    """The rules by type: the referents of its objects; None for no referents."""

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
        self._spaces = introspection.module_namespaces().keys()
        if self._torch is not None:
            plain = tensor_base()
            self._grad_fn, self._grad, self._retains_grad, self._layout = (
                introspection.find(plain, name).__get__
                for name in ("grad_fn", "_grad", "retains_grad", "layout")
            )
            autograd = getattr(self._torch._C, "_autograd", None)
            self._saved_type = getattr(autograd, "SavedTensor", None)

    def of(self, kind: type) -> _Rule | None:
        """Return the rule of a type; None for a leaf."""
        rule = self.of_type.get(id(kind), UNKNOWN)
        return self.learn(kind) if rule is UNKNOWN else rule

    def is_node(self, kind: type) -> bool:
        """Return whether a type is that of nodes of autograd's graph."""
        return self.of(kind) == self._node

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
        """Return a sequence; a long one in parts, without those whose elements refer to nothing."""
        if len(thing) <= _PART:
            return ((part, thing),)
        return ((part, Part(thing, at, self.of_type)) for at in range(0, len(thing), _PART))

    def _anything(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        # Also if the collector does not track it: a dictionary of NumPy arrays of objects.
        return self._sequence(gc.get_referents(thing), part, here)

    def _array(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        """Return a NumPy array's base or own objects, which the collector does not know."""
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
            # Slicing a subclass runs its code, iterating does not.
            yield from self._sequence(flat, part, 0) if exact else ((part, flat),)
        elif type(array) is self._numpy.ndarray:
            for name in fields:
                yield from self._elements(array[name], part)
        else:
            self._incomplete.add("records in subclasses of NumPy's arrays were not visited")

    def _class(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        inside = introspection.class_attributes(thing)
        module = inside.get("__module__")
        if type(module) is not str:
            return
        if module in self._user_modules or module not in sys.modules:
            yield part, list(inside.values())

    # --- what belongs to modules -----------------------------------------------------------------

    def _plugin(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        """Return what is in a module of the user's that is not in `sys.modules`."""
        if id(thing) not in self._modules:
            yield from self._globals(introspection.module_attributes(thing), part)

    def _globals(self, space: dict[str, Any], part: str) -> Iterable[Group]:
        """Return the namespace of code, unless it is that of a module in `sys.modules`."""
        file = dict.get(space, "__file__")
        if id(space) not in self._spaces and tracebacks.is_own(file if type(file) is str else None):
            yield part, (space,)

    def _function(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        yield "closure", (thing.__closure__, thing.__defaults__, thing.__kwdefaults__, vars(thing))
        yield from self._globals(thing.__globals__, part)

    def _frame(self, thing: Any, part: str, here: int) -> Iterable[Group]:
        """Return a frame's own variables. Not by ``f_locals``, which would reference them again."""
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
            # Only where torch does not warn.
            gradient = self._grad(thing) if node is None or self._retains_grad(thing) else None
        except Exception:  # a subclass without a tensor's data
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
        """Return a scripted module's tensors, which are kept in C++."""
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
        """Return the next nodes of a node of autograd's graph, and what it saved for backward."""
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
        # Not unpacked: that would run hooks, which may move memory or recompute.
        if hasattr(self._saved_type, "data"):
            return [saved.data, saved.unpack_hook]
        self._incomplete.add("this torch does not report what autograd has saved for backward")
        return []


#: The elements of a list that are visited between two readings of the clock.
_PART = 1 << 15


class Part:
    """A part of a long list or tuple, sliced when it is iterated over."""

    def __init__(self, whole: Any, at: int, of_type: Mapping[int, Any]) -> None:
        self._whole = whole
        self._at = at
        self._of_type = of_type

    def __iter__(self) -> Iterator[Any]:
        part = self._whole[self._at : self._at + _PART]
        # Without a Python step for each: most long lists are of numbers or strings.
        kinds = set(map(id, map(type, part)))
        leaves = all(self._of_type.get(kind, UNKNOWN) is None for kind in kinds)
        return iter(()) if leaves else iter(part)


#: The roles of the attributes of a module, and of an optimizer.
_OWN = {"_parameters": "parameters", "_buffers": "buffers"}
_OF_OPTIMIZER = {"state": "optimizer state", "param_groups": "parameters"}


def _builtin(thing: Any, part: str, here: int) -> Iterable[Group]:
    """Return the object of a method made in C, or the module of a function made in C."""
    return ((part, (thing.__self__,)),)


def finalizers() -> list[tuple[Any, ...]]:
    """Return the function and arguments of each ``weakref.finalize`` that has not run yet."""
    return [(call.func, call.args, call.kwargs) for call in list(_FINALIZERS.values())]


#: By such an object, its function and arguments, which it does not keep itself.
_FINALIZERS: Mapping[Any, Any] = introspection.class_attributes(weakref.finalize).get(
    "_registry", {}
)


def _finalizer(thing: Any, part: str, here: int) -> Iterable[Group]:
    call = _FINALIZERS.get(thing)
    if call is not None:
        yield part, (call.func, call.args, call.kwargs)
