"""The pickle of a notebook's variables: cloudpickle's, and what it, torch and NumPy leave out."""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import types
import typing
import warnings
import weakref
from typing import IO, TYPE_CHECKING, Any

import cloudpickle

from gpumagic.cuda import failure, torch_cuda
from gpumagic.restart.variables import refused, unpickler
from gpumagic.restart.variables.held import Held, Reference, type_name
from gpumagic.restart.variables.memory import Memory
from gpumagic.restart.variables.unpickler import given
from gpumagic.system import host_memory, introspection, text
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Python's limit of nested calls: a chain of objects takes three to five for each. 8 MiB of stack
#: hold more. Python 3.12.0 to 3.12.2 have a limit of 1,500 of their own, which cannot be set.
_DEEPEST = 10_000

#: The methods that decide how an object is pickled.
_REDUCING = ("__reduce_ex__", "__reduce__", "__getstate__")
#: So many objects of libraries are tried when one of them cannot be kept.
_MOST_MET = 10_000


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a notebook's variables; large data are left to `buffers` and `storages`."""

    def __init__(self, file: IO[bytes], shell: Shell, held: Held) -> None:
        self.out = file
        #: That of tensors, arrays and buffers, by its number.
        self.memory: list[Memory] = []
        #: The files of the code that was pickled: its cells.
        self.files: set[str] = set()
        #: The names of what the new process has anyway, by identity.
        self.given = {id(each): name for name, each in given(shell).items()}
        self._shell = shell
        #: What modules hold, and which of that the variables refer to; what is in some of them.
        self.held, self.referred = held, dict[Reference, str]()
        self.contents = dict[str, Any]()
        self._numbers, self._met = dict[int, int](), list[Any]()
        self._has_graph = False
        self._watched, self._final = list[Any](), {id(of) for _, of in finalizers()}
        super().__init__(file, protocol=5)
        # cloudpickle gives each set of functions a copy of their globals; ours have the notebook's,
        # into which it puts the values of the globals that they use.
        self.globals_ref[id(shell.user_ns)] = shell.user_ns
        # Not while torch is being imported, or after its import has failed.
        self._torch: Any = torch_cuda.loaded() if hasattr(torch_cuda.loaded(), "Tensor") else None
        self._context_is_dead = failure.check_context() is not None
        self._files = refused.MappedFiles()
        self._numpy: Any = sys.modules.get("numpy")

    def add(self, value: Any) -> bool:
        """Pickle a variable; return whether it has a tensor that loses its autograd graph."""
        self._has_graph, limit = False, sys.getrecursionlimit()
        self._met.clear()
        sys.setrecursionlimit(max(limit, _DEEPEST))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of what `_tensor` sees to
                self.dump(value)
        finally:
            sys.setrecursionlimit(limit)
        return self._has_graph

    def blame(self, error: Exception) -> str:
        """Return why `add` has failed, in the words of the outermost object of a library."""
        for each in self._met:
            try:
                Pickler(io.BytesIO(), self._shell, self.held).add(each)
            except Exception as its:
                reason = text.reason(its)
                if type(its) is refused.Refused and (its.thing is None or its.thing is each):
                    return reason
                return f"{refused.what(each)}: {reason}"
        return text.reason(error)

    def finalizers(self) -> list[Any]:
        """Return the calls that `weakref.finalize` would make at the end for what is pickled."""
        return [call for call, of in finalizers() if any(of is each for each in self._watched)]

    def persistent_id(self, value: Any) -> Any:
        """Refer to what the new process has anyway, to devices, and to the bytes of tensors."""
        kind, torch = type(value), self._torch
        if id(value) in self.given:
            name = self.given[id(value)]
            if name == "Out" and name not in self.held.bare:
                self.contents[name] = value
            return "given", name
        if reference := self.held.get(value):
            if reference not in self.referred:
                self.referred[reference] = type_name(value)
                if self.held.has_content(reference, value):
                    self.contents[str(reference)] = value
            return "held", *reference
        if self._numpy is not None and kind is self._numpy.ndarray:
            return self._array(value)
        if self._numpy is not None and kind is pickle.PickleBuffer:
            data = self._numpy.frombuffer(value, "u1")
            number = self._number(id(value), _address(data), data.size, value)
            return "buffer", number, not data.flags.writeable
        if torch is None:
            return None
        if kind is torch.device:
            return "device", str(value).encode()  # it is no text that must come back
        if issubclass(kind, (torch.storage.TypedStorage, torch.UntypedStorage)):
            typed = issubclass(kind, torch.storage.TypedStorage)
            untyped = value._untyped_storage if typed else value
            device = str(untyped.device)
            if untyped.device.type == "cuda" and self._context_is_dead:
                raise refused.Refused("on the GPU, which cannot be read any more")
            place = untyped._cdata, untyped.data_ptr(), untyped.nbytes()
            return "storage", self._number(*place, untyped, device), value.dtype if typed else None
        if issubclass(kind, torch.Tensor) and not value.is_leaf:  # also where it is met again
            self._has_graph = True
        return None

    def _number(self, key: int, address: int, size: int, owner: Any, device: str = "cpu") -> bytes:
        """Return the number of this memory; as bytes, for no text or number is lost with it."""
        if key not in self._numbers:
            if device == "cpu":
                self._files.refuse(address)
            self._numbers[key] = len(self.memory)
            self.memory.append(Memory(device, address, size, owner))
        return b"%d" % self._numbers[key]

    def _array(self, array: NDArray[Any]) -> Any:
        """Refer to the bytes of an array, whatever they mean; those of objects are pickled."""
        if array.dtype.hasobject or not array.nbytes or self._is_view(array):
            return None
        address, flags = _address(array), array.flags
        spans = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
        begin = address + sum(each for each in spans if each < 0)
        number = self._number(id(array), begin, sum(map(abs, spans)) + array.itemsize, array)
        how = b"owns " * flags.owndata + b"writeable" * flags.writeable
        return "array", number, array.dtype, array.shape, array.strides, address - begin, how

    def _is_view(self, array: NDArray[Any]) -> bool:
        """Return whether an array is in the memory of another one, which is in one piece."""
        owner = self._owner(array)
        if owner is array or not owner.flags.forc or not array.nbytes:
            return False
        return bool(owner.flags.writeable or not array.flags.writeable)

    def _owner(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array whose memory this one is in: itself, where it is in no other's."""
        base: Any = array.base
        if introspection.name_of(type(base)) == "DummyArray":  # of numpy.lib.stride_tricks
            base = base.base
        return self._owner(base) if type(base) is self._numpy.ndarray else array

    def reducer_override(self, value: Any) -> Any:
        """Reduce what torch, NumPy and cloudpickle leave out, or copy where it is shared."""
        kind, torch, numpy = type(value), self._torch, self._numpy
        if id(value) in self._final:
            self._watched.append(value)
        if len(self._met) < _MOST_MET and refused.what(value):
            self._met.append(value)
        if torch is not None and issubclass(kind, torch.Tensor):
            return self._tensor(value)
        if torch is not None and issubclass(kind, torch.optim.Optimizer):
            base = torch.optim.Optimizer
            if _reduces_as(kind, base):
                # torch leaves out hooks and others.
                return unpickler.optimizer, (kind,), dict(vars(value))
        if torch is not None and kind is torch.Generator and value.device.type != "cpu":
            return unpickler.gpu_generator, *value.__reduce__()[1:]
        if numpy is not None and issubclass(kind, numpy.ndarray):
            return self._view(value)
        if introspection.module_of(kind) == "pandas.core.internals.managers" and _is_shared(value):
            # pandas copies it before it writes to it, by references, which are not kept.
            return value.copy(deep=True).__reduce_ex__(5)
        if words := refused.why(value, torch):
            raise refused.Refused(words, value)
        if kind is types.CodeType:
            self.files.add(value.co_filename)
            make, arguments = self.dispatch_table[types.CodeType](value)
            return unpickler.code_of, (make, arguments, value.co_filename)
        if kind is types.CellType:
            try:  # it is filled afterwards, since what is in it may refer to it
                content = {"cell_contents": value.cell_contents}
                return kind, (), content, None, None, unpickler.set_attributes
            except ValueError:  # it is empty
                return kind, ()
        if kind is types.FunctionType:
            return self._function(value)
        if name := introspection.imported_as(value):
            return importlib.import_module, (name,)
        if kind in refused.FILES:
            return unpickler.closed_file, (value.name, value.mode, getattr(value, "encoding", None))
        if refused.is_bar(kind):  # it is over, and takes no line again
            return object.__new__, (kind,), vars(value), None, None, unpickler.set_variables
        if kind in refused.LOCKS:
            return refused.LOCKS[kind], ()
        if issubclass(kind, BaseException) and _initializes(kind):
            return unpickler.exception, (kind, *value.__reduce__()[1:2]), *value.__reduce__()[2:]
        if kind is functools._lru_cache_wrapper and value.__module__ == "__main__":
            options = value.cache_parameters()
            return unpickler.cached, (value.__wrapped__, options["maxsize"], options["typed"])
        if kind is weakref.ref and value.__callback__ is None and value() is not None:
            return weakref.ref, (value(),)
        if kind in weakref.ProxyTypes:
            return weakref.proxy, (value.__reduce_ex__.__self__,)
        reduced = super().reducer_override(value)
        if reduced is NotImplemented and _asks_for_more(kind):
            # It may need the attributes that are not there yet, as where it wraps another object.
            make, arguments, state, *parts = value.__reduce_ex__(5)
            if type(state) is dict and not any(parts):
                return make, arguments, state, None, None, unpickler.set_variables
        if issubclass(kind, type) and type(reduced) is tuple and len(reduced) > 2:
            reduced[2][0]["__qualname__"] = value.__qualname__  # of a class within another one
            named = typing.NamedTuple in getattr(value, "__orig_bases__", ())
            if "__slots__" in vars(value) and not named:  # cloudpickle sets them when it is made
                reduced[1][3]["__slots__"] = value.__slots__
        return reduced

    def _view(self, array: Any) -> Any:
        """Reduce an array that has no memory of its own, or is of a subclass, with its attributes.

        Of these NumPy keeps the values alone.
        """
        kind, ndarray = type(array), self._numpy.ndarray
        if mapped := self._files.reduced(array):
            return mapped
        if not _reduces_as(kind, ndarray):
            return super().reducer_override(array)
        if kind is not ndarray:
            made = unpickler.of_subclass, (array.view(ndarray), kind)
            return *made, getattr(array, "__dict__", None), None, None, unpickler.set_variables
        if not self._is_view(array):
            return super().reducer_override(array)
        owner = self._owner(array)
        place = _address(array) - _address(owner), array.shape, array.strides
        return unpickler.view, (owner, array.dtype, place, array.flags.writeable)

    def _function(self, value: types.FunctionType) -> Any:
        """Reduce a function with its cells, which it may share; cloudpickle gives it new ones.

        It comes back also where one of its globals is a variable that cannot.
        """
        reduced = super().reducer_override(value)
        if reduced is NotImplemented:
            return reduced
        make, (*arguments, _), state, *more = reduced
        used = state[1]["__globals__"].items()
        state[1]["__globals__"] = {k: each for k, each in used if id(each) not in self.held.absent}
        state[1]["__closure__"] = None  # so that cloudpickle fills none
        return make, (*arguments, value.__closure__), state, *more

    def _tensor(self, value: Any) -> Any:
        """Reduce a tensor with its gradient and hooks, and without its graph, which has no pickle.

        It would come back as a leaf that requires grad: its ``backward()`` would do nothing. Its
        attributes are set afterwards, since they may refer to it; torch has them among the
        arguments.
        """
        kind, torch = type(value), self._torch
        own, parameter = kind.__reduce_ex__, torch.nn.Parameter
        attributes, state = dict[str, Any](), torch._utils._get_obj_state(value)
        if own not in (torch.Tensor.__reduce_ex__, parameter.__reduce_ex__) or (
            kind.__setstate__ is not torch.Tensor.__setstate__
        ):
            (make, arguments, *more), state = value.__reduce_ex__(5), None
            if more:
                return make, arguments, *more
            if not value.is_leaf:
                attributes["requires_grad"] = False
        elif own is parameter.__reduce_ex__:
            make, arguments = unpickler.parameter, (kind, value.data, value.requires_grad)
        else:
            plain = value if value.is_leaf else value.detach()
            make, arguments = plain._reduce_ex_internal(5)
        storage = torch.storage  # as in `torch.save`, each is a typed one
        wrap = functools.partial(storage.TypedStorage, dtype=torch.uint8, _internal=True)
        arguments = tuple(
            wrap(wrap_storage=each) if type(each) is storage.UntypedStorage else each
            for each in arguments
        )
        if kind is not torch.Tensor and own is torch.Tensor.__reduce_ex__ and not attributes:
            make, arguments = torch._tensor._rebuild_from_type_v2, (make, kind, arguments, {})
        if (value.is_leaf or value.retains_grad) and value.grad is not None:
            attributes["grad"] = value.grad
        for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if value.is_leaf and getattr(value, hooks, None):
                attributes[hooks] = getattr(value, hooks)
        if not state and not attributes:
            return make, arguments
        return make, arguments, (state, attributes), None, None, unpickler.set_state


def finalizers() -> list[tuple[Any, Any]]:
    """Return the calls that are made when an object ends, or this process; and which object."""
    calls: Any = weakref.finalize._registry  # type: ignore[attr-defined]
    return [(each, found[0]) for each in [*calls] if (found := each.peek()) is not None]


def _is_shared(manager: Any) -> bool:
    """Return whether pandas knows of others that share memory with this data of a DataFrame.

    Raises:
        Refused: there is no room for a copy of it.
    """
    copies = getattr(sys.modules["pandas"]._config, "using_copy_on_write", lambda: True)()
    found = [each for each in manager.blocks if copies and hasattr(each, "refs")]  # not pandas 1
    is_shared = any(each.refs.has_reference() for each in found)
    if is_shared and sum(each.values.nbytes for each in found) > host_memory.available():
        raise refused.Refused("a DataFrame on shared memory; there is no room for a copy", manager)
    return is_shared


def _address(array: NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def _initializes(kind: type) -> bool:
    """Return whether an exception has an ``__init__`` of its own: ``args`` may not fit it."""
    own = type(introspection.find(kind, "__init__")) is types.FunctionType
    return own and type(introspection.find(kind, "__reduce__")) is not types.FunctionType


def _reduces_as(kind: type, base: type) -> bool:
    """Return whether objects of a class are pickled as those of a base of it."""
    find = introspection.find  # Python 3.10's objects have no ``__getstate__``
    return all(find(kind, each) is find(base, each) for each in _REDUCING)


def _asks_for_more(kind: type) -> bool:
    """Return whether a class computes attributes, and leaves it to pickle to set its own."""
    found = {name: introspection.find(kind, name) for name in ("__getattr__", "__setstate__")}
    asks = type(found["__getattr__"]) is types.FunctionType and not issubclass(kind, type)
    own = [introspection.find(kind, each) is not vars(object)[each] for each in _REDUCING[:2]]
    return asks and found["__setstate__"] is None and not any(own)
