"""Load the kept variables in a child process first, so that what fails is known before the restart.

The child has the new environment, and imports what the notebook has imported. Each try is a fork of
it, which maps the variables' data: only what is written to is copied. Tensors are on the CPU.
"""

from __future__ import annotations

import builtins
import importlib
import io
import json
import os
import pickle
import pickletools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import IO, Any, NoReturn, cast

from gpumagic.cuda import torch_cuda
from gpumagic.errors import RestartError
from gpumagic.restart import handover
from gpumagic.restart.variables import refused
from gpumagic.restart.variables.held import Held, Reference, type_name
from gpumagic.restart.variables.kept import Kept
from gpumagic.system import child_process, import_path, text
from gpumagic.system.introspection import imported_as
from gpumagic.system.shell import Shell
from gpumagic.wording import listed

#: The import path, by which the child finds gpumagic, comes first.
_PROGRAM = """
import os, pickle, sys
requests = os.fdopen(os.dup(0), "rb")
sys.path[:] = pickle.load(requests)
from gpumagic.restart.variables import trial
trial.run(requests, int(sys.argv[1]))
"""
#: A larger pickle is not compared: it would take more than ten seconds.
LARGEST = 20 << 20


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

    def outcome(self, kept: Kept, namespace: Mapping[str, Any]) -> Outcome:
        """Load the variables, which are in ``namespace`` here; return what comes of them.

        Raises:
            RestartError: no process starts in that environment.
        """
        self._send(kept)
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
        name, what = said["at"], refused.what(namespace.get(said["at"]))
        return Outcome(failed={name: f"{what}{': ' * bool(what)}{said.get('why', ends)}"})


# --- in the child ---------------------------------------------------------------------------------


class _Shell(SimpleNamespace):
    """Stands for IPython's shell, of which variables may be methods."""

    def __getattr__(self, name: str) -> Any:
        return print


def run(requests: IO[bytes], descriptor: int) -> NoReturn:
    """Try each `Kept` that comes, in a fork of its own; say the status with which that ends."""
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
            kept = pickle.load(requests)
            if (pid := os.fork()) == 0:
                # It ends with the copies of the user's objects alive: no `__del__` is called.
                alive = list[object]()
                try:
                    for answer in _tried(kept, descriptor, alive):
                        print(json.dumps(answer), file=out, flush=True)
                finally:
                    os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(json.dumps({"status": status}), file=out, flush=True)


def _tried(kept: Kept, descriptor: int, alive: list[object]) -> Iterator[dict[str, Any]]:
    """Yield what is missing; each variable, and why it does not load; what some lack then.

    What is loaded goes on in ``alive``.
    """
    from gpumagic.restart.variables.unpickler import GIVEN, Unpickler

    # As in the new process, what names a class of the notebook finds it in ``__main__``.
    main = sys.modules["__main__"] = ModuleType("__main__")
    hidden = {name: getattr(builtins, name, print) for name in GIVEN}
    shell: Any = _Shell(user_ns=vars(main), user_ns_hidden=hidden)
    hidden.update(get_ipython=lambda: shell, In=[], Out={}, _dh=[])
    shell.user_ns.update(hidden)
    vars(builtins).update(get_ipython=lambda: shell, display=print)
    missing = [each for each, kind in kept.referred.items() if not _is_there(each, kind)]
    yield {"missing": missing}
    if missing:
        return
    loader = Unpickler(kept, descriptor, shell, is_trial=True)
    alive.append(loader)
    for name in kept.variables:
        yield {"at": name}
        try:
            loader.bind(name)
        except BaseException as error:
            yield {"why": text.reason(error)}
            return
    compared = kept.body <= LARGEST
    yield {"lacking": dict(_lacking(kept, descriptor, shell)) if compared else {}}


def _is_there(reference: Reference, kind: str) -> bool:
    try:
        return type_name(reference.found()) == kind
    except Exception:
        return False


# --- what came back, compared ---------------------------------------------------------------------

#: Not None: it is what many objects compute anew when they are asked.
_CONSTANTS = {"NEWTRUE": "True", "NEWFALSE": "False"}


def leaves(body: bytes, memo: list[str | None]) -> set[tuple[type, str]]:
    """Return the texts, numbers and truth values in a pickle, each once.

    Of those that it takes from pickles before it ``memo`` has the texts. Order, counts and what is
    shared are left out: they differ where nothing has changed.
    """
    found, last = set[tuple[type, str]](), None
    for code, argument, _ in pickletools.genops(body):
        if code.name == "MEMOIZE":
            memo.append(last)
            continue
        if "BINGET" in code.name:
            argument = memo[cast(int, argument)]
        elif code.name in ("FRAME", "PROTO"):
            continue
        last = argument if type(argument) is str else None
        if code.name in _CONSTANTS:
            found.add((object, _CONSTANTS[code.name]))
        elif type(argument) in (str, int, float):
            found.add((type(argument), repr(argument)))
    return found


def _lacking(kept: Kept, descriptor: int, shell: Any) -> Iterator[tuple[str, str]]:
    """Pickle the variables again; yield what has not any more what it had."""
    from gpumagic.restart.variables.pickler import Pickler

    before, after, held = list[str | None](), list[str | None](), Held(shell.user_ns, kept.referred)
    pickler, begin = Pickler(io.BytesIO(), shell, held), 0
    for name, variable in kept.variables.items():
        then = leaves(os.pread(descriptor, variable.end - begin, begin), before)
        begin = variable.end
        if name in kept.contents:
            continue
        start = pickler.out.tell()
        try:
            pickler.add(shell.user_ns[name])
        except Exception:  # as what is made again when it is loaded, a lock for example
            pickler, after = Pickler(io.BytesIO(), shell, held), []
            continue
        pickler.out.seek(start)
        lacks = sorted(each for _, each in then - leaves(pickler.out.read(), after))
        if not all(each.startswith("'_") for each in lacks):  # a class may drop what is its own
            yield name, text.harmless(listed(lacks), text.REASON)
