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
from types import ModuleType

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

    Nor are entry points of the working folder found. ``folders`` is what `module_folders` returned
    in this process or in the one that it replaces.
    """
    before, finder = [*sys.path], _Named(folders)
    sys.path[:] = absolute = _absolute()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        # What was imported may have added entries.
        sys.path[:] = [*(each for each in sys.path if each not in absolute), *before]


class _Named:
    """Finds some modules, each in its folder."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = self._folders.get(name)
        return None if folder is None else PathFinder.find_spec(name, [folder], target)
