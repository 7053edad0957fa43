"""Load what a `Pickler` wrote; the functions that its pickles call."""

from __future__ import annotations

import copyreg
import functools
import importlib
import os
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.restart.variables import memory
from gpumagic.restart.variables.held import Reference, type_name
from gpumagic.restart.variables.kept import Kept
from gpumagic.system import introspection
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from numpy.typing import NDArray
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


def view(
    base: NDArray[Any],
    dtype: Any,
    place: tuple[int, tuple[int, ...], tuple[int, ...]],
    writeable: bool,
) -> NDArray[Any]:
    """Make an array in the memory of another, at an offset in bytes, with a shape and strides."""
    numpy: Any = importlib.import_module("numpy")
    (offset, shape, strides), flat = place, base.ravel(order="K")
    if dtype.hasobject:  # NumPy takes no bytes for objects
        begin = flat[offset // base.itemsize :]
        made = numpy.lib.stride_tricks.as_strided(begin, shape, strides)
    else:
        made = numpy.ndarray(shape, dtype, flat.view("u1"), offset, strides)
    if not writeable:
        made.flags.writeable = False
    return cast("NDArray[Any]", made)


def of_subclass(array: NDArray[Any], kind: type[NDArray[Any]]) -> NDArray[Any]:
    return array.view(kind)


class Unpickler(pickle.Unpickler):
    """Loads the variables, one after the other.

    Where it is for a trial, arrays and tensors stay on the memory that is mapped. Else arrays that
    owned their data do so again, and tensors are where their device is now: each is copied when it
    is loaded.
    """

    def __init__(self, kept: Kept, descriptor: int, shell: Shell, *, is_trial: bool) -> None:
        super().__init__(Path(f"/proc/self/fd/{descriptor}").open("rb"))  # noqa: SIM115
        self._kept, self._shell, self._is_trial = kept, shell, is_trial
        self._memory, self._given = memory.mapped(descriptor, kept.parts), given(shell)
        # pickle itself does not remember what it has found by a reference.
        self._made = dict[tuple[Any, ...], Any]()

    def bind(self, name: str) -> None:
        """Load the next variable, and bind it in the notebook.

        Raises:
            Exception: it does not load, or is something else now.
        """
        value, kind = self.load(), self._kept.variables[name].kind
        if kind and (found := type_name(value)) != kind:
            raise TypeError(f"it would come back as {found}, not {kind}")
        if name not in self._kept.contents:
            self._shell.user_ns[name] = value

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
        if kind == "buffer":
            data = self._memory[int(name)]
            return data.toreadonly() if more[0] else data
        if kind == "device":
            device: Any = torch_cuda.require().device
            return device(self._kept.devices.moved_device(name.decode()))
        if kind == "array":
            return self._once(self._array, int(name), *more)
        storage, (dtype,), torch = self._once(self._storage, int(name)), more, torch_cuda.module()
        if dtype is None:
            return storage
        typed: Any = torch.storage.TypedStorage
        return typed(wrap_storage=storage, dtype=dtype, _internal=True)

    def _once(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """Make something, or return it; a `functools.cache` would hold it in a circle with this."""
        if arguments not in self._made:
            self._made[arguments] = make(*arguments)
        return self._made[arguments]

    def _array(
        self, number: int, dtype: Any, shape: Any, strides: Any, offset: int, flags: bytes
    ) -> Any:
        ndarray = importlib.import_module("numpy").ndarray
        made = ndarray(shape, dtype, self._memory[number], offset, strides)
        if b"owns" in flags and not self._is_trial and not self._kept.parts[number].is_shared:
            made = made.copy(order="K")
        made.flags.writeable = b"writeable" in flags
        return made

    def _storage(self, number: int) -> Any:
        torch: Any = torch_cuda.require()
        data, part = self._memory[number], self._kept.parts[number]
        made = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0)
        made = made.untyped_storage()
        if self._is_trial or part.is_shared:
            return made
        return self._kept.devices.moved_storage(made, part.device)
