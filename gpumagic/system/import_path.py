"""Restrict the imports of a restart: none from the working folder but what came from there before.

IPython adds ``''`` to the import path: the working folder at the time of an import, which may have
changed since the notebook imported its libraries.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any

from gpumagic.system import introspection

#: The type of a namespace package's ``__path__``.
_PORTIONS = getattr(sys.modules["_frozen_importlib_external"], "_NamespacePath", list)


def module_folders() -> dict[str, str]:
    """Return the folder of each imported module that is in no absolute entry of the import path.

    Usually these are the notebook's own modules, imported from an earlier working folder by ``''``.
    """
    known = {*_absolute()}
    found = {}
    for name, module in list(sys.modules.items()):
        if "." in name or name == "__main__":
            continue
        folder = _folder(module)
        if folder is not None and folder not in known:
            found[name] = folder
    return found


def _absolute() -> list[str]:
    return [*filter(os.path.isabs, (each for each in sys.path if isinstance(each, str)))]


def _folder(module: object) -> str | None:
    """Return the folder of a module's file, or of its package; None if not known."""
    attributes = introspection.module_attributes(module)
    inside = dict.get(attributes, "__path__")
    if inside is None:
        file = introspection.module_file(module)
    else:
        paths = [*inside] if type(inside) in (list, _PORTIONS) else []
        file = paths[0] if paths and type(paths[0]) is str else None
    path = Path(file or "")
    return str(path.parent) if path.is_absolute() else None


@contextmanager
def restricted_to(folders: Mapping[str, str]) -> Iterator[None]:
    """Import from absolute folders only, and the modules named in ``folders`` from these.

    ``folders`` is what `module_folders` returned in this process or in the one that it replaces.
    """
    finder: Any = _Finder(folders)
    _replace_finder(PathFinder, finder)
    try:
        yield
    finally:
        _replace_finder(finder, PathFinder)


def _replace_finder(old: object, new: Any) -> None:
    sys.meta_path[:] = [new if each is old else each for each in sys.meta_path]


class _Finder:
    """`PathFinder`, restricted in this thread to the absolute entries of ``sys.path``."""

    invalidate_caches = staticmethod(PathFinder.invalidate_caches)

    def __init__(self, folders: Mapping[str, str]) -> None:
        # The package importlib_metadata takes it out of `PathFinder` when it is imported.
        if hasattr(PathFinder, "find_distributions"):
            self.find_distributions = PathFinder.find_distributions
        self._folders = folders
        self._thread = get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or get_ident() != self._thread:  # in a package
            return PathFinder.find_spec(name, path, target)
        folder = self._folders.get(name)
        found = None if folder is None else PathFinder.find_spec(name, [folder], target)
        return found or PathFinder.find_spec(name, _absolute(), target)
