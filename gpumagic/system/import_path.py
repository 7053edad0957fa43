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
#: The modules that read a file of the working folder when they are imported: ``./matplotlibrc``.
READERS = ("matplotlib",)
#: The type of a namespace package's ``__path__``.
_PORTIONS = getattr(sys.modules["_frozen_importlib_external"], "_NamespacePath", list)


#: The folders in which IPython was started and gpumagic was loaded, and those above them, the
#: outermost first, with what each is known by.
known: Mapping[str, tuple[int, int] | None] = {}


def remember(started_in: str) -> None:
    """Remember the folder of the start and the working folder, for `replaced`."""
    global known
    folders = set[Path]()
    for folder in (".", started_in):
        with suppress(OSError):  # it was removed
            path = Path(folder).absolute()
            folders |= {path, *path.parents}
    known = {str(each): _identity(str(each)) for each in sorted(folders)}


def replaced(path: str) -> str | None:
    """Return the outermost of the `known` folders that was replaced, if a path leads there.

    Whoever may rename a folder may have put theirs in its place. While this process is in the old
    one, no other has that identity.
    """
    names = _names(path)
    for folder, identity in known.items():
        if _identity(folder) != identity and any(
            Path(name).is_relative_to(above) for name in names for above in _names(folder)
        ):
            return folder
    return None


def trusted(entries: Iterable[object], started_in: str) -> list[str]:
    """Return the entries of an import path but the working folder, and that of the start.

    These are known by name and by identity: another user may exchange them for others meanwhile.
    Relative entries are left out too, and what is `replaced`. The folder that has gpumagic is
    trusted like gpumagic.
    """
    folders = (".", started_in)
    # What is not there gives nothing now, and may be another user's when it is.
    left_out = {_identity(each) for each in folders} - {_identity(OWN)} | {None}
    names = {name for each in folders for name in _names(each)} - _names(OWN)
    absolute = filter(os.path.isabs, (each for each in entries if isinstance(each, str)))
    return [
        each
        for each in absolute
        if _identity(each) not in left_out and not names & _names(each) and not replaced(each)
    ]


def _names(folder: str) -> set[str]:
    """Return a path in full, and without links."""
    with suppress(OSError):  # the working folder was removed
        return {os.path.normpath(Path(folder).absolute()), os.path.realpath(folder)}
    return set()


def _identity(folder: str) -> tuple[int, int] | None:
    """Return what a folder has in common with its other names; None if there is none."""
    try:
        status = Path(folder).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


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
    #: The modules that are not imported again, each from a folder that was replaced.
    gone: Mapping[str, str]

    @classmethod
    def of_this_process(cls, started_in: str) -> Imports:
        """Return them for the process, and for the one that replaces it."""
        path, folders, gone = [*trusted(sys.path, started_in), OWN], dict[str, str](), {}
        for name, module in list(sys.modules.items()):
            if "." in name or name == "__main__":
                continue
            found = _folders(module)
            if found and not set(found) & set(path):
                folders[name] = found[0]
                if folder := replaced(found[0]):
                    gone[name] = folder
        return cls(path, folders, gone)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Import from nowhere else; nor are entry points of the working folder found."""
        before, finder = [*sys.path], _Named(self)
        sys.path[:] = self.path
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            # What was imported may have added entries.
            sys.path[:] = [*(each for each in sys.path if each not in self.path), *before]


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

    def __init__(self, imports: Imports) -> None:
        self._imports = imports

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._imports.gone:
            raise ImportError(f"the folder {self._imports.gone[name]} was replaced", name=name)
        folder = self._imports.folders.get(name)
        return None if folder is None else PathFinder.find_spec(name, [folder], target)
