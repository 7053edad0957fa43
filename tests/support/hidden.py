"""Modules that a process has imported, and hides until they are imported again: at no cost then.

Packages that are not ours come back as a whole, modules of gpumagic one by one, each with what it
imports itself: as if they were read from their files. What comes back is what Python would find:
not where a file of that name comes first on the path, or another finder has another one.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import marshal
import pkgutil
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from random import Random
from types import ModuleType
from typing import Any
from unittest.mock import patch

#: What a module determines about its process when it is imported: determined anew where it
#: comes back, since that is another process. So are seeds of random numbers.
_OF_THE_PROCESS: Mapping[str, Callable[[Any], None]] = {
    "gpumagic.cuda.process_state": lambda module: setattr(
        module.STATE, "started_with", module._environment_at_start()
    ),
    "gpumagic.cluster.cell_run": lambda module: setattr(module, "_CLIENT", secrets.token_hex(8)),
}


class Hidden(MetaPathFinder, Loader):
    """Finds modules that were imported earlier and have been taken out of `sys.modules`."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Any]] = {}
        self._specs: dict[str, Any] = {}
        #: By a group's first module: what its import has added to `sys.path` (torch 2.6's does).
        self._paths: dict[str, list[str]] = {}

    def hide(self, *names: str, by: Callable[[str], object] = importlib.import_module) -> None:
        """Import modules, and take what is new of them out of `sys.modules` and of packages.

        ``by`` imports one.
        """
        if importlib.util.find_spec(names[0].partition(".")[0]) is None:
            return
        for group in self._groups.values():
            sys.modules.update(group)
        before, path = dict(sys.modules), list(sys.path)
        for name in names:
            by(name)
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


class OneByOne(MetaPathFinder, Loader):
    """Finds the modules of a package that were imported earlier, each by itself.

    What a module imports when it is executed is recorded, and imported with it again.
    """

    def __init__(self) -> None:
        self._top: set[str] = set()
        self._modules: dict[str, ModuleType] = {}
        self._specs: dict[str, Any] = {}
        #: By name: the arguments of ``__import__``. In bytes, since walks over the objects of this
        #: process, which tests are about, pass here too.
        self._imports: dict[str, bytes] = {}
        #: By name: the attributes that a module had when it had been executed.
        self._defined: dict[str, frozenset[str]] = {}
        #: By name of a package: what has the name of one of its modules, but is something else.
        self._others: dict[str, dict[str, Any]] = {}

    def hide(self, package: str) -> None:
        """Import all of a package, but for its programs, and take it out of `sys.modules`."""
        self._top.add(package)
        with self._recorded():
            top = importlib.import_module(package)
            # Whoever imports a broken one in a fork is to see it.
            for each in pkgutil.walk_packages(top.__path__, f"{package}.", lambda _: None):
                if not each.name.endswith(("__main__", "_program")):
                    with suppress(Exception):
                        importlib.import_module(each.name)
        names = [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]
        self._modules = {name: sys.modules.pop(name) for name in names}
        for name, module in self._modules.items():
            # Public names that have been imported at their first use.
            for late in vars(module).keys() - self._defined[name]:
                delattr(module, late)
        self._defined.clear()
        self._imports = {name: found for name, found in self._imports.items() if name in names}
        for name in names:
            above, _, child = name.rpartition(".")
            if above not in self._modules:
                continue
            there = vars(self._modules[above])
            if there.get(child) is self._modules[name]:
                del there[child]
            elif child in there:
                self._others.setdefault(above, {})[child] = there[child]

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        original, execute = builtins.__import__, SourceFileLoader.exec_module
        imports: dict[str, list[Any]] = {}

        def recorded(
            name: str, space: Any = None, local: Any = None, of: Any = (), level: int = 0
        ) -> Any:
            if space is not None and space is local:  # not within a function or a class
                imports.setdefault(space["__name__"], []).append((name, of, level))
            return original(name, space, local, of, level)

        def executed(loader: SourceFileLoader, module: ModuleType) -> None:
            execute(loader, module)
            self._defined[module.__name__] = frozenset(vars(module))

        with (
            patch.object(builtins, "__import__", recorded),
            patch.object(SourceFileLoader, "exec_module", executed),
        ):
            yield
        self._imports = {name: marshal.dumps(found) for name, found in imports.items()}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        module = self._modules.get(name)
        if module is None and name in self._top:  # once more: the rest belongs to what was before
            self._modules.clear()
        return None if module is None else _spec(module, self, path, target)

    def create_module(self, spec: ModuleSpec) -> Any:
        module = self._modules.pop(spec.name)
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        spec = module.__spec__ = self._specs.pop(module.__spec__.name)
        space = vars(module)
        if not self._imports_again(spec.name, space):
            spec.loader.exec_module(module)
            return
        space.update(self._others.pop(spec.name, {}))
        for value in [*space.values()]:
            if type(value) is Random:
                value.seed()
        _OF_THE_PROCESS.get(spec.name, lambda _: None)(module)

    def _imports_again(self, module: str, space: dict[str, Any]) -> bool:
        """Whether all imports succeed; else the module's own code is to say what follows."""
        try:
            for name, of, level in marshal.loads(self._imports.pop(module, _NOTHING)):
                __import__(name, space, space, of, level)
        except Exception:
            return False
        return True


_NOTHING = marshal.dumps([])


def _spec(module: Any, loader: Any, path: Any, target: Any) -> ModuleSpec | None:
    """Return what is found without this loader, but loaded by it; None if it is another file."""
    behind = sys.meta_path[sys.meta_path.index(loader) + 1 :]
    finders = [each for each in behind if not isinstance(each, Hidden | OneByOne)]
    specs = (each.find_spec(module.__name__, path, target) for each in finders)
    found = next((each for each in specs if each is not None), None)
    if found is None or module.__spec__ is None or found.origin != module.__spec__.origin:
        return None
    found.loader = loader
    return found
