"""Where a search for what holds memory begins: variables, modules, the notebook's references.

And what it does not enter, since that leads to the whole process.
"""

from __future__ import annotations

import builtins
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.memory.objects.ipython_references import NotebookReferences, Root, Roots
from gpumagic.system import introspection

#: The main module, also by the name that multiprocessing gives it.
_MAIN = ("__main__", "__mp_main__")
_CONTAINERS = {id(kind) for kind in (list, dict, tuple, set, frozenset)}
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)


class SearchSpace:
    """Where a search for what holds memory begins, and what it does not enter."""

    def __init__(self, namespace: Mapping[str, Any], notebook: NotebookReferences | None) -> None:
        #: The user's modules by name.
        self.modules = tracebacks.users_modules()
        self._namespace = namespace
        self._notebook = notebook

    def roots(self) -> Roots:
        """Return the roots.

        Modules come first: what others refer to, too, counts to them. The notebook's come last.
        """
        notebook, values = self._notebook, list[tuple[str, Any]]()
        for name, value in introspection.names(self._namespace):
            own = name[:2] == "__" == name[-2:]
            if not (notebook.is_notebooks(name, value) if notebook else own):
                values.append((name, value))
        for module, content in self.modules.items():
            inside = introspection.module_attributes(content)
            if inside is not self._namespace and module not in _MAIN:
                found = introspection.names(inside)
                values += [(f"{module}.{name}", value) for name, value in found if name[:2] != "__"]
        ranked = [(*_kind(value), name, value) for name, value in values]
        ranked.sort(key=itemgetter(0))
        roots = {Root(name, kind): [value] for _, kind, name, value in ranked}
        return roots | (notebook.roots() if notebook else {})

    def references(self, roots: Roots, excluded: list[Any]) -> Iterator[Iterable[Any]]:
        """Yield what holds references to objects: to ``roots`` and ``excluded`` themselves, too."""
        found = [self._namespace, vars(sys)]
        found += map(introspection.module_attributes, self.modules.values())
        if self._notebook is not None:
            found += self._notebook.places()
        found = [*{id(each): each for each in found}.values()]
        yield from (excluded, found, *roots.values())
        # The attributes of an object are its own from Python 3.13 on: `vars` has no referents.
        yield from (p.values() if type(p) is dict else gc.get_referents(p) for p in found)

    def excluded(self) -> list[Any]:
        """Return what a walk must not enter: all modules, and what leads to the whole process."""
        loaded = [each for each in [*sys.modules.values()] if introspection.is_a(each, ModuleType)]
        found = [sys.modules, *loaded, *map(introspection.module_attributes, loaded)]
        found += [vars(builtins), self._namespace]
        return found if self._notebook is None else [*found, *self._notebook.excluded()]


def _kind(value: object) -> tuple[int, str]:
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
