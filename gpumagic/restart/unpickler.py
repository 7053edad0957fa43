"""Load what a `Pickler` wrote; the functions that its pickles call."""

from __future__ import annotations

import copyreg
import functools
import importlib
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpumagic.cuda import torch_cuda
from gpumagic.restart.held import Reference
from gpumagic.system import introspection
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from torch import device as _Device  # noqa: N812

#: What IPython binds in every new shell, and has in `user_ns_hidden`, as later each output.
GIVEN = ("get_ipython", "exit", "quit", "open", "In", "Out", "_dh")
#: The standard streams.
STREAMS = ("stdin", "stdout", "stderr")


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


def given(shell: Shell) -> dict[str, Any]:
    """Return what a process with a shell has anyway, by names that are those of every process."""
    hidden = shell.user_ns_hidden
    found = {name: hidden[name] for name in GIVEN if name in hidden}
    return {**found, **own_streams(), "shell": shell, "namespace": shell.user_ns}


def exception(kind: type, arguments: tuple[Any, ...]) -> Any:
    """Make an exception as Python's own class does; its attributes are its state."""
    made = kind.__new__(kind, *arguments)
    own = (vars(each).get("__init__") for each in introspection.mro(kind))
    next(each for each in own if type(each) is types.WrapperDescriptorType)(made, *arguments)
    return made


def closed_file(name: Any, mode: str, encoding: str | None) -> Any:
    """Make a closed file, of which only what it was remains."""
    plain = mode.replace("x", "w")
    if encoding is None:
        plain = f"{plain.replace('b', '')}b"
    with Path(os.devnull).open(plain, encoding=encoding) as file:
        raw: Any = file
        for inner in ("buffer", "raw"):
            raw = getattr(raw, inner, raw)
        raw.name = name
    if encoding:
        setattr(file, "mode", mode)  # noqa: B010 - as `open` does it
    return file


def set_attributes(made: object, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(made, name, value)


def set_variables(made: object, variables: dict[str, Any]) -> None:
    vars(made).update(variables)


def parameter(kind: type, data: Any, requires_grad: bool) -> Any:
    """Make a parameter; torch makes one of a subclass an ordinary one."""
    torch: Any = torch_cuda.require()
    return torch.nn.Parameter.__new__(kind, data, requires_grad)


def set_state(tensor: Any, state: tuple[Any, dict[str, Any]]) -> None:
    torch: Any = torch_cuda.require()
    torch._utils._set_obj_state(tensor, state[0])
    set_attributes(tensor, state[1])


def set_array(array: Any, state: tuple[Any, dict[str, Any]]) -> None:
    array.__setstate__(state[0])
    vars(array).update(state[1])


def optimizer(kind: type) -> Any:
    """Make an optimizer whose class has its hooks in place, before its own ``step`` is loaded."""
    torch: Any = torch_cuda.require()
    made = copyreg.__newobj__(kind)  # type: ignore[attr-defined]
    torch.optim.Optimizer.__setstate__(made, {"defaults": {}})
    return made


def gpu_generator(device: _Device) -> Any:
    if device.type == "cpu":
        raise RuntimeError("a random generator of a GPU that is hidden")
    torch: Any = torch_cuda.require()
    return torch.Generator(device)


def code_of(
    make: Callable[..., types.CodeType], arguments: tuple[Any, ...], file: str
) -> types.CodeType:
    """Make code with the name of its cell: cloudpickle drops it, and with it the source."""
    made: types.CodeType = make(*arguments)
    return made.replace(co_filename=file)


def cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def on_host(data: memoryview) -> Any:
    """Return these bytes as a storage of the host, which shares their memory."""
    torch: Any = torch_cuda.require()
    made = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0)
    return made.untyped_storage()


class Unpickler(pickle.Unpickler):
    """Loads what a `Pickler` wrote.

    ``storage`` returns a tensor's storage by its number, and ``memory`` the bytes of an array;
    ``device`` where a device is in this process. With ``copies`` arrays that owned their data do so
    again: their bytes are copied one by one.
    """

    def __init__(
        self,
        file: IO[bytes],
        buffers: Iterable[Any],
        memory: Sequence[memoryview],
        storage: Callable[[int], Any],
        device: Callable[[str], str],
        shell: Shell,
        *,
        copies: bool,
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._storage, self._device, self._given = storage, device, given(shell)
        self._memory, self._copies, self._arrays = memory, copies, dict[bytes, Any]()

    def persistent_load(self, key: tuple[Any, ...]) -> Any:
        """Return what a reference refers to.

        Raises:
            KeyError: this shell has not what the other had.
        """
        kind, name, *more = key
        if kind == "given":
            return self._given[name]
        if kind == "held":
            return Reference(name, *more).found()
        if kind == "array":
            if name not in self._arrays:
                self._arrays[name] = self._array(self._memory[int(name)], *more)
            return self._arrays[name]
        torch: Any = torch_cuda.require()
        if kind == "device":
            return torch.device(self._device(name.decode()))
        storage, (dtype,) = self._storage(int(name)), more
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

    def _array(
        self, data: memoryview, dtype: Any, shape: Any, order: Any, writeable: bool, owns: bytes
    ) -> Any:
        made = importlib.import_module("numpy").ndarray(shape, dtype, data, order=order)
        if owns and self._copies:
            made = made.copy(order="K")
        made.flags.writeable = writeable
        return made
