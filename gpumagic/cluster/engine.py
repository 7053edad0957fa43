"""What runs on an engine: `selection.call` has `answer` called there, `cells` runs `run_cell`."""

from __future__ import annotations

import base64
import inspect
import pickle
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from gpumagic._version import __version__
from gpumagic.errors import DeviceError
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.results.selection import Selection

if TYPE_CHECKING:
    from ipyparallel.client.client import ExecuteReply

#: The source of our payload in an execute_reply, which carries the result of a cell.
PAYLOAD = "gpumagic"
#: The variable that holds a magic's result until the magic has returned.
RESULT = "_gpumagic_result"


def answer(version: str, function: str, arguments: dict[str, Any]) -> Any:
    """Call one of `FUNCTIONS` for a client with that ``version``; return the host and the value.

    Raises:
        DeviceError: the versions differ.
    """
    _check(version)
    return socket.gethostname(), FUNCTIONS[function](**arguments)


def _check(version: str) -> None:
    if version != __version__:
        raise DeviceError(
            f"has gpumagic {__version__}, this process {version}: install the same there"
        )


def devices() -> tuple[DeviceTable, tuple[str, ...]]:
    """Return this engine's device table, and the UUIDs of what it was started with."""
    from gpumagic.selection import apply
    from gpumagic.selection.spec import uuids_of
    from gpumagic.selection.table import devices

    table = devices(processes=False)
    given: Sequence[Device] = ()
    with suppress(DeviceError):  # not known, so it cannot be pinned to any
        given = apply.allowed(table)
    return table, uuids_of(given)


def choose_on_engine(spec: str, min_free: int | None, idle: bool, claim: bool) -> Selection:
    """Choose the GPUs of this engine; see `gpumagic.select`."""
    from gpumagic.selection import apply
    from gpumagic.selection.auto import Wants
    from gpumagic.selection.spec import parse

    _shell()  # with the extension, which knows the statement that initialises CUDA
    return apply.choose_devices(parse(spec), Wants(min_free=min_free, idle=idle, claim=claim))


#: What `answer` calls.
FUNCTIONS: dict[str, Callable[..., Any]] = {"devices": devices, "choose": choose_on_engine}


def run_cell(version: str, magic: str, line: str, cell: str | None) -> Any:
    """Run a magic for a client, and return the code's value; the reply's payload has the result.

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
        result = shell.user_ns.pop(RESULT, None)
    written = base64.b64encode(pickle.dumps((socket.gethostname(), result))).decode()
    shell.payload_manager.write_payload({"source": PAYLOAD, "result": written})
    return value


def result_of(reply: ExecuteReply) -> tuple[str, Any] | None:
    """Return what `run_cell` has put into ipyparallel's reply; None where there is nothing.

    A reply of ipyparallel's is unpickled anyway: who may answer is decided by the cluster's key.
    """
    for item in reply._content.get("payload", ()):
        if item.get("source") == PAYLOAD:
            return cast("tuple[str, Any]", pickle.loads(base64.b64decode(item["result"])))
    return None


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    shell.extension_manager.load_extension("gpumagic")
    return shell
