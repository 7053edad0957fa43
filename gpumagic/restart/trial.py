"""Load the kept variables in a child process first, so that what fails is known before the restart.

The child has the new environment, and no data: arrays are zeros, tensors are on the CPU.
"""

from __future__ import annotations

import builtins
import importlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from gpumagic.errors import RestartError
from gpumagic.restart import handover
from gpumagic.restart.handover import Kept
from gpumagic.system import child_process, import_path, text
from gpumagic.system.paths import working_folder

#: Seconds for a child to load all variables.
_TIMEOUT = 600.0

#: The import path is that of this process, in which the child finds gpumagic.
_PROGRAM = """
import os, pickle, sys
with os.fdopen(int(sys.argv[1]), "rb") as file:
    sys.path[:] = pickle.load(file)
    from gpumagic.restart import trial
    trial.run(file)
"""


def failures(kept: Kept, extension: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Import ``extension`` and load the pickles in a child; return what fails first, and why.

    Raises:
        RestartError: no process starts in that environment.
    """
    if not kept.names:
        return {}
    with handover.in_memory() as file:
        pickle.dump([entry for entry in sys.path if entry], file)
        folders = import_path.module_folders()
        pickle.dump((sys.path, folders, working_folder(), extension, kept), file)
        file.seek(0)
        try:
            done = child_process.python(
                _PROGRAM,
                str(file.fileno()),
                environment=environment,
                timeout=_TIMEOUT,
                pass_fds=[file.fileno()],
                start_new_session=True,  # an interrupt from the terminal must not reach it
            )
        except child_process.TimeoutExpired:
            raise RestartError("loading the variables takes more than ten minutes") from None
    said = done.stdout.split("\0")  # "", a name, "", the next name, …, and why the last one fails
    if done.returncode == 0 and said[-1] == "ok":
        return {}
    if len(said) == 1:
        why = child_process.last_error(done.stderr)
        raise RestartError(f"the new process would not start: {why}")
    died = f"a process that loads it ends with status {done.returncode}"
    return {said[-2]: text.reason(said[-1] or died)}


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


def run(file: Any) -> NoReturn:
    """Say the name of each variable, then why it does not load; at last, ok."""
    sys.path[:], folders, folder, extension, kept = pickle.load(file)
    out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    with import_path.restricted_to(folders):
        importlib.import_module(extension)
        from gpumagic.cuda import torch_cuda
        from gpumagic.restart.devices import Devices
        from gpumagic.restart.pickler import GIVEN, Unpickler, use_namespace

        if folder is not None:
            os.chdir(folder)

        def storage(number: int) -> Any:
            torch: Any = torch_cuda.require()
            return torch.UntypedStorage(kept.storages[number][0])

        shell = _Shell(GIVEN)
        use_namespace(shell.user_ns)
        buffers = (bytearray(size) for size in kept.buffers)
        device = Devices(kept.uuids).now
        loader = Unpickler(io.BytesIO(kept.body), buffers, storage, device, shell)
        for name in kept.names:
            print(end=f"\0{name}\0", file=out, flush=True)
            try:
                shell.user_ns[name] = loader.load()
            except BaseException as error:
                print(end=str(error) or type(error).__name__, file=out, flush=True)
                os._exit(1)
    print(end="\0ok", file=out, flush=True)
    os._exit(0)
