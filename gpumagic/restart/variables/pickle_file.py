"""The pickles of variables in a file, one after the other, and what is found as they are made."""

from __future__ import annotations

import errno
import linecache
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any

from gpumagic.cuda import driver
from gpumagic.restart.variables import data_file
from gpumagic.restart.variables.devices import Devices
from gpumagic.restart.variables.manifest import Manifest
from gpumagic.restart.variables.module_objects import Content, ModuleObjects, type_name
from gpumagic.restart.variables.pickler import Leaf, Pickler
from gpumagic.system.shell import Shell

#: A folder without room.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: So many texts, numbers and truth values are compared, in seconds.
_MOST_LEAVES = 1_000_000


class Pickles:
    """The pickles of a notebook's variables in ``file``.

    Behind them are the contents of the objects of the user's modules to which they refer.
    """

    def __init__(
        self,
        file: IO[bytes],
        shell: Shell,
        names: Iterable[str],
        module_objects: ModuleObjects,
        absent: Collection[tuple[str, int]],
    ) -> None:
        """Pickle variables; functions do without their globals of ``absent``.

        Raises:
            OSError: the file cannot be written.
        """
        #: Why some have no pickle. Then the file is not complete.
        self.failed = dict[str, str]()
        #: What is to be found again in each when it is loaded, and what is not looked through.
        self.leaves, self.uncompared = dict[str, set[Leaf]](), list[str]()
        self._room = _MOST_LEAVES
        self._file, self._shell, self._module_objects = file, shell, module_objects
        self._new_pickler = partial(Pickler, file, shell, module_objects, absent)
        self._pickler = self._new_pickler()
        self._types, self._contents = dict[str, str](), dict[str, Any]()
        self._without_graph = list[str]()
        file.seek(0)
        for name in names:
            self._add(name, shell.user_ns[name])
        while new := [each for each in self._pickler.contents if each not in self._contents]:
            for name in new:
                self._contents[name] = self._pickler.contents[name]
                self._add(name, Content(self._contents[name]))

    def _add(self, name: str, value: Any) -> None:
        found = set[Leaf]()
        try:
            self._pickler.add(value, partial(_add, found, self._room))
        except Exception as error:
            if getattr(error, "errno", None) in _FULL:
                raise
            self.failed[name] = self._pickler.blame(error)
            # What it shares with others it cannot pickle again; another looks at the others.
            self._pickler = self._new_pickler()
            return
        if self._pickler.has_graph:
            self._without_graph.append(name)
        is_new = name in self._contents or self._pickler.is_of_process(value)
        self._types[name] = "" if is_new else type_name(value)
        if len(found) >= self._room:
            self.uncompared.append(name)
        elif name not in self._contents:
            self.leaves[name] = found
            self._room -= len(found)

    def write_data(self, manifest: Manifest) -> None:
        """Write the bytes of arrays and tensors behind the pickles; see `data_file.write`."""
        data_file.write(self._file, self._pickler.memory, manifest.parts)

    def manifest(self) -> Manifest:
        """Return what the new process needs to load them."""
        pickler, end, of_modules = self._pickler, self._file.tell(), self._module_objects
        values = {n: self._shell.user_ns[n] for n in self._types if n not in self._contents}
        numbers, cells = getattr(self._shell.compile, "_filename_map", {}), pickler.cells
        return Manifest(
            types=self._types,
            body=end,
            parts=data_file.layout(pickler.memory, end),
            referred=pickler.referred,
            anew=[n for n, each in values.items() if of_modules.is_anew(each, self._contents)],
            contents=[*self._contents],
            sources={name: linecache.getlines(name) for name in cells if not Path(name).exists()},
            cells={name: numbers[name] for name in cells if name in numbers},
            devices=Devices(driver.state().uuids or ()),
            notes={"Without their graph:": [n for n in self._without_graph if n in values]},
        )


def _add(leaves: set[Leaf], most: int, leaf: Leaf) -> None:
    if len(leaves) < most:
        leaves.add(leaf)
