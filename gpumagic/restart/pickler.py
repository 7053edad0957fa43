"""The pickle of a notebook's variables: cloudpickle's, and what it and torch leave out."""

from __future__ import annotations

import functools
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterable
from typing import IO, Any

import cloudpickle

from gpumagic.cuda import torch_cuda

#: What IPython binds in every new shell, where `user_ns_hidden` has it; later, that has each output.
GIVEN = ("get_ipython", "exit", "quit", "open", "In", "Out", "_dh")

#: The notebook's namespace in the process that loads: what its functions have as globals.
_namespace: dict[str, Any] = {}


def use_namespace(namespace: dict[str, Any]) -> None:
    """Let the functions that are loaded from now on live in ``namespace``."""
    global _namespace
    _namespace = namespace


class _Namespace:
    """Stands for the notebook's namespace in a pickle."""

    def __reduce__(self) -> Any:
        return _get_namespace, ()


def _get_namespace() -> dict[str, Any]:
    return _namespace


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a notebook's variables; large data are left to `buffers` and `storages`."""

    def __init__(self, file: IO[bytes], shell: Any) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        self.storages: list[Any] = []
        #: The files of the code that was pickled: its cells.
        self.files: set[str] = set()
        #: The variable that is being pickled; and those that have a storage, by its number.
        self.name = ""
        self.users: dict[int, set[str]] = {}
        super().__init__(file, protocol=5, buffer_callback=self.buffers.append)
        # cloudpickle gives each set of functions a copy of their globals; ours have the notebook's,
        # into which it puts the values of the globals that they use.
        self.globals_ref[id(shell.user_ns)] = _Namespace()
        #: What every shell has, by identity: ``get_ipython``, ``exit``, and the shell itself.
        hidden = shell.user_ns_hidden
        self._given = {id(hidden[name]): name for name in GIVEN if name in hidden}
        self._given[id(shell)] = ""
        self._numbers: dict[int, int] = {}
        # Not while torch is being imported, or after its import has failed.
        self._torch: Any = torch_cuda.loaded() if hasattr(torch_cuda.loaded(), "Tensor") else None

    def persistent_id(self, value: Any) -> Any:
        """Refer to what the new process has anyway, to devices, and to the bytes of tensors."""
        kind, torch = type(value), self._torch
        if id(value) in self._given:
            return "shell", self._given[id(value)]
        if torch is None:
            return None
        if kind is torch.device:
            return "device", str(value)
        if issubclass(kind, (torch.storage.TypedStorage, torch.UntypedStorage)):
            typed = issubclass(kind, torch.storage.TypedStorage)
            untyped = value._untyped_storage if typed else value
            number = self._numbers.setdefault(untyped._cdata, len(self.storages))
            if number == len(self.storages):
                self.storages.append(untyped)
            self.users.setdefault(number, set()).add(self.name)
            # torch.load, too, returns a typed storage for either.
            return "storage", number, value.dtype if typed else torch.uint8
        return None

    def reducer_override(self, value: Any) -> Any:
        """Reduce gradients, code, files and caches, which torch and cloudpickle leave out."""
        kind = type(value)
        if self._torch is not None and issubclass(kind, self._torch.Tensor):
            reduced = value.__reduce_ex__(5)
            if value.is_leaf and value.grad is not None and len(reduced) == 2:
                return (*reduced, value.grad, None, None, _set_grad)
            return reduced
        if kind is types.CodeType:
            self.files.add(value.co_filename)
            make, arguments = self.dispatch_table[types.CodeType](value)
            return _code, (make, arguments, value.co_filename)
        standard = (sys.stdin, sys.stdout, sys.stderr)
        is_file = issubclass(kind, io.IOBase) and not issubclass(kind, (io.StringIO, io.BytesIO))
        if is_file and value not in standard:
            raise pickle.PicklingError("an open file")  # cloudpickle would copy its content
        if kind is functools._lru_cache_wrapper and value.__module__ == "__main__":
            options = value.cache_parameters()
            return _cached, (value.__wrapped__, options["maxsize"], options["typed"])
        return super().reducer_override(value)


def _set_grad(tensor: Any, grad: Any) -> None:
    tensor.grad = grad


def _code(make: Any, arguments: tuple[Any, ...], file: str) -> types.CodeType:
    """Make code with the name of its cell: cloudpickle drops it, and with it the source."""
    made: types.CodeType = make(*arguments)
    return made.replace(co_filename=file)


def _cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


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
        shell: Any,
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._storage, self._device, self._shell = storage, device, shell

    def persistent_load(self, key: tuple[Any, ...]) -> Any:
        """Return what a reference refers to.

        Raises:
            KeyError: this shell has not what the other had.
        """
        if key[0] == "shell":
            return self._shell.user_ns_hidden[key[1]] if key[1] else self._shell
        torch: Any = torch_cuda.require()
        if key[0] == "device":
            return torch.device(self._device(key[1]))
        wrapped = self._storage(key[1])
        return torch.storage.TypedStorage(wrap_storage=wrapped, dtype=key[2], _internal=True)
