"""Restrict the imports of a restart: none from the working folder but what came from there before.

IPython adds ``''`` to the import path: the working folder at the time of an import, which may have
changed since the notebook imported its libraries. ``python -m ipykernel`` adds the folder in which
it is started, and an empty entry of ``PYTHONPATH`` does too.
"""

from __future__ import annotations

import os
import re
import site
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from gpumagic.system import introspection

#: The folder that has gpumagic.
OWN = str(Path(__file__).parents[2])
#: The variables that name folders, of Python and of the dynamic linker; and what separates these.
SEARCHED = {"PYTHONPATH": os.pathsep, "LD_LIBRARY_PATH": ":;"}
#: The type of a namespace package's ``__path__``.
_PORTIONS = getattr(sys.modules["_frozen_importlib_external"], "_NamespacePath", list)


def trusted(entries: Iterable[object], started_in: str) -> list[str]:
    """Return the absolute entries of an import path but the working folder, and that of the start.

    The folder that has gpumagic is trusted like gpumagic.
    """
    left_out = {os.path.realpath(started_in)}
    with suppress(OSError):  # it was removed
        left_out.add(os.getcwd())  # noqa: PTH109
    left_out.discard(os.path.realpath(OWN))
    absolute = filter(os.path.isabs, (each for each in entries if isinstance(each, str)))
    return [each for each in absolute if os.path.realpath(each) not in left_out]


def absolute(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without empty and relative entries of `SEARCHED`.

    Each is the working folder, or a folder in it, to Python and to the dynamic linker.
    """
    found = {**environment}
    for name, separators in SEARCHED.items():
        if entries := [*filter(os.path.isabs, re.split(f"[{separators}]", found.pop(name, "")))]:
            found[name] = os.pathsep.join(entries)
    return found


def environment(given: Mapping[str, str], started_in: str) -> dict[str, str]:
    """Return an environment in which Python starts with a `trusted` path, and finds gpumagic."""
    found = absolute(given)
    entries = trusted(found.get("PYTHONPATH", "").split(os.pathsep), started_in)
    if OWN not in (*entries, *site.getsitepackages(), site.getusersitepackages()):
        entries.append(OWN)
    return {**found, "PYTHONPATH": os.pathsep.join(entries)}


@dataclass(frozen=True)
class Imports:
    """From where a restart imports: a path, and some modules each from a folder of its own.

    The latter are imported modules that are in no entry of the path. Usually these are the
    notebook's own, from its working folder or an earlier one.
    """

    path: list[str]
    folders: Mapping[str, str]

    @classmethod
    def of_this_process(cls, started_in: str) -> Imports:
        """Return them for the process, and for the one that replaces it."""
        path, folders = [*trusted(sys.path, started_in), OWN], dict[str, str]()
        for name, module in list(sys.modules.items()):
            if "." in name or name == "__main__":
                continue
            found = _folders(module)
            if found and not set(found) & set(path):
                folders[name] = found[0]
        return cls(path, folders)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Import from nowhere else; nor are entry points of the working folder found."""
        before, finder = [*sys.path], _Named(self.folders)
        sys.path[:] = self.path
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            # What was imported may have added entries: at the end these hide no user's module.
            old = {*self.path, *before}
            sys.path[:] = [*before, *(each for each in sys.path if each not in old)]


def _folders(module: object) -> list[str]:
    """Return the folder of a module's file, or those of its package, which may have portions."""
    attributes = introspection.module_attributes(module)
    inside = dict.get(attributes, "__path__")
    if inside is None:
        files: list[Any] = [introspection.module_file(module)]
    else:
        files = [*inside] if type(inside) in (list, _PORTIONS) else []
    paths = [Path(each) for each in files if type(each) is str]
    return [str(path.parent) for path in paths if path.is_absolute()]


class _Named:
    """Finds some modules, each in its folder."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = self._folders.get(name)
        return None if folder is None else PathFinder.find_spec(name, [folder], target)
