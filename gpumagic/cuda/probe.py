"""Find out whether CUDA starts: torch's runtime in a child or a forked copy, or the driver alone.

Where a child does it, neither torch is imported nor CUDA initialised here.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gpumagic.cuda import driver, visible_devices
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.pytorch.build import Build, architectures, versions
from gpumagic.errors import DeviceError
from gpumagic.system import child_process, forked_copy, text

#: What a child's own lines begin with: others may print, too (``sitecustomize``, a library).
_MARK = "gpumagic: "
#: How the program of a child begins, which finds this gpumagic.
_WITH_GPUMAGIC = f"import sys; sys.path.append({str(Path(__file__).parents[2])!r})"


@dataclass(frozen=True)
class Start:
    """How the CUDA runtime starts."""

    #: The number of devices that it finds; None where it was not tried or did not return.
    count: int | None = None
    #: Its message where it could not start.
    message: str | None = None

    @property
    def reason(self) -> str | None:
        """The message without torch's general advice."""
        if self.message is None:
            return None
        error = re.search(r"Error \d+: .*", self.message)
        if error:
            return error[0]
        text = self.message.removeprefix("CUDA initialization: ").partition(" - this may ")[0]
        return text.partition(" Please ")[0].rstrip(".")


def start(torch: ModuleType) -> dict[str, Any]:
    """Start the CUDA runtime; return how many devices it finds, and its message if it fails.

    Initialises the driver; creates no context.
    """
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        count = int(torch._C._cuda_getDeviceCount())
    texts = [str(warning.message).split(" (Triggered internally")[0] for warning in issued]
    return {"count": count, "message": " ".join(texts[-1].split()) if texts else None}


def main() -> None:
    """Print `versions` and then `start` of the torch that this Python imports, a line of JSON each.

    It ends without clearing torch's modules, which takes as long as a third of their import.
    """
    try:
        torch = torch_cuda.require()
    except DeviceError as error:
        cause: Any = error.__cause__
        missing = isinstance(cause, ModuleNotFoundError) and cause.name == "torch"
        reason = "torch is not installed" if missing else text.named(cause)
        _print({"error": reason, "missing": missing})
        return
    about = versions(torch)
    if about["compiled"]:
        about["architectures"] = architectures(torch)
    _print(about)
    if about["compiled"]:
        _print(start(torch))
    os._exit(0)


def _print(found: Mapping[str, Any]) -> None:
    print(f"\n{_MARK}{json.dumps(found)}", flush=True)


def in_child(changes: Mapping[str, str], timeout: float = 120.0) -> tuple[Build, Start]:
    """Return build and start of the torch that a child process imports within ``timeout`` seconds.

    Its environment is this process's with ``changes``.
    """
    if not sys.executable:
        return Build(error="the path of this Python's executable is not known"), Start()
    try:
        source = f"{_WITH_GPUMAGIC}; from gpumagic.cuda import probe; probe.main()"
        environment = {**os.environ, **changes}
        done = child_process.python(source, environment=environment, timeout=timeout)
        output, ended = done.stdout, f"ended with status {done.returncode}"
    except child_process.TimeoutExpired as error:
        output, ended = os.fsdecode(error.stdout or ""), f"gave no answer in {timeout:.0f} s"
    except OSError as error:
        return Build(error=f"a child process could not be started: {error}"), Start()
    found = [
        json.loads(each[len(_MARK) :]) for each in output.splitlines() if each.startswith(_MARK)
    ]
    about = Build(**found[0]) if found else Build(error=f"the process that imported it {ended}")
    if len(found) > 1:
        return about, Start(**found[1])
    message = f"the process that started CUDA {ended}" if about.compiled else None
    return about, Start(message=message)


def in_fork(*, shown: bool = False) -> Start:
    """Return how CUDA starts in a forked copy of this process, whose runtime has the same state.

    With ``shown`` no variable hides a GPU from the copy, as after ``%gpu on``. The start in the
    copy does not change this process. Where CUDA has started here, no copy is made. The result is
    empty where torch is not loaded or has no CUDA support.
    """
    torch = torch_cuda.loaded()
    if torch is None or not torch_cuda.built_with_cuda():
        return Start()
    if driver.is_initialized():
        return Start(**start(torch))
    if not hasattr(os, "fork"):  # Windows
        return Start()

    def start_of_copy() -> dict[str, Any]:
        if shown:
            os.environ.pop(visible_devices.MASK, None)
        return start(torch)

    try:
        return Start(**forked_copy.call(start_of_copy))
    except OSError as error:  # no memory for it, or too many processes
        return Start(message=f"a copy of this process could not be made: {error}")
    except ValueError:
        return Start(message="a copy of this process returned nothing")


def trial() -> tuple[Sequence[str] | None, str | None]:
    """Return what CUDA's driver shows a child process with this process's variables.

    These are the UUIDs in CUDA's order, and CUDA's message where it does not start; None and the
    reason where it could not be tried. The trial takes a tenth of a second with a driver that is
    awake, creates no context, and needs no torch.
    """
    source = f"{_WITH_GPUMAGIC}; from gpumagic.cuda import driver; import json"
    source += "; print(json.dumps(driver.start()))"
    try:
        done = child_process.run([sys.executable, "-ISc", source], os.environ, timeout=20.0)
        uuids, message = json.loads(done.stdout)
        return uuids, message
    except (OSError, TypeError, ValueError, child_process.TimeoutExpired) as error:
        return None, f"a child process could not try it ({type(error).__name__})"
