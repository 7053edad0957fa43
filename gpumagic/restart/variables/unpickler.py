"""Load what a `Pickler` wrote."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from typing import IO, Any

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.restart.variables import data_file
from gpumagic.restart.variables.manifest import Manifest
from gpumagic.restart.variables.module_objects import Reference, type_name
from gpumagic.restart.variables.process_objects import process_objects
from gpumagic.system.shell import Shell


class Unpickler(pickle.Unpickler):
    """Loads the variables, one after the other.

    In a trial, arrays and tensors stay on the memory that is mapped. In the new process, an array
    that owned its data is copied, and owns it again; a tensor is copied to where its device is now.
    """

    def __init__(
        self, manifest: Manifest, file: IO[bytes], shell: Shell, *, is_trial: bool
    ) -> None:
        super().__init__(file)
        self._manifest, self._shell, self._is_trial = manifest, shell, is_trial
        self._memory = data_file.mapped(file.fileno(), manifest.parts)
        self._process_objects = process_objects(shell)
        # pickle itself does not remember what it has found by a reference.
        self._made = dict[tuple[Any, ...], Any]()

    def bind(self, name: str) -> None:
        """Load the next variable, and bind it in the notebook.

        Raises:
            Exception: it does not load, or is something else now.
        """
        value, kind = self.load(), self._manifest.types[name]
        if kind and (found := type_name(value)) != kind:
            raise TypeError(f"it would come back as {found}, not {kind}")
        if name not in self._manifest.contents:
            self._shell.user_ns[name] = value

    def persistent_load(self, key: tuple[Any, ...]) -> Any:
        """Return what a reference refers to.

        Raises:
            Exception: this process has no such object.
        """
        kind, name, *more = key
        if kind == "process":
            return self._process_objects[name]
        if kind == "module":
            return Reference(name, *more).found()
        if kind == "buffer":
            data = self._memory[int(name)]
            return data.toreadonly() if more[0] else data
        if kind == "device":
            device: Any = torch_cuda.require().device
            return device(self._manifest.devices.moved_device(name.decode()))
        if kind == "array":
            return self._once(self._array, int(name), *more)
        return self._once(self._storage, int(name))

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
        if b"owns" in flags and not self._is_trial and not self._manifest.parts[number].is_shared:
            made = made.copy(order="K")
        made.flags.writeable = b"writeable" in flags
        return made

    def _storage(self, number: int) -> Any:
        torch: Any = torch_cuda.require()
        data, part = self._memory[number], self._manifest.parts[number]
        made = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0)
        made = made.untyped_storage()
        if self._is_trial or part.is_shared:
            return made
        return self._manifest.devices.moved_storage(made, part.device)
