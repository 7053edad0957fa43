"""The pickle of a notebook's variables: cloudpickle's, with the rules of `kinds`."""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Set
from typing import IO, TYPE_CHECKING, Any

import cloudpickle

from gpumagic.cuda import dead_context
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.restart.variables.data_file import Memory
from gpumagic.restart.variables.kinds import of_numpy, of_python, of_torch, refused, rules
from gpumagic.restart.variables.kinds.mapped_files import MappedFiles
from gpumagic.restart.variables.module_objects import ModuleObjects, Reference, type_name
from gpumagic.restart.variables.process_objects import process_objects
from gpumagic.system import text
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RULES = {**refused.RULES, **of_python.RULES, **of_numpy.RULES, **of_torch.RULES}
#: Python's limit of nested calls: a chain of objects takes three to five for each. 8 MiB of stack
#: hold more. Python 3.12.0 to 3.12.2 have a limit of 1,500 of their own, which cannot be set.
_DEEPEST = 10_000
#: So many objects of libraries are tried when one of them cannot be kept.
_MOST_MET = 10_000
#: A text, number or truth value, with its type. Not None: many objects compute it anew.
Leaf = tuple[type, str]
#: Those in each variable, by its name.
Leaves = Mapping[str, Set[Leaf]]


def _ignore(_: Leaf) -> None:
    pass


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a notebook's variables, but for the bytes of tensors, arrays and buffers."""

    def __init__(
        self,
        file: IO[bytes],
        shell: Shell,
        module_objects: ModuleObjects,
        absent: Collection[tuple[str, int]] = (),
    ) -> None:
        """Functions do without their globals of ``absent``: name and id of each."""
        #: The memory of tensors, arrays and buffers, by its number.
        self.memory: list[Memory] = []
        #: The files of the code that was pickled: its cells.
        self.cells: set[str] = set()
        #: What modules hold, and which of that the variables refer to; what is in some of them.
        self.module_objects, self.referred = module_objects, dict[Reference, str]()
        self.contents = dict[str, Any]()
        self.absent = absent
        self.mapped_files = MappedFiles()
        #: Whether the last variable leads to a tensor with a graph; and those that do, by id.
        self.has_graph, self._with_graph = False, dict[int, Any]()
        self._note: Callable[[Leaf], object] = _ignore
        self._shell = shell
        self._process_objects = {id(each): name for name, each in process_objects(shell).items()}
        self._numbers, self._of_libraries = dict[int, int](), list[Any]()
        self._rules = dict[type, list[rules.Rule]]()
        super().__init__(file, protocol=5)
        # cloudpickle gives each set of functions a copy of their globals; ours have the notebook's,
        # into which it puts the values of the globals that they use.
        self.globals_ref[id(shell.user_ns)] = shell.user_ns
        # Not while torch is being imported, or after its import has failed.
        self._torch: Any = torch_cuda.loaded() if hasattr(torch_cuda.loaded(), "Tensor") else None
        self._context_is_dead = dead_context.check() is not None
        self._numpy: Any = sys.modules.get("numpy")

    def add(self, value: Any, note: Callable[[Leaf], object] = _ignore) -> None:
        """Pickle a variable; ``note`` is told each text, number and truth value."""
        self._note, self.has_graph, limit = note, False, sys.getrecursionlimit()
        self._of_libraries.clear()
        sys.setrecursionlimit(max(limit, _DEEPEST))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of what the rule for tensors sees to
                self.dump(value)
        finally:
            sys.setrecursionlimit(limit)
        if self.has_graph:
            self._with_graph[id(value)] = value

    def blame(self, error: Exception) -> str:
        """Return why `add` has failed, in the words of the outermost object of a library."""
        for each in self._of_libraries:
            try:
                Pickler(io.BytesIO(), self._shell, self.module_objects, self.absent).add(each)
            except Exception as its:
                reason = text.reason(its)
                if type(its) is refused.Refused and (its.thing is None or its.thing is each):
                    return reason
                return f"{refused.type_in_words(each)}: {reason}"
        return text.reason(error)

    def is_of_process(self, value: object) -> bool:
        """Return whether the new process has this anyway."""
        return id(value) in self._process_objects

    # --- by reference -----------------------------------------------------------------------------

    def persistent_id(self, value: Any) -> Any:
        """Refer to what the new process has anyway, to devices, and to the bytes of tensors."""
        kind, torch = type(value), self._torch
        if id(value) in self._with_graph:  # what another variable has had pickled already
            self.has_graph = True
        if kind in (str, int, float, bool):
            self._note((kind, value if kind is str else repr(value)))
        if name := self._process_objects.get(id(value)):
            if name == "Out" and name not in self.module_objects.without_content:
                self.contents[name] = value
            return "process", name
        if reference := self.module_objects.get(value):
            if reference not in self.referred:
                self.referred[reference] = type_name(value)
                if self.module_objects.has_content(reference, value):
                    self.contents[str(reference)] = value
            return "module", *reference
        if self._numpy is not None and kind is self._numpy.ndarray:
            return self._array(value)
        if self._numpy is not None and kind is pickle.PickleBuffer:
            data = self._numpy.frombuffer(value, "u1")
            number = self._number(id(value), of_numpy.address(data), data.size, value)
            return "buffer", number, not data.flags.writeable
        if torch is None:
            return None
        if kind is torch.device:
            return "device", str(value).encode()  # it is no text that must come back
        if issubclass(kind, torch.UntypedStorage):
            if value.device.type == "cuda" and self._context_is_dead:
                raise refused.Refused("on the GPU, which cannot be read any more")
            place = value._cdata, value.data_ptr(), value.nbytes()
            return "storage", self._number(*place, value, str(value.device))
        if issubclass(kind, torch.Tensor) and not value.is_leaf:
            self.has_graph = True
        return None

    def _number(self, key: int, address: int, size: int, owner: Any, device: str = "cpu") -> bytes:
        """Return the number of this memory; as bytes, for no text or number is lost with it."""
        if key not in self._numbers:
            if device == "cpu":
                self.mapped_files.refuse(address)
            self._numbers[key] = len(self.memory)
            self.memory.append(Memory(device, address, size, owner))
        return b"%d" % self._numbers[key]

    def _array(self, array: NDArray[Any]) -> Any:
        """Refer to the bytes of an array, whatever they mean; those of objects are pickled."""
        if array.dtype.hasobject or not array.nbytes or of_numpy.is_view(array):
            return None
        address, flags = of_numpy.address(array), array.flags
        spans = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
        begin = address + sum(each for each in spans if each < 0)
        number = self._number(id(array), begin, sum(map(abs, spans)) + array.itemsize, array)
        how = b"owns " * flags.owndata + b"writeable" * flags.writeable
        return "array", number, array.dtype, array.shape, array.strides, address - begin, how

    # --- by the rules -----------------------------------------------------------------------------

    def reducer_override(self, value: Any) -> Any:
        """Reduce an object by the rules for its class and the bases of that, or as cloudpickle."""
        if len(self._of_libraries) < _MOST_MET and refused.type_in_words(value):
            self._of_libraries.append(value)
        kind = type(value)
        if kind not in self._rules:
            self._rules[kind] = rules.of(kind, _RULES)
        for rule in self._rules[kind]:
            if (reduced := rule(value, self)) is not None:
                return reduced
        return self.default(value)

    def default(self, value: Any) -> Any:
        """Return how cloudpickle reduces an object; `NotImplemented` leaves it to pickle."""
        return super().reducer_override(value)
