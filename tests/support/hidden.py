"""Modules that a process has imported, and hides until they are imported again: at no cost then.

A package comes back as a whole. What comes back is what Python would find: not where a file of that
name comes first on the path, or another finder has another one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any


class Hidden(MetaPathFinder, Loader):
    """Finds modules that were imported earlier and have been taken out of `sys.modules`."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Any]] = {}
        self._specs: dict[str, Any] = {}
        #: By a group's first module: what its import has added to `sys.path` (torch 2.6's does).
        self._paths: dict[str, list[str]] = {}

    def hide(self, *names: str) -> None:
        """Import modules, and take what is new of them out of `sys.modules` and of packages.

        With the first one all come back, with another one its package.
        """
        if importlib.util.find_spec(names[0].partition(".")[0]) is None:
            return
        for group in self._groups.values():
            sys.modules.update(group)
        before, path = dict(sys.modules), list(sys.path)
        for name in names:
            importlib.import_module(name)
        self._paths[names[0]] = [folder for folder in sys.path if folder not in path]
        sys.path[:] = path
        here = {name.partition(".")[0] for name in before.keys() - self._all()}
        new = [name for name in sys.modules if name not in before]
        # Of the standard library, and of packages that were there before, nothing is hidden.
        kept = (here | sys.stdlib_module_names) - {names[0].partition(".")[0]}
        self._groups[names[0]] = {
            name: sys.modules[name] for name in new if name.partition(".")[0] not in kept
        }
        for name in self._all():
            module = sys.modules.pop(name)
            parent, _, child = name.rpartition(".")
            if name in new and parent in before and vars(before[parent]).get(child) is module:
                delattr(before[parent], child)

    def _all(self) -> set[str]:
        return {name for group in self._groups.values() for name in group}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        module = self.module(name)
        return None if module is None else _spec(module, self, path, target)

    def create_module(self, spec: ModuleSpec) -> Any:
        module = self.module(spec.name)
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        """Put the module back with its package; with a group's first module, all of the group."""
        module.__spec__ = spec = self._specs.pop(module.__spec__.name)
        package = spec.name.partition(".")[0]
        for first, group in self._groups.items():
            if spec.name not in group:
                continue
            sys.path.extend(self._paths.pop(first, ()))
            first_of_group = package == first.partition(".")[0]
            for name in [n for n in group if first_of_group or n.partition(".")[0] == package]:
                back = sys.modules.setdefault(name, group.pop(name))
                parent, _, child = name.rpartition(".")
                if parent in sys.modules:
                    vars(sys.modules[parent]).setdefault(child, back)
        if not any(self._groups.values()):
            sys.meta_path.remove(self)

    def module(self, name: str) -> Any:
        """A hidden module, by its full name; None if there is none."""
        return next((group[name] for group in self._groups.values() if name in group), None)


def _spec(module: Any, loader: Any, path: Any, target: Any) -> ModuleSpec | None:
    """Return what is found without this loader, but loaded by it; None if it is another file."""
    behind = sys.meta_path[sys.meta_path.index(loader) + 1 :]
    finders = [each for each in behind if not isinstance(each, Hidden)]
    specs = (each.find_spec(module.__name__, path, target) for each in finders)
    found = next((each for each in specs if each is not None), None)
    if found is None or module.__spec__ is None or found.origin != module.__spec__.origin:
        return None
    found.loader = loader
    return found
