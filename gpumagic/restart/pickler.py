"""The pickle of a notebook's variables: cloudpickle's, and what it, torch and NumPy leave out."""

from __future__ import annotations

import copyreg
import functools
import importlib
import io
import pickle
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING, Any

import cloudpickle

from gpumagic.cuda import failure, torch_cuda
from gpumagic.restart.mapped_files import MappedFiles
from gpumagic.system import introspection
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from torch import device as _Device  # noqa: N812

#: What IPython binds in every new shell, and has in `user_ns_hidden`, as later each output.
GIVEN = ("get_ipython", "exit", "quit", "open", "In", "Out", "_dh")
#: Python's limit of nested calls: a chain of objects takes three to five for each. 8 MiB of stack
#: hold more. Python 3.12.0 to 3.12.2 have a limit of 1,500 of their own, which cannot be set.
_DEEPEST = 10_000

#: The standard streams.
STREAMS = ("stdin", "stdout", "stderr")

#: The methods that decide how an object is pickled.
_REDUCING = ("__reduce_ex__", "__reduce__", "__getstate__")


def own_streams() -> dict[str, Any]:
    """Return the standard streams that are those of the process or of its kernel, by name.

    Another one, a `io.StringIO` for example, is the user's, and what it holds is data.
    """
    found = {name: getattr(sys, name) for name in STREAMS}
    return {
        name: each
        for name, each in found.items()
        if each is getattr(sys, f"__{name}__") or type(each).__module__ == "ipykernel.iostream"
    }


def _given(shell: Shell) -> dict[str, Any]:
    """Return what a process with a shell has anyway, by names that are those of every process."""
    hidden = shell.user_ns_hidden
    found = {name: hidden[name] for name in GIVEN if name in hidden}
    return {**found, **own_streams(), "shell": shell, "namespace": shell.user_ns}


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a notebook's variables; large data are left to `buffers` and `storages`."""

    def __init__(self, file: IO[bytes], shell: Shell) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        #: By the address of each, which is its number.
        self.storages: dict[int, Any] = {}
        #: The files of the code that was pickled: its cells.
        self.files: set[str] = set()
        #: The names of what the new process has anyway, by identity.
        self.given = {id(each): name for name, each in _given(shell).items()}
        self._has_graph = False
        super().__init__(file, protocol=5, buffer_callback=self.buffers.append)
        # cloudpickle gives each set of functions a copy of their globals; ours have the notebook's,
        # into which it puts the values of the globals that they use.
        self.globals_ref[id(shell.user_ns)] = shell.user_ns
        # Not while torch is being imported, or after its import has failed.
        self._torch: Any = torch_cuda.loaded() if hasattr(torch_cuda.loaded(), "Tensor") else None
        self._context_is_dead = failure.check_context() is not None
        self._files = MappedFiles()
        self._numpy: Any = sys.modules.get("numpy")

    def add(self, value: Any) -> bool:
        """Pickle a variable; return whether it has a tensor that loses its autograd graph."""
        self._has_graph, limit = False, sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _DEEPEST))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of what `_tensor` sees to
                self.dump(value)
        finally:
            sys.setrecursionlimit(limit)
        return self._has_graph

    def persistent_id(self, value: Any) -> Any:
        """Refer to what the new process has anyway, to devices, and to the bytes of tensors."""
        kind, torch = type(value), self._torch
        if id(value) in self.given:
            return "given", self.given[id(value)]
        if torch is None:
            return None
        if kind is torch.device:
            return "device", str(value)
        if issubclass(kind, (torch.storage.TypedStorage, torch.UntypedStorage)):
            typed = issubclass(kind, torch.storage.TypedStorage)
            untyped = value._untyped_storage if typed else value
            if untyped.device.type == "cpu":
                self._files.refuse(untyped.data_ptr())
            elif untyped.device.type == "cuda" and self._context_is_dead:
                raise pickle.PicklingError("on the GPU, which cannot be read any more")
            self.storages[untyped._cdata] = untyped
            return "storage", untyped._cdata, value.dtype if typed else None
        if issubclass(kind, torch.Tensor) and not value.is_leaf:  # also where it is met again
            self._has_graph = True
        return None

    def reducer_override(self, value: Any) -> Any:
        """Reduce what torch, NumPy and cloudpickle leave out, or copy where it is shared."""
        kind, torch, numpy = type(value), self._torch, self._numpy
        if torch is not None and issubclass(kind, torch.Tensor):
            return self._tensor(value)
        if torch is not None and issubclass(kind, torch.optim.Optimizer):
            base = torch.optim.Optimizer
            if all(getattr(kind, each) is getattr(base, each) for each in _REDUCING):
                return _optimizer, (kind,), dict(vars(value))  # torch leaves out hooks and others
        if torch is not None and kind is torch.Generator and value.device.type != "cpu":
            return _gpu_generator, *value.__reduce__()[1:]
        if torch is not None and issubclass(kind, (torch.Stream, torch.Event)):
            raise pickle.PicklingError("a stream or event of a GPU")
        if torch is not None and issubclass(kind, torch.utils.data.dataloader._BaseDataLoaderIter):
            raise pickle.PicklingError("an iterator of a DataLoader")
        if numpy is not None and issubclass(kind, numpy.ndarray):
            mapped = self._files.reduced(value)
            return super().reducer_override(value) if mapped is None else mapped
        if kind is types.CodeType:
            self.files.add(value.co_filename)
            make, arguments = self.dispatch_table[types.CodeType](value)
            return _code, (make, arguments, value.co_filename)
        if kind is types.CellType:
            try:  # it is filled afterwards, since what is in it may refer to it
                content = {"cell_contents": value.cell_contents}
                return kind, (), content, None, None, _set_attributes
            except ValueError:  # it is empty
                return kind, ()
        if kind is types.FunctionType and value.__closure__:
            return self._closure(value)
        if name := introspection.imported_as(value):
            return importlib.import_module, (name,)
        if issubclass(kind, io.IOBase) and not issubclass(kind, (io.StringIO, io.BytesIO)):
            raise pickle.PicklingError("an open file")  # cloudpickle would copy its content
        if kind is weakref.finalize:  # as a `tempfile.TemporaryDirectory` has
            raise pickle.PicklingError("it is cleaned up when this process ends")
        if kind is memoryview:  # of which cloudpickle would make bytes
            raise pickle.PicklingError("cannot pickle 'memoryview' object")
        if kind is functools._lru_cache_wrapper and value.__module__ == "__main__":
            options = value.cache_parameters()
            return _cached, (value.__wrapped__, options["maxsize"], options["typed"])
        if kind is functools.cached_property:  # before Python 3.12 it has a lock
            return kind, (value.func,), {"attrname": value.attrname}
        if kind is weakref.ref and value.__callback__ is None and value() is not None:
            return weakref.ref, (value(),)
        reduced = super().reducer_override(value)
        if issubclass(kind, type) and type(reduced) is tuple and len(reduced) > 2:
            reduced[2][0]["__qualname__"] = value.__qualname__  # of a class within another one
        return reduced

    def _closure(self, value: types.FunctionType) -> Any:
        """Reduce a function with its cells, which it may share; cloudpickle gives it new ones."""
        reduced = super().reducer_override(value)
        if reduced is NotImplemented:
            return reduced
        make, (*arguments, _), state, *more = reduced
        state[1]["__closure__"] = None  # so that cloudpickle fills none
        return make, (*arguments, value.__closure__), state, *more

    def _tensor(self, value: Any) -> Any:
        """Reduce a tensor with its gradient and hooks, and without its graph, which has no pickle.

        It would come back as a leaf that requires grad: its ``backward()`` would do nothing.
        """
        make, arguments, *more = value.__reduce_ex__(5)
        storage = self._torch.storage  # as in `torch.save`, each is a typed one
        wrap = functools.partial(storage.TypedStorage, dtype=self._torch.uint8, _internal=True)
        arguments = [
            wrap(wrap_storage=each) if type(each) is storage.UntypedStorage else each
            for each in arguments
        ]
        hooks = "_backward_hooks", "_post_accumulate_grad_hooks"  # not before torch 2.1
        names: tuple[str, ...] = ("grad", *hooks)
        if not value.is_leaf:
            names = ("grad",) if value.retains_grad else ()
        found = {name: getattr(value, name, None) for name in names}
        attributes = {name: each for name, each in found.items() if each is not None}
        if not value.is_leaf:
            attributes["requires_grad"] = False
        if more or not attributes:
            return make, tuple(arguments), *more
        return make, tuple(arguments), attributes, None, None, _set_attributes


def _set_attributes(made: object, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(made, name, value)


def _optimizer(kind: type) -> Any:
    """Make an optimizer whose class has its hooks in place, before its own ``step`` is loaded."""
    torch: Any = torch_cuda.require()
    made = copyreg.__newobj__(kind)  # type: ignore[attr-defined]
    torch.optim.Optimizer.__setstate__(made, {"defaults": {}})
    return made


def _gpu_generator(device: _Device) -> Any:
    if device.type == "cpu":
        raise RuntimeError("a random generator of a GPU that is hidden")
    torch: Any = torch_cuda.require()
    return torch.Generator(device)


def _code(
    make: Callable[..., types.CodeType], arguments: tuple[Any, ...], file: str
) -> types.CodeType:
    """Make code with the name of its cell: cloudpickle drops it, and with it the source."""
    made: types.CodeType = make(*arguments)
    return made.replace(co_filename=file)


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def on_host(data: memoryview) -> Any:
    """Return these bytes as a storage of the host, which shares their memory."""
    torch: Any = torch_cuda.require()
    made = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0)
    return made.untyped_storage()


class Unpickler(pickle.Unpickler):
    """Loads what a `Pickler` wrote.

    ``storage`` returns a storage by its number, ``device`` where a device is in this process.
    """

    def __init__(
        self,
        file: IO[bytes],
        buffers: Iterable[Any],
        storage: Callable[[int], Any],
        device: Callable[[str], str],
        shell: Shell,
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._storage, self._device, self._given = storage, device, _given(shell)

    def persistent_load(self, key: tuple[Any, ...]) -> Any:
        """Return what a reference refers to.

        Raises:
            KeyError: this shell has not what the other had.
        """
        kind, name, *more = key
        if kind == "given":
            return self._given[name]
        torch: Any = torch_cuda.require()
        if kind == "device":
            return torch.device(self._device(name))
        storage, (dtype,) = self._storage(name), more
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
