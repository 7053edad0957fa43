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
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, NoReturn

from gpumagic.cuda import torch_cuda
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
            RestartError: no process starts in that environment.
        """
        self._send((manifest, leaves))
        said = dict[str, Any]()
        for line in self._process.stdout:
            said.update(json.loads(line))
            if "status" in said:
                break
        else:
            self._errors.seek(0)
            why = child_process.last_error(self._errors.read().decode(errors="replace"))
            raise RestartError(f"the new process would not start: {why}")
        if missing := [Reference(*each) for each in said["missing"]]:
            return Outcome(missing)
        if "lacking" in said:
            return Outcome(lacking=said["lacking"])
        ends = f"a process that loads it ends with status {said['status']}"
        name, what = said["at"], refused.type_in_words(namespace.get(said["at"]))
        return Outcome(failed={name: f"{what}{': ' * bool(what)}{said.get('why', ends)}"})


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
            with suppress(Exception):  # that of a variable fails again when it is loaded
                importlib.import_module(name)
        for folder in folders:
            os.fchdir(folder)
        while True:
            manifest, leaves = pickle.load(requests)
            if (pid := os.fork()) == 0:
                # It ends with the copies of the user's objects alive: no `__del__` is called.
                alive = list[object]()
                try:
                    for answer in _tried(manifest, leaves, descriptor, alive):
                        print(json.dumps(answer), file=out, flush=True)
                finally:
                    os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(json.dumps({"status": status}), file=out, flush=True)


def _tried(
    manifest: Manifest, leaves: Leaves, descriptor: int, alive: list[object]
) -> Iterator[dict[str, Any]]:
    """Yield what is missing; each variable, and why it does not load; what some lack then.

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
    missing = [each for each, kind in manifest.referred.items() if not _is_there(each, kind)]
    yield {"missing": missing}
    if missing:
        return
    loader = Unpickler(manifest, descriptor, shell, is_trial=True)
    alive.append(loader)
    for name in manifest.kinds:
        yield {"at": name}
        try:
            loader.bind(name)
        except BaseException as error:
            yield {"why": text.reason(error)}
            return
    yield {"lacking": dict(_lacking(manifest, leaves, shell))}


def _is_there(reference: Reference, kind: str) -> bool:
    try:
        return type_name(reference.found()) == kind
    except Exception:
        return False


def _lacking(manifest: Manifest, leaves: Leaves, shell: Any) -> Iterator[tuple[str, str]]:
    """Pickle the variables again; yield what has not any more what it had.

    Order, counts and what is shared are left out: they differ where nothing has changed.
    """
    from gpumagic.restart.variables.pickler import Pickler

    module_objects = ModuleObjects(shell.user_ns, manifest.referred)
    nowhere = Path(os.devnull).open("wb")  # noqa: SIM115
    pickler = Pickler(nowhere, shell, module_objects)
    for name, then in leaves.items():
        lacking = {*then}
        pickler.note = lacking.discard
        try:
            pickler.add(shell.user_ns[name])
        except Exception:  # as what is made again when it is loaded, a lock for example
            pickler = Pickler(nowhere, shell, module_objects)
            continue
        lacks = sorted(repr(each) if kind is str else each for kind, each in lacking)
        if not all(each.startswith("'_") for each in lacks):  # a class may drop what is its own
            yield name, text.harmless(listed(lacks), text.REASON)
