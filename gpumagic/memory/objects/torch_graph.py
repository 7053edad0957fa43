"""What tensors, scripted modules and autograd's nodes lead to in C++, for `walk`.

Gradients and autograd's graphs, which Python's collector does not know, are read in C alone: no
hook, property or override of a subclass is run, and what is saved for backward is not unpacked.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.pytorch.tensors import storage_address
from gpumagic.system import introspection

if TYPE_CHECKING:
    from torch import Tensor

GRADIENTS, GRAPH = "gradients", "autograd graph"

#: The methods that return the parts of sparse tensors: some for each layout.
_COMPONENTS = (
    "_indices",
    "_values",
    "crow_indices",
    "col_indices",
    "ccol_indices",
    "row_indices",
    "values",
)

#: What an object keeps where Python's collector does not look: the objects, each with its role.
Hidden: TypeAlias = "Iterable[tuple[str, Any]]"
#: Returns that of an object.
Rule: TypeAlias = Callable[[Any], Hidden]


class TorchGraph:
    """The objects in C++ that tensors, scripted modules and autograd's nodes lead to."""

    def __init__(self) -> None:
        self._torch = torch_cuda.module()
        self._base = self._torch._C.TensorBase
        self._saved = getattr(self._torch._C._autograd, "SavedTensor", None)
        #: Whether this torch says what autograd has saved for backward.
        self.knows_saved = hasattr(self._saved, "data")
        self._address = storage_address()
        self._get = {
            name: introspection.find(self._base, name).__get__
            for name in ("grad_fn", "_grad", "retains_grad", "_base", "layout")
        }

    def rule(self, kind: type) -> Rule | None:
        """Return the function for objects of a type; None where they keep nothing in C++."""
        if introspection.derives(kind, self._torch.Tensor):
            return self._of_tensor
        if introspection.derives(kind, self._torch.UntypedStorage):
            return lambda storage: ()
        if introspection.derives(kind, self._torch._C.ScriptModule):
            return self._of_script
        return partial(self._of_node, _fields(kind)) if self.is_node(kind) else None

    def has_memory(self, kind: type) -> bool:
        """Return whether a type is one of tensors, or of storages of bytes."""
        return introspection.derives(kind, self._torch.Tensor, self._torch.UntypedStorage)

    def is_node(self, kind: type) -> bool:
        """Return whether a type is one of autograd's nodes."""
        return type(introspection.find(kind, "next_functions")) is types.GetSetDescriptorType

    def address(self, thing: Any) -> int:
        """Return where the storage of a tensor begins, or a storage; 0 without memory."""
        is_storage = introspection.is_a(thing, self._torch.UntypedStorage)
        read = self._torch._C.StorageBase.data_ptr if is_storage else self._address
        try:
            return int(read(thing))
        except Exception:  # sparse, a subclass that wraps others
            return 0

    def _of_tensor(self, tensor: Tensor) -> Hidden:
        get = self._get
        try:
            node, base = get["grad_fn"](tensor), get["_base"](tensor)
            # torch warns where the gradient of another tensor than a leaf is read.
            quiet = node is None or get["retains_grad"](tensor)
            gradient = get["_grad"](tensor) if quiet else None
            found = [(GRADIENTS, gradient), (GRAPH, node), ("", base)]
            if get["layout"](tensor) is not self._torch.strided:
                found += [("", part) for part in self._components(tensor)]
        except Exception:  # a subclass without a tensor's data
            return []
        return [each for each in found if each[1] is not None]

    def _components(self, tensor: Tensor) -> Iterator[Any]:
        """Yield the parts of a sparse tensor."""
        for name in _COMPONENTS:
            with suppress(RuntimeError):  # of another layout
                yield getattr(self._base, name)(tensor)

    def _of_script(self, module: object) -> Hidden:
        inside = self._torch._C
        for kind in (inside.ParameterDict, inside.BufferDict):
            yield from (("", tensor) for _, tensor in kind(module).items())
        for _, below in inside.ModuleDict(module).items():
            yield from self._of_script(below)

    def _of_node(self, fields: list[str], node: object) -> Hidden:
        """Return the next nodes, and what is saved for backward."""
        found = [below for below, _ in _read(node, "next_functions") or ()]
        for name in fields:
            saved = _read(node, name)
            for each in saved if type(saved) in (tuple, list) else (saved,):
                if type(each) is not self._saved:
                    found.append(each)
                elif self.knows_saved:
                    found += [each.data, each.unpack_hook]
        return [(GRAPH, each) for each in found if each is not None]


def _fields(kind: type) -> list[str]:
    """Return the attributes in which nodes of a type keep tensors."""
    bases = introspection.mro(kind)
    defined = {name for base in bases for name in introspection.class_attributes(base)}
    # "variable": the leaf whose gradient is summed up in the node.
    return [name for name in defined if name[:11] == "_raw_saved_" or name == "variable"]


def _read(node: object, name: str) -> Any:
    try:
        return introspection.slot(node, name)
    except (RuntimeError, AttributeError):  # freed by backward
        return None
