"""Load the kept variables in a child process first, so that what fails is known before the restart.

The child has the new environment, and imports what the notebook has imported. Each try is a fork of
it, which maps the variables' data: only what is written to is copied. Tensors are on the CPU.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.errors import RestartError
from gpumagic.restart import handover
from gpumagic.restart.variables.kinds import refused
from gpumagic.restart.variables.manifest import Manifest
from gpumagic.restart.variables.module_objects import ModuleObjects, Reference, type_name
from gpumagic.restart.variables.process_objects import BOUND
from gpumagic.system import child_process, import_path, text
from gpumagic.system.introspection import imported_as
from gpumagic.system.shell import Shell
from gpumagic.wording import listed

if TYPE_CHECKING:
    from gpumagic.restart.variables.pickler import Leaf

#: The texts, numbers and truth values in each variable, by its name.
Leaves = Mapping[str, "Set[Leaf]"]
#: The import path, by which the child finds gpumagic, comes first.
_PROGRAM = """
import os, pickle, sys
requests = os.fdopen(os.dup(0), "rb")
sys.path[:] = pickle.load(requests)
from gpumagic.restart.variables import trial
trial.run(requests, int(sys.argv[1]))
"""


@dataclass(frozen=True)
class Outcome:
    """What a try has found."""

    #: What modules hold here, and a fresh import does not.
    missing: Sequence[Reference] = ()
    #: The first variable that does not load, and why.
    failed: Mapping[str, str] = field(default_factory=dict)
    #: What variables have not any more when they come back.
    lacking: Mapping[str, str] = field(default_factory=dict)
    #: The variables that load, but end the process when they are compared.
    uncompared: Sequence[str] = ()


class Step(NamedTuple):
    """What the child does now; said again with a fault where it finds one."""

    #: "find" a module's object, "load" or "compare" a variable; "done" with all, "end" of the try.
    stage: str
    #: Of the object or the variable; "" before the first.
    name: str = ""
    #: What is wrong with it; at the end, the status of the process.
    fault: str = ""


class Trial:
    """A process that tries to load variables; ``data`` is their file."""

    def __init__(self, process: Any, errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors

    @classmethod
    @contextmanager
    def begun(
        cls, data: IO[bytes], extension: str, environment: Mapping[str, str], shell: Shell
    ) -> Iterator[Trial]:
        """Start the process, which imports ``extension``, and the modules that variables are."""
        modules = [name for name in map(imported_as, shell.user_ns.values()) if name]
        modules += ["torch"] if torch_cuda.loaded() is not None else []
        imports = import_path.Imports.of_this_process(shell.starting_dir)
        descriptors = [data.fileno()]
        with ExitStack() as stack:
            with suppress(OSError):  # the working folder is closed to this user
                descriptors.append(os.open(".", os.O_PATH | os.O_DIRECTORY))
                stack.callback(os.close, descriptors[1])
            errors = stack.enter_context(handover.in_memory())
            process = stack.enter_context(
                child_process.conversation(
                    *(_PROGRAM, str(data.fileno())),
                    environment=import_path.environment(environment, shell.starting_dir),
                    stderr=errors,
                    pass_fds=descriptors,
                )
            )
            trial = cls(process, errors)
            trial._send(imports.path, (imports, descriptors[1:], extension, modules))
            yield trial

    def _send(self, *requests: object) -> None:
        with suppress(BrokenPipeError):  # it has ended, and says why
            for each in requests:
                pickle.dump(each, self._process.stdin)
            self._process.stdin.flush()

    def outcome(self, manifest: Manifest, leaves: Leaves, namespace: Mapping[str, Any]) -> Outcome:
        """Load the variables, which are in ``namespace`` here; return what comes of them.

        Those of which there are ``leaves`` are compared with these.

        Raises:
            RestartError: no process starts in that environment, or it ends with an import.
        """
        leaves, uncompared = dict(leaves), list[str]()
        while True:
            status, at, faults = self._answer(manifest, leaves)
            if found := faults["find"]:
                return Outcome([each for each in manifest.referred if str(each) in found])
            if at.stage == "done":
                return Outcome(lacking=faults["compare"], uncompared=uncompared)
            ends = f"ends with status {status}"
            if at.stage == "load":
                words = refused.type_in_words(namespace.get(at.name))
                why = at.fault or f"a process that loads it {ends}"
                return Outcome(failed={at.name: f"{words}{': ' * bool(words)}{why}"})
            if at.name not in leaves:
                looks = f" when it looks for {at.name}" * bool(at.name)
                raise RestartError(f"the new process {ends}{looks}")
            # It has loaded: only what it has then is not known.
            uncompared.append(at.name)
            del leaves[at.name]

    def _answer(
        self, manifest: Manifest, leaves: Leaves
    ) -> tuple[str, Step, Mapping[str, dict[str, str]]]:
        """Return the status with which a try ends, its last step, and the faults of each stage."""
        self._send((manifest, leaves))
        last, faults = Step("find"), defaultdict[str, dict[str, str]](dict)
        for line in self._process.stdout:
            step = Step(*json.loads(line))
            if step.stage == "end":
                return step.fault, last, faults
            if step.fault:
                faults[step.stage][step.name] = step.fault
            last = step
        self._errors.seek(0)
        why = child_process.last_error(self._errors.read().decode(errors="replace"))
        raise RestartError(f"the new process would not start: {why}")


# --- in the child ---------------------------------------------------------------------------------


class _Shell(SimpleNamespace):
    """Stands for IPython's shell, of which variables may be methods."""

    def __getattr__(self, name: str) -> Any:
        return print


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
                alive = list[object]()
                try:
                    for step in _tried(manifest, leaves, descriptor, alive):
                        print(json.dumps(step), file=out, flush=True)
                finally:
                    os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(json.dumps(Step("end", fault=str(status))), file=out, flush=True)


def _tried(
    manifest: Manifest, leaves: Leaves, descriptor: int, alive: list[object]
) -> Iterator[Step]:
    """Find what is referred to, load each variable, and compare it, until something has a fault.

    What is loaded goes on in ``alive``.
    """
    from gpumagic.restart.variables.unpickler import Unpickler

    # As in the new process, what names a class of the notebook finds it in ``__main__``.
    main = sys.modules["__main__"] = ModuleType("__main__")
    hidden = {name: getattr(builtins, name, print) for name in BOUND}
    shell: Any = _Shell(user_ns=vars(main), user_ns_hidden=hidden)
    hidden.update(get_ipython=lambda: shell, In=[], Out={}, _dh=[])
    shell.user_ns.update(hidden)
    vars(builtins).update(get_ipython=lambda: shell, display=print)
    missing = False
    for reference, kind in manifest.referred.items():
        yield Step("find", str(reference))
        if not _is_there(reference, kind):
            missing = True
            yield Step("find", str(reference), "missing")
    if missing:
        return
    yield Step("find")
    loader = Unpickler(manifest, descriptor, shell, is_trial=True)
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


def _is_there(reference: Reference, kind: str) -> bool:
    try:
        return type_name(reference.found()) == kind
    except (Exception, SystemExit):  # as a script that is imported
        return False


def _compared(manifest: Manifest, leaves: Leaves, shell: Any) -> Iterator[Step]:
    """Pickle the variables again; the fault of one is what it has not any more.

    Order, counts and what is shared are left out: they differ where nothing has changed.
    """
    from gpumagic.restart.variables.pickler import Pickler

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
