"""Try in a child process whether kept variables load, before the restart.

The child has the environment and the import path that the new process will have. It does not read
the tensors: empty ones of the same shapes replace them.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from typing import IO, Any

from gpumagic.cuda import torch_cuda
from gpumagic.restart.variables.plan import REASON
from gpumagic.system import child_process, import_path, paths, text

#: Seconds to wait for the child; the user may interrupt it earlier.
_PATIENCE = 600.0

#: The last line of a child that has tried everything.
_DONE = "."

#: gpumagic, and what it imports, is never imported from the working folder. What the variables need
#: may be, if it was before: from then on the import path is the notebook's.
_START = """\
import os, sys
given = eval(sys.argv.pop())
sys.path[:] = [entry for entry in given["path"] if os.path.isabs(entry)]
from gpumagic.restart.variables import trial
sys.path[:] = given["path"]
if given["folder"] is not None:
    os.chdir(given["folder"])
trial.main(given)
"""


class Trial:
    """A child that loads what is in a file of `gpumagic.restart.variables.write`."""

    def __init__(self, file: IO[bytes], environment: Mapping[str, str]) -> None:
        file.flush()
        self._reader, writer = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - until `close`
        given = {
            "path": [entry for entry in sys.path if isinstance(entry, str)],
            "file": file.fileno(),
            "answers": writer,
            "folder": paths.working_folder(),
            "module_folders": import_path.module_folders(),
        }
        try:
            self._child = child_process.start(
                [sys.executable, "-c", _START, repr(given)],
                environment,
                pass_fds=(file.fileno(), writer),
                stdout=child_process.DEVNULL,
                stderr=self._errors,
            )
        except BaseException:
            os.close(self._reader)
            self._errors.close()
            raise
        finally:
            os.close(writer)

    def failures(self, waiting: Callable[[], None]) -> dict[str, str]:
        """Return the variables that do not load, and why; "" means all of them.

        ``waiting`` is called repeatedly meanwhile.
        """
        ends = time.monotonic() + _PATIENCE
        answers = b""
        while True:
            if select.select([self._reader], [], [], 0.1)[0]:
                part = os.read(self._reader, 1 << 16)
                if not part:
                    break
                answers += part
            elif time.monotonic() > ends:
                return {"": f"a trial in a fresh process has not ended after {_PATIENCE:.0f} s"}
            waiting()
        return self._judged([json.loads(line) for line in answers.splitlines()])

    def _judged(self, answers: list[list[Any]]) -> dict[str, str]:
        code = self._child.wait()
        failures = {name: reason for name, reason in answers if reason is not None}
        if answers and answers[-1] == [_DONE, None]:
            return failures
        if answers:  # the last line says what it was about to load
            ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return {**failures, answers[-1][0]: f"a fresh process that loads it ends with {ended}"}
        self._errors.seek(0)
        said = child_process.last_error(self._errors.read().decode(errors="replace"))
        return {"": f"a fresh process cannot load gpumagic: {said or code}"}

    def close(self) -> None:
        """End the child."""
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        self._child.wait()
        os.close(self._reader)
        self._errors.close()


# --- in the child --------------------------------------------------------------------------------


def main(given: Mapping[str, Any]) -> None:
    """Load everything, report what does not load, and end this process."""
    with os.fdopen(given["answers"], "w", buffering=1) as answers:

        def say(name: str, reason: str | None) -> None:
            answers.write(json.dumps([name, reason]) + "\n")

        with (
            os.fdopen(given["file"], "rb", closefd=False) as file,
            import_path.restricted_to(given["module_folders"]),
        ):
            _try(file, say)
        say(_DONE, None)
    os._exit(0)


def _try(file: IO[bytes], say: Callable[[str, str | None], None]) -> None:
    from gpumagic.restart.variables.reader import Reader

    namespace = _ImportingNamespace(__name__="__main__", __builtins__=builtins)
    reader = _reader(Reader, file, namespace)
    namespace.imports = reader.index.imports
    names: Collection[str] = reader.index.separate
    for name in names:
        say(name, None)
        try:
            namespace[name] = reader.load_variable(name)
        except BaseException as error:
            say(name, text.reason(error, REASON))
    if len(names) < len(reader.index.names):
        say("", None)
        namespace.update(reader.load_graph())


def _reader(base: Any, file: IO[bytes], namespace: dict[str, Any]) -> Any:
    class Trying(base):  # type: ignore[misc]
        """Reads no data but what is in the pickles."""

        def _saved_tensor(self, number: int) -> Any:
            torch, kind = torch_cuda.require(), self.index.tensors[number]
            if kind.quantized is not None:
                return _quantized(torch, kind.dtype, *kind.quantized)
            # One element for all.
            size = () if kind.view is None else kind.view.size
            return torch.zeros((), dtype=kind.dtype).expand(size)

    return Trying([file], namespace, _AnyObject(), "cpu", _device)


def _quantized(torch: Any, dtype: Any, size: tuple[int, ...], axis: int | None) -> Any:
    if axis is None:
        return torch._empty_affine_quantized(size, scale=1, zero_point=0, dtype=dtype)
    channels = torch.ones(size[axis], dtype=torch.float64)
    return torch._empty_per_channel_affine_quantized(
        size, scales=channels, zero_points=channels.long(), axis=axis, dtype=dtype
    )


class _ImportingNamespace(dict[str, Any]):
    """A namespace that imports a name when it is looked up."""

    imports: Mapping[str, Any] = {}

    def __missing__(self, name: str) -> Any:
        from gpumagic.restart.variables.reader import imported

        self[name] = imported(*self.imports[name])
        return self[name]


class _AnyObject(dict[str, Any]):
    """An object for every key; not None, which has no methods to bind."""

    def __missing__(self, name: str) -> object:
        return object()


def _device(ordinal: int | None) -> str:
    return "cuda" if torch_cuda.require().cuda.is_available() else "cpu"
