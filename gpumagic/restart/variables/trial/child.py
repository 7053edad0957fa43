"""In the child: load the variables, and compare them with what they were; say each step."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, NamedTuple, NoReturn

from gpumagic.restart.variables.manifest import Manifest
from gpumagic.restart.variables.module_objects import ModuleObjects, Reference, type_name
from gpumagic.restart.variables.pickler import Leaves, Pickler
from gpumagic.restart.variables.process_objects import BOUND
from gpumagic.restart.variables.unpickler import Unpickler
from gpumagic.system import text
from gpumagic.wording import listed


class Step(NamedTuple):
    """What the child does now; said again with a fault where it finds one."""

    #: "find" a module's object, "load" or "compare" a variable; "done" with all, "end" of the try.
    stage: str
    #: Of the object or the variable; "" before the first.
    name: str = ""
    #: What is wrong with it; at the end, the status of the process.
    fault: str = ""


def run(requests: IO[bytes], descriptor: int) -> NoReturn:
    """Try each `Manifest` that comes, in a fork of its own; say the status with which that ends."""
    imports, folders, extension, modules = pickle.load(requests)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what is loaded may read
    with imports.alone():
        importlib.import_module(extension)
        for name in modules:
            # The import of a variable fails again when that is loaded.
            with suppress(Exception, SystemExit):
                importlib.import_module(name)
        for folder in folders:
            os.fchdir(folder)
        while True:
            manifest, leaves = pickle.load(requests)
            if (pid := os.fork()) == 0:
                # It ends with the copies of the user's objects alive: no `__del__` is called.
                alive, status = list[object](), 1
                try:
                    for step in _tried(manifest, leaves, descriptor, alive):
                        print(json.dumps(step), file=out, flush=True)
                    status = 0
                finally:
                    os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(json.dumps(Step("end", fault=str(status))), file=out, flush=True)


def _tried(
    manifest: Manifest, leaves: Leaves, descriptor: int, alive: list[object]
) -> Iterator[Step]:
    """Find what is referred to, load each variable, and compare it, until something has a fault.

    What is loaded goes on in ``alive``.
    """
    shell, missing = _shell(), False
    for reference, kind in manifest.referred.items():
        yield Step("find", str(reference))
        if not _is_there(reference, kind):
            missing = True
            yield Step("find", str(reference), "missing")
    if missing:
        return
    yield Step("find")
    # Opened again: another try reads it from its beginning, too.
    file = Path(f"/proc/self/fd/{descriptor}").open("rb")  # noqa: SIM115
    loader = Unpickler(manifest, file, shell, is_trial=True)
    alive.append(loader)
    for name in manifest.types:
        yield Step("load", name)
        try:
            loader.bind(name)
        except BaseException as error:
            yield Step("load", name, text.reason(error))
            return
    yield from _compared(manifest, leaves, shell)
    yield Step("done")


class _Shell(SimpleNamespace):
    """Stands for IPython's shell, of which variables may be methods."""

    def __getattr__(self, name: str) -> Any:
        return print


def _shell() -> Any:
    """Return a stand-in whose namespace is ``__main__``, as in the new process."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    hidden = {name: getattr(builtins, name, print) for name in BOUND}
    shell: Any = _Shell(user_ns=vars(main), user_ns_hidden=hidden)
    hidden.update(get_ipython=lambda: shell, In=[], Out={}, _dh=[])
    shell.user_ns.update(hidden)
    vars(builtins).update(get_ipython=lambda: shell, display=print)
    return shell


def _is_there(reference: Reference, kind: str) -> bool:
    try:
        return type_name(reference.found()) == kind
    except (Exception, SystemExit):  # as a script that is imported
        return False


def _compared(manifest: Manifest, leaves: Leaves, shell: Any) -> Iterator[Step]:
    """Pickle the variables again; the fault of one is what it has not any more.

    Order, counts and what is shared are left out: they differ where nothing has changed.
    """
    yield Step("compare")
    module_objects = ModuleObjects(shell.user_ns, manifest.referred)
    nowhere = Path(os.devnull).open("wb")  # noqa: SIM115
    new_pickler = partial(Pickler, nowhere, shell, module_objects)
    pickler = new_pickler()
    for name, then in leaves.items():
        yield Step("compare", name)
        lacking = {*then}
        try:
            pickler.add(shell.user_ns[name], lacking.discard)
            if lacking:  # by itself, with what is now in the pickle of another
                pickler = new_pickler()
                pickler.add(shell.user_ns[name], lacking.discard)
        except Exception:  # as what is made again when it is loaded, a lock for example
            pickler = new_pickler()
            continue
        lacks = sorted(repr(each) if kind is str else each for kind, each in lacking)
        if not all(each.startswith("'_") for each in lacks):  # a class may drop what is its own
            yield Step("compare", name, text.harmless(listed(lacks), text.REASON))
