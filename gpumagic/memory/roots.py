"""The places that references come from: the user's variables and modules, and the notebook."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Mapping
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cuda import torch_cuda
from gpumagic.memory.notebook_references import NotebookReferences
from gpumagic.memory.walk import Name, Root
from gpumagic.system import introspection

_CONTAINERS = {id(kind) for kind in (list, dict, tuple, set, frozenset)}
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


class Places:
    """The roots, the objects that hold their values, and those that a walk must not enter."""

    def __init__(self, namespace: Mapping[str, Any], notebook: NotebookReferences | None) -> None:
        #: The user's modules by name.
        self.modules = tracebacks.users_modules()
        self._namespace = namespace
        self._notebook = notebook

    def roots(self) -> list[Root]:
        """Return the roots in the order in which blocks count to them.

        Modules come first: what others refer to, too, counts to them. The notebook's come last.
        """
        notebook, values = self._notebook, list[tuple[str, Any]]()
        for name, value in introspection.names(self._namespace):
            own = name[:2] == "__" == name[-2:]
            if not (notebook.is_notebooks(name, value) if notebook else own):
                values.append((name, value))
        for module, content in self.modules.items():
            inside = introspection.module_attributes(content)
            if inside is not self._namespace and module != "__main__":
                found = introspection.names(inside)
                values += [(f"{module}.{name}", value) for name, value in found if name[:2] != "__"]
        ranked = [(*_kind(value), name, value) for name, value in values]
        ranked.sort(key=lambda each: each[0])
        roots = [Root(Name(name, kind), [value]) for _, kind, name, value in ranked]
        return roots if notebook is None else [*roots, *notebook.roots()]

    def holding(self) -> list[Any]:
        """Return the objects that hold the roots' values, each once."""
        found = [self._namespace, vars(sys)]
        found += map(introspection.module_attributes, self.modules.values())
        if self._notebook is not None:
            found += self._notebook.places()
        return list({id(each): each for each in found}.values())

    def excluded(self) -> list[Any]:
        """Return what a walk must not enter: all modules, and what leads to the whole process."""
        modules = [
            module
            for module in list(sys.modules.values())
            if introspection.is_a(module, types.ModuleType)
        ]
        found = [sys.modules, *modules, *map(introspection.module_attributes, modules)]
        found += [vars(builtins), self._namespace]
        return found if self._notebook is None else [*found, *self._notebook.excluded()]


def _kind(value: Any) -> tuple[int, str]:
    """Return the rank and the name of a value's kind."""
    kind, torch = type(value), torch_cuda.loaded()
    if torch is not None:
        for rank, name, base in (
            (0, "module", torch.nn.Module),
            (2, "tensor", torch.Tensor),
            (4, "optimizer", torch.optim.Optimizer),
        ):
            if introspection.derives(kind, base):
                return rank, name
    if introspection.derives(kind, type):
        return 5, "class"
    if introspection.derives(kind, *_FUNCTIONS):
        return 5, "function"
    # A list ranks before the variable of a loop over it.
    return 1 if id(kind) in _CONTAINERS else 3, introspection.name_of(kind)
