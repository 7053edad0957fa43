"""Pickle variables: large data is left out, and what cloudpickle loses is included.

A `VariablePickler` writes any number of pickles that refer to one set of `Tables`: tensors,
arrays and long byte strings, each once, by number.
"""

from __future__ import annotations

import contextvars
import functools
import io
import logging
import mmap
import pickle
import struct
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from gpumagic.cuda import failure, storages, torch_cuda
from gpumagic.cuda.storages import plain_functions
from gpumagic.restart.variables import constructors, reducers
from gpumagic.restart.variables.names import global_names
from gpumagic.restart.variables.tables import PickleNotes, Tables
from gpumagic.system import introspection

#: Byte strings of this length, or longer, are not written into the pickle.
_LONG = 1 << 20
#: Objects of these modules load in any process that can import the modules.
_TRUSTED = (
    *("torch.nn.", "torch.optim.", "torch._utils", "torch.storage", "numpy", "copyreg"),
    *("collections", "datetime", "decimal", "fractions", "pathlib", "functools"),
    "gpumagic.restart.variables",
)
#: Classes of torch, ipywidgets and comm whose objects only refer to something in the process.
_UNPICKLABLE = {
    "Widget": "a widget",
    "BaseComm": "a comm, whose other end the front end has",
    "_CudaStreamBase": "a CUDA stream",
    "_CudaEventBase": "a CUDA event",
    "_CUDAGraph": "a CUDA graph",
    "_MemPool": "a pool of CUDA memory",
    "_BaseDataLoaderIter": "an iterator of a DataLoader",
    "_ProfilerResult": "a profile of torch",
}
_OWNERS = ("torch", "ipyw", "comm.")


class LostWithContextError(pickle.PicklingError):
    """The object's data are on a GPU whose context was destroyed (`failure.dead_context`)."""

    def __init__(self) -> None:
        super().__init__("on the GPU")


@dataclass(frozen=True)
class _Numbered:
    key: tuple[Any, ...]


class VariablePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles variables of a notebook whose namespace is ``namespace``."""

    def __init__(
        self,
        file: Any,
        tables: Tables,
        namespace: Mapping[str, Any],
        existing: Mapping[int, str],
        module_data: Collection[int] = (),
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=lambda _: True)
        self._tables, self._namespace, self._existing = tables, namespace, existing
        self._module_data = module_data
        self.notes = PickleNotes()
        self._ids: dict[type, Callable[[Any], Any]] = {
            _Numbered: lambda value: value.key,
            dict: lambda value: ("namespace",) if value is namespace else None,
            type(namespace): lambda value: ("namespace",) if value is namespace else None,
            bytes: functools.partial(self._long_bytes, kind="bytes"),
            bytearray: functools.partial(self._long_bytes, kind="bytearray"),
            pickle.PickleBuffer: self._buffer,
        }
        self._torch: Any = torch_cuda.loaded()
        #: CUDA's objects are refused, without asking CUDA anything.
        self._dead = failure.dead_context() is not None
        self._pins = not self._dead and torch_cuda.initialized()
        self._numpy: Any = sys.modules.get("numpy")
        if not hasattr(self._numpy, "memmap"):
            self._numpy = None
        if self._torch is not None:
            for kind in (self._torch.Tensor, self._torch.nn.Parameter):
                self._ids[kind] = self._plain_tensor
            self._ids[self._torch.UntypedStorage] = self._storage
        if self._numpy is not None:
            self._ids[self._numpy.ndarray] = self._array
        self._reducers: dict[type, Callable[[Any], Any]] = {
            types.FunctionType: self._function,
            types.CodeType: self._code,
            functools._lru_cache_wrapper: self._cached,
            functools.cached_property: lambda value: (
                functools.cached_property,
                (value.func,),
                {"attrname": value.attrname, "__doc__": value.__doc__},
            ),
            contextvars.ContextVar: self._context_variable,
            typing.NewType: reducers.new_type,
            **dict.fromkeys(reducers.PARAMETERS, reducers.type_parameter),
            struct.Struct: lambda value: (struct.Struct, (value.format,)),
            memoryview: reducers.view,
            types.MappingProxyType: reducers.proxy,
            weakref.ref: reducers.reference,
            weakref.finalize: reducers.finalizer,
            weakref.WeakKeyDictionary: lambda value: (type(value), (dict(value),)),
            weakref.WeakValueDictionary: lambda value: (type(value), (dict(value),)),
            **dict.fromkeys((logging.Logger, logging.RootLogger), self._logger),
            **dict.fromkeys(reducers.VIEWS, reducers.dict_view),
            **dict.fromkeys(reducers.LOCKS, reducers.lock),
            **dict.fromkeys(reducers.HANDLES, reducers.thread_handle),
        }

    # --- what is left out of the pickle ----------------------------------------------------------

    def persistent_id(self, value: Any) -> Any:
        """Refer to what is in the tables, and to what the new process has anyway."""
        if id(value) in self._module_data:
            self.notes.shared.add(id(value))
        if id(value) in self._existing:
            return ("existing", self._existing[id(value)])
        left_out = self._ids.get(type(value))
        return None if left_out is None else left_out(value)

    def _long_bytes(self, value: Any, kind: str) -> Any:
        if len(value) < _LONG:
            return None
        return ("raw", self._tables.number("raw", value, lambda: (memoryview(value), kind)))

    def _buffer(self, value: pickle.PickleBuffer) -> Any:
        memory = value.raw()
        kind = "readonly" if memory.readonly else "bytearray"
        return ("raw", self._tables.number("raw", memory.obj, lambda: (memory, kind)))

    def _array(self, value: Any) -> Any:
        if value.dtype.hasobject or reducers.map_of(value, self._numpy) is not None:
            return None
        return ("array", self._tables.number("arrays", value, lambda: value))

    def _storage(self, value: Any) -> Any:
        self._check_readable(value)

        def bytes_of() -> Any:
            empty = self._torch.empty(0, dtype=self._torch.uint8, device=value.device)
            return empty.set_(value)

        return ("storage", self._tables.number("tensors", value, bytes_of))

    def _check_readable(self, value: Any) -> None:
        if self._dead and value.device.type == "cuda" and not self._is_parked(value):
            raise LostWithContextError

    def _is_parked(self, value: Any) -> bool:
        """Return whether the data are in host memory (``%gpumem park``)."""
        if isinstance(value, self._torch.Generator):
            return False
        with plain_functions():
            storage = storages.storage_of(value)
            return storage is not None and storages.is_parked(storage)

    def _tensor(self, value: Any) -> Any:
        self._check_readable(value)
        if value.grad_fn is not None:
            self.notes.omitted.add("its autograd graph")
        if value.device.type == "cpu" and self._pins and value.is_pinned():
            self.notes.omitted.add("pinned memory")
        return ("tensor", self._tables.number("tensors", value, lambda: value))

    def _plain_tensor(self, value: Any) -> Any:
        """Refer to a tensor without attributes; others are reduced by `_torch_object`."""
        return None if self._tensor_state(value) else self._tensor(value)

    def _tensor_state(self, value: Any) -> dict[str, Any]:
        state = {"attributes": dict(value.__dict__)}
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if getattr(value, name, None):
                state[name] = getattr(value, name)
        if (value.is_leaf or value.retains_grad) and value.grad is not None:
            state["grad"] = value.grad
        return state if len(state) > 1 or state["attributes"] else {}

    # --- what cloudpickle would lose or restore wrongly ------------------------------------------

    def reducer_override(self, value: Any) -> Any:
        """Reduce objects that need care; cloudpickle does all others."""
        kind = type(value)
        reduced: Any = NotImplemented
        if self._dead and self._torch is not None and isinstance(value, self._torch.Tensor):
            with plain_functions():
                self._check_readable(value)
        reducer = self._reducers.get(kind)
        if reducer is not None:
            reduced = reducer(value)
        elif isinstance(value, type):
            reduced = self._class(value)
        elif isinstance(value, io.IOBase):
            reduced = reducers.file(value)
        elif isinstance(value, types.ModuleType) and kind is not types.ModuleType:
            reduced = reducers.module(value)
        elif isinstance(value, threading.Thread) and value.is_alive():
            raise pickle.PicklingError("a running thread")
        elif isinstance(value, BaseException):
            reduced = self._exception(value)
        elif self._torch is not None and introspection.module_of(kind).partition(".")[0] == "torch":
            if kind is self._torch.Generator:
                self._check_readable(value)
            reduced = self._torch_object(value)
        elif self._numpy is not None and isinstance(value, self._numpy.ndarray):
            reduced = self._memory_map(value)
        elif reducers.looks_attributes_up(kind):
            reduced = reducers.past_getattr(value)
        if reduced is NotImplemented and self._torch is not None:
            reduced = reducers.scheduler(value, self._torch)
        if not isinstance(value, type):
            for base in kind.__mro__:
                what = _UNPICKLABLE.get(base.__name__)
                if what is not None and introspection.module_of(base).startswith(_OWNERS):
                    if self._dead and "CUDA" in what:
                        raise LostWithContextError
                    raise pickle.PicklingError(what)
        if self._torch is not None and isinstance(value, self._torch.Tensor):
            self._other_tensor(value)
        if self.notes.trusted:
            named = isinstance(value, _NAMED)
            where = str(value.__module__) if named else introspection.module_of(kind)
            self.notes.trusted = where.startswith(_TRUSTED) or kind in reducers.PLAIN
        return super().reducer_override(value) if reduced is NotImplemented else reduced

    def _function(self, value: types.FunctionType) -> Any:
        if "_torchdynamo_orig_callable" in value.__dict__:
            raise pickle.PicklingError("a function that torch.compile has made")
        reduced = super().reducer_override(value)
        if value.__globals__ is not self._namespace or not isinstance(reduced, tuple):
            return reduced
        self.notes.used |= global_names(value.__code__)
        self.notes.files.add(value.__code__.co_filename)
        # cloudpickle's copy of a function has its own globals, with what it uses, and shares its
        # cells with no other function.
        (attributes, slots) = reduced[2]
        cells = value.__closure__ or ()
        contents = [reducers.content(cell) for cell in cells]
        state = (attributes, {**slots, "__globals__": {}, "__closure__": None}, contents)
        arguments = (value.__code__, tuple(map(self._cell, cells)))
        return constructors.function, arguments, state, None, None, constructors.set_function

    def _code(self, value: types.CodeType) -> Any:
        # From cloudpickle 3.1.3 on, the file would be "<dynamic-code>", which has no source.
        make, arguments = self.dispatch_table[types.CodeType](value)
        return constructors.code, (make, arguments, value.co_filename)

    def _cell(self, cell: Any) -> Any:
        return self._cells.setdefault(id(cell), reducers.Cell())

    @functools.cached_property
    def _cells(self) -> dict[int, reducers.Cell]:
        return {}

    def _class(self, value: type) -> Any:
        reduced = super().reducer_override(value)
        if isinstance(reduced, tuple) and reduced[0].__name__ == "_make_skeleton_class":
            _, (kind, name, bases, made_with, *others), (state, slots), *rest = reduced
            names, members = reducers.slots(value)
            # Those of a named tuple are set by `typing.NamedTuple`.
            if names is not None and typing.NamedTuple not in bases:
                made_with = {**made_with, "__slots__": names}
                state = {name: each for name, each in state.items() if name not in members}
            arguments = (kind, name, bases, made_with, *others)
            return (constructors.skeleton, arguments, (state, slots), *rest)
        return reduced

    def _cached(self, value: Any) -> Any:
        if getattr(value, "__module__", None) not in ("__main__", None):
            return NotImplemented
        if value.cache_info().currsize:
            self.notes.omitted.add("its cached results")
        options = value.cache_parameters()
        arguments = (value.__wrapped__, options["maxsize"], options["typed"])
        return constructors.cached, arguments, dict(value.__dict__)

    def _exception(self, value: BaseException) -> Any:
        if value.__traceback__ is not None:
            self.notes.omitted.add("its traceback")
        kind = type(value)
        if kind.__reduce__ is not BaseException.__reduce__:
            return NotImplemented
        state = {
            "attributes": value.__dict__,
            "cause": value.__cause__,
            "context": value.__context__,
            "suppressed": value.__suppress_context__,
        }
        set_state = constructors.set_exception
        return constructors.exception, (kind, value.args), state, None, None, set_state

    def _context_variable(self, value: contextvars.ContextVar[Any]) -> Any:
        if value in contextvars.copy_context():
            self.notes.omitted.add("its present value")
        return constructors.context_variable, (value.name, reducers.default(value))

    def _logger(self, value: logging.Logger) -> Any:
        if value.handlers or value.filters:
            self.notes.omitted.add("its handlers")
        return NotImplemented

    def _torch_object(self, value: Any) -> Any:
        torch, kind = self._torch, type(value)
        if kind in (torch.Tensor, torch.nn.Parameter):
            state = self._tensor_state(value)
            set_state = constructors.set_tensor
            return (
                constructors.same,
                (_Numbered(self._tensor(value)),),
                state,
                None,
                None,
                set_state,
            )
        if kind is torch.device and value.type == "cuda":
            self.notes.devices.add(value.index)
            return constructors.device, (value.index,)
        if kind is torch.Generator:
            # As bytes, since a trial does not read tensors.
            return constructors.generator, (value.device, value.device.type, reducers.state(value))
        if kind in (torch.finfo, torch.iinfo):
            return kind, (getattr(torch, value.dtype),)
        if "__getstate__" in vars(kind) and isinstance(value, torch.nn.Module):
            return reducers.parametrized(value, torch.nn.utils.parametrize)
        if kind is torch.storage.TypedStorage:
            return constructors.typed_storage, (value._untyped_storage, value.dtype)
        return NotImplemented

    def _other_tensor(self, value: Any) -> None:
        """Note what tensors of other classes lose: torch pickles them."""
        if type(value) in (self._torch.Tensor, self._torch.nn.Parameter):
            return
        with plain_functions():
            if value.grad_fn is not None:
                self.notes.omitted.add("its autograd graph")
            elif value.grad is not None:
                self.notes.omitted.add("its gradient")

    def _memory_map(self, value: Any) -> Any:
        """Reduce an array in a mapped file to mapping the file again, without copying it."""
        mapping = reducers.map_of(value, self._numpy)
        if mapping is None:
            return NotImplemented
        if mapping.filename is None or mapping.mode == "c":
            raise pickle.PicklingError("a map of a file that is not written back")
        mapping.flush()
        bounds, size = self._numpy.ndarray, len(mapping.base)
        whole = mapping.view(bounds)
        start = whole.__array_interface__["data"][0]
        shift = mapping.offset % mmap.ALLOCATIONGRANULARITY  # the map begins at a page
        offset = value.__array_interface__["data"][0] - start
        mode = "r" if mapping.mode == "r" else "r+"
        arguments = (str(mapping.filename), mode, mapping.offset, size - shift)
        key = ("map", *arguments)
        of = self._maps.setdefault(key, reducers.Mapped(arguments))
        subclass = type(value) is not bounds
        shown = (of, subclass, value.dtype, offset, value.shape, value.strides)
        return constructors.map_view, shown

    @functools.cached_property
    def _maps(self) -> dict[Any, Any]:
        return {}


_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)


class VariableUnpickler(pickle.Unpickler):
    """Loads what a `VariablePickler` wrote; ``find`` returns what is in the tables."""

    def __init__(self, file: Any, find: Callable[[tuple[Any, ...]], Any]) -> None:
        super().__init__(file)
        self._find = find

    def persistent_load(self, key: tuple[Any, ...]) -> Any:
        """Return the object to which a reference refers."""
        return self._find(key)
