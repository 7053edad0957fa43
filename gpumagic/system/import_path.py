"""Restrict imports while a restart replaces the process: none from the working folder.

IPython has ``''`` on the import path: the working folder at the time of an import. A notebook may
change to a folder that other users can write to, after it has imported its libraries; the new
process, which starts in that folder, must not import their modules instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from gpumagic.system import introspection

#: The type of a namespace package's ``__path__``.
_PORTIONS = getattr(sys.modules["_frozen_importlib_external"], "_NamespacePath", list)


def module_folders() -> dict[str, str]:
    """Return the folders of the imported modules that no absolute entry of the import path has.

    Usually they are the notebook's own modules, found by ``''`` in the working folder of that time.
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


def _folder(module: Any) -> str | None:
    """Return the folder that contains a module's file, or its package; None if unknown."""
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
    """Import from absolute folders only; the modules in ``folders`` from there.

    ``folders`` are those of `module_folders`, of this process or of the one that it replaces.
    """
    finder: Any = _Finder(folders)
    _exchange(PathFinder, finder)
    try:
        yield
    finally:
        _exchange(finder, PathFinder)


def _exchange(old: Any, new: Any) -> None:
    sys.meta_path[:] = [new if each is old else each for each in sys.meta_path]


class _Finder:
    """The finder of ``sys.path`` entries, restricted to absolute ones."""

    find_distributions = staticmethod(PathFinder.find_distributions)
    invalidate_caches = staticmethod(PathFinder.invalidate_caches)

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None:  # in a package
            return PathFinder.find_spec(name, path, target)
        folder = self._folders.get(name)
        found = None if folder is None else PathFinder.find_spec(name, [folder], target)
        return found or PathFinder.find_spec(name, _absolute(), target)
