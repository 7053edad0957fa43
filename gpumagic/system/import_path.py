"""Where modules are imported from while a process is replaced: not from the working folder.

IPython has ``''`` on the import path: whatever is the working folder at the moment of an import. A
notebook may change to a folder that others write to long after it has imported its libraries; its
successor, which goes on in that folder, must not take theirs for those.
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

#: What Python gives a namespace package, which has no file, as its path.
_PORTIONS = getattr(sys.modules["_frozen_importlib_external"], "_NamespacePath", list)


def now() -> dict[str, str]:
    """The modules that come from no absolute folder on the import path, and the folders of each.

    They are the notebook's own, as a rule: found by ``''`` in the working folder of then.
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
    """The folder in which a module, or its package's folder, lies."""
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
def as_before(places: Mapping[str, str]) -> Iterator[None]:
    """Import nothing from the working folder but what came from there before.

    ``places`` are those of `now`, perhaps in another process: these modules are found there again.
    """
    finder: Any = _Finder(places)
    _exchange(PathFinder, finder)
    try:
        yield
    finally:
        _exchange(finder, PathFinder)


def _exchange(old: Any, new: Any) -> None:
    sys.meta_path[:] = [new if each is old else each for each in sys.meta_path]


class _Finder:
    """Python's finder along ``sys.path``, without those of its entries that are no whole paths."""

    find_distributions = staticmethod(PathFinder.find_distributions)
    invalidate_caches = staticmethod(PathFinder.invalidate_caches)

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None:  # in a package
            return PathFinder.find_spec(name, path, target)
        place = self._places.get(name)
        found = None if place is None else PathFinder.find_spec(name, [place], target)
        return found or PathFinder.find_spec(name, _absolute(), target)
