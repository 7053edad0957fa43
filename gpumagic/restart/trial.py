"""Load the kept variables in a child process first, so that what fails is known before the restart.

The child has the new environment and the variables' data: the file of the bytes is mapped, so that
only what is written to is copied. Tensors are on the CPU.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import ModuleType
from typing import IO, Any, NoReturn, cast

from gpumagic.errors import RestartError
from gpumagic.restart import handover
from gpumagic.restart.handover import Kept
from gpumagic.restart.held import Held, Reference, type_name
from gpumagic.system import child_process, import_path, text
from gpumagic.system.paths import working_folder
from gpumagic.wording import listed

#: Seconds for a child to load all variables.
_TIMEOUT = 600.0

#: The import path is that of this process, in which the child finds gpumagic.
_PROGRAM = """
import os, pickle, sys
with os.fdopen(int(sys.argv[1]), "rb") as file:
    sys.path[:] = pickle.load(file)
    from gpumagic.restart import trial
    trial.run(file, int(sys.argv[2]))
"""


@dataclass(frozen=True)
class Outcome:
    """What a trial has found."""

    #: What modules hold here, and a fresh import does not.
    missing: Sequence[Reference] = ()
    #: The variables that do not load, and why.
    failed: Mapping[str, str] = field(default_factory=dict)
    #: What variables have not any more when they come back. None: the child has ended at the last
    #: of ``failed``, and nothing is known of those behind it.
    lacking: Mapping[str, str] | None = field(default_factory=dict)


def outcome(kept: Kept, data: IO[bytes], extension: str, environment: Mapping[str, str]) -> Outcome:
    """Import ``extension`` and load the variables in a child; return what comes of them.

    ``data`` is the file of the bytes of arrays and tensors.

    Raises:
        RestartError: no process starts in that environment.
    """
    with handover.in_memory() as file:
        pickle.dump([entry for entry in sys.path if entry], file)
        pickle.dump(
            (sys.path, import_path.module_folders(), working_folder(), extension, kept), file
        )
        file.seek(0)
        descriptors = file.fileno(), data.fileno()
        try:
            done = child_process.python(
                _PROGRAM,
                *map(str, descriptors),
                environment=environment,
                timeout=_TIMEOUT,
                pass_fds=descriptors,
                start_new_session=True,  # an interrupt from the terminal must not reach it
            )
        except child_process.TimeoutExpired:
            raise RestartError("loading the variables takes more than ten minutes") from None
    missing, *answers = map(json.loads, done.stdout.splitlines() or ["null"])
    if missing is None:
        why = child_process.last_error(done.stderr)
        raise RestartError(f"the new process would not start: {why}")
    lacking = answers.pop() if answers and type(answers[-1]) is dict else None
    failed = {name: text.reason(why[0]) for name, *why in answers if why}
    if lacking is None and not missing:  # it has ended
        name = answers[-1][0] if answers else next(iter(kept.variables))
        failed[name] = f"a process that loads it ends with status {done.returncode}"
    return Outcome([Reference(*each) for each in missing], failed, lacking)


# --- in the child ---------------------------------------------------------------------------------


class _Shell:
    """Stands for IPython's shell, of which variables may be methods, and for what it gives."""

    def __init__(self, given: Iterable[str]) -> None:
        self.user_ns_hidden = {name: getattr(builtins, name, print) for name in given}
        self.user_ns_hidden.update(get_ipython=self.get_ipython, In=[], Out={}, _dh=[])
        # As in the new process, what names a class of the notebook finds it in ``__main__``.
        main = sys.modules["__main__"] = ModuleType("__main__")
        self.user_ns = vars(main)
        self.user_ns.update(self.user_ns_hidden)
        vars(builtins).update(get_ipython=self.get_ipython, display=print)

    def get_ipython(self) -> _Shell:
        return self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return print


#: Not None: it is what many objects compute anew when they are asked.
_CONSTANTS = {"NEWTRUE": "True", "NEWFALSE": "False"}
#: A larger pickle is not compared: it would take more than ten seconds.
LARGEST = 20 << 20


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
    from gpumagic.restart.pickler import Pickler

    before, after, pickles = list[str | None](), list[str | None](), kept.pickles(descriptor)
    held = Held(shell.user_ns, kept.referred)
    out = io.BytesIO()
    pickler = Pickler(out, shell, held)
    for name, variable in kept.variables.items():
        then = leaves(pickles.read(variable.end - pickles.tell()), before)
        start = out.tell()
        if name in kept.contents:
            continue
        try:
            pickler.add(shell.user_ns[name])
        except Exception:  # as what is made again when it is loaded, a lock for example
            out, after = io.BytesIO(), []
            pickler = Pickler(out, shell, held)
            continue
        lacks = sorted(each for _, each in then - leaves(out.getvalue()[start:], after))
        if not all(each.startswith("'_") for each in lacks):  # a class may drop what is its own
            yield name, text.harmless(listed(lacks), text.REASON)


def run(file: IO[bytes], descriptor: int) -> NoReturn:
    """Say what is missing; the name of each variable, and why it does not load; what some lack.

    Each in a line of JSON.
    """
    sys.path[:], folders, folder, extension, kept = pickle.load(file)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: object) -> None:
        print(json.dumps(answer), file=out, flush=True)

    with import_path.restricted_to(folders):
        importlib.import_module(extension)
        from gpumagic.restart.unpickler import GIVEN, Unpickler, on_host

        if folder is not None:
            os.chdir(folder)
        shell: Any = _Shell(GIVEN)
        missing = [each for each, kind in kept.referred.items() if not _is_there(each, kind)]
        say(missing)
        buffers, memory = kept.mapped(descriptor)
        make = partial(
            Unpickler,
            memory=memory,
            storage=cache(lambda number: on_host(memory[number])),
            device=kept.devices.now,
            shell=shell,
            copies=False,
        )
        pickles, begin, first, failed = kept.pickles(descriptor), 0, 0, bool(missing)
        loader = make(pickles, buffers)
        for name, variable in () if missing else kept.variables.items():
            if kept.apart:
                pickles.seek(begin)
                loader = make(pickles, buffers[first:])
            begin, first = variable.end, variable.buffers
            say([name])
            try:
                value = loader.load()
                kind = variable.kind and type_name(value)
                if kind != variable.kind:
                    raise TypeError(f"it would come back as {kind}, not {variable.kind}")
            except BaseException as error:
                say([name, text.reason(error)])
                failed = True
                if not kept.apart:
                    break
                continue
            if name not in kept.contents:
                shell.user_ns[name] = value
        compared = not (failed or kept.apart) and kept.body <= LARGEST
        say(dict(_lacking(kept, descriptor, shell)) if compared else {})
    os._exit(0)


def _is_there(reference: Reference, kind: str) -> bool:
    try:
        return type_name(reference.found()) == kind
    except Exception:
        return False
