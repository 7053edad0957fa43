"""Load the kept variables in a child process first, so that what fails is known before the restart.

The child has the new environment and the variables' data: the file of the bytes is mapped, so that
only what is written to is copied. Tensors are on the CPU.
"""

from __future__ import annotations

import builtins
import importlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pickletools import genops
from typing import IO, Any, NoReturn, cast

from gpumagic.errors import RestartError
from gpumagic.restart import handover
from gpumagic.restart.handover import Kept, Variable
from gpumagic.system import child_process, import_path, introspection, text
from gpumagic.system.paths import working_folder

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


def type_name(value: object) -> str:
    """Return the module and the name of a value's type."""
    kind = type(value)
    return f"{introspection.module_of(kind)}.{kind.__qualname__}"


def failures(
    kept: Kept, data: IO[bytes], extension: str, environment: Mapping[str, str]
) -> tuple[dict[str, str], bool]:
    """Import ``extension`` and load the variables in a child; return what fails, and why.

    ``data`` is the file of the bytes of arrays and tensors. False is returned beside it if the
    child has ended at the last of these: nothing is known then of the variables behind it.

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
    words = done.stdout.split("\0")[1:]  # a name, its type or why it fails, the next name, …
    if not words:
        why = child_process.last_error(done.stderr)
        raise RestartError(f"the new process would not start: {why}")
    failed = dict[str, str]()
    for name, answer in zip(words[::2], words[1::2], strict=False):
        kind = kept.variables[name].kind
        if answer.startswith("!"):
            failed[name] = text.reason(answer[1:])
        elif not answer:
            failed[name] = f"a process that loads it ends with status {done.returncode}"
        elif answer != f"={kind}":
            failed[name] = f"it would come back as {answer[1:]}, not {kind}"
    return failed, bool(words[-1])


# --- in the child ---------------------------------------------------------------------------------


class _Shell:
    """Stands for IPython's shell, of which variables may be methods, and for what it gives."""

    def __init__(self, given: Iterable[str]) -> None:
        self.user_ns_hidden = {name: getattr(builtins, name, print) for name in given}
        self.user_ns_hidden.update(get_ipython=self.get_ipython, In=[], Out={}, _dh=[])
        self.user_ns = {"__name__": "__main__", **self.user_ns_hidden}
        vars(builtins).update(get_ipython=self.get_ipython, display=print)

    def get_ipython(self) -> _Shell:
        return self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return print


def memoized(body: bytes, end: int) -> int:
    """Return how many objects the pickles up to ``end`` put into the memo."""
    file, count = io.BytesIO(body), 0
    while file.tell() < end:
        count += sum(code.name == "MEMOIZE" for code, _, _ in genops(file))
    return count


def taken(body: bytes) -> set[int]:
    """Return the numbers in the memo of the objects that one pickle takes from there."""
    return {cast(int, n) for code, n, _ in genops(body) if code.name in ("BINGET", "LONG_BINGET")}


def behind(variable: Variable, body: bytes, memo: Mapping[int, Any]) -> tuple[bytes, list[Any]]:
    """Return the pickles behind one that does not load, and the buffers that they begin with.

    What they share with it is None, or incomplete; with others it is in ``memo``. A memo cannot be
    set, so that a pickle of its own puts each object there, in order.
    """
    count = memoized(body, variable.end)
    puts = (pickle.NEXT_BUFFER + pickle.MEMOIZE + pickle.POP) * count
    first = pickle.PROTO + b"\5" + puts + pickle.NONE + pickle.STOP
    return first + body[variable.end :], [memo.get(number) for number in range(count)]


def run(file: IO[bytes], descriptor: int) -> NoReturn:
    """Say the name of each variable, then its type, or ``!`` and why it does not load."""
    sys.path[:], folders, folder, extension, kept = pickle.load(file)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with import_path.restricted_to(folders):
        importlib.import_module(extension)
        from gpumagic.restart.pickler import GIVEN, Unpickler, on_host

        if folder is not None:
            os.chdir(folder)
        shell: Any = _Shell(GIVEN)
        arrays, storages = kept.mapped(descriptor)
        storage = cache(lambda number: on_host(storages[number]))
        make = partial(Unpickler, storage=storage, device=kept.devices.now, shell=shell)
        loader = make(io.BytesIO(kept.body), arrays)
        for name, variable in kept.variables.items():
            print(end=f"\0{name}\0", file=out, flush=True)
            try:
                value = shell.user_ns[name] = loader.load()
                print(end=f"={variable.kind and type_name(value)}", file=out, flush=True)
            except BaseException as error:
                print(end=f"!{text.reason(error)}", file=out, flush=True)
                body, shared = behind(variable, kept.body, loader.memo.copy())
                loader = make(io.BytesIO(body), [*shared, *arrays[variable.buffers :]])
                loader.load()
    os._exit(0)
