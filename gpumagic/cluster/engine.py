"""What runs on an engine: `calls.source` names a function of this module, which replies there."""

from __future__ import annotations

import base64
import inspect
import pickle
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpumagic._version import __version__
from gpumagic.errors import DeviceError
from gpumagic.results.devices import Device, DeviceTable

#: The source of our payload in an execute_reply, which carries what a function replies.
PAYLOAD = "gpumagic"
#: The variable that holds a magic's result until the magic has returned.
RESULT = "_gpumagic_result"


@dataclass(frozen=True)
class Visible:
    """The devices that an engine sees, and the UUIDs of those with which it was started."""

    table: DeviceTable
    given: tuple[str, ...]


def devices(version: str) -> None:
    """Reply what this engine sees.

    Raises:
        DeviceError: this engine has another version of gpumagic than the one that asks.
    """
    _check(version)
    from gpumagic.selection import apply
    from gpumagic.selection.spec import uuids_of
    from gpumagic.selection.table import devices

    table = devices(processes=False)
    given: Sequence[Device] = ()
    with suppress(DeviceError):  # not known, so it cannot be pinned to any
        given = apply.allowed(table)
    _reply(Visible(table, uuids_of(given)))


def choose(version: str, spec: str, min_free: int | None, idle: bool, claim: bool) -> None:
    """Choose the GPUs of this engine, as `gpumagic.select`, and reply the `Selection`.

    Raises:
        GpuMagicError: the choice does not fit, or the versions differ.
    """
    _check(version)
    from gpumagic.selection import apply
    from gpumagic.selection.auto import Wants
    from gpumagic.selection.spec import parse

    _shell()  # with the extension, which knows the statement that initialises CUDA
    wants = Wants(min_free=min_free, idle=idle, claim=claim)
    _reply(apply.choose_devices(parse(spec), wants))


def run_cell(version: str, magic: str, line: str, cell: str | None) -> Any:
    """Run a magic, reply its result, and return the code's value.

    Raises:
        DeviceError: the versions differ; or the code awaits, which engines' kernels do not run.
    """
    __tracebackhide__ = True
    _check(version)
    shell = _shell()
    try:
        # Not by run_cell_magic: its frame, and its variables, would be in the user's tracebacks.
        value = shell.find_line_magic(magic)(line, cell, shell.user_ns)
        if inspect.iscoroutine(value):
            value.close()
            raise DeviceError("engines run no cell that awaits: leave await out")
    finally:
        _reply(shell.user_ns.pop(RESULT, None))
    return value


def _check(version: str) -> None:
    if version != __version__:
        raise DeviceError(
            f"has gpumagic {__version__}, this process {version}: install the same there"
        )


def _reply(value: object) -> None:
    """Have the reply carry the host's name and a value."""
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    written = base64.b64encode(pickle.dumps((socket.gethostname(), value))).decode()
    shell.payload_manager.write_payload({"source": PAYLOAD, "result": written})


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    shell.extension_manager.load_extension("gpumagic")
    return shell
