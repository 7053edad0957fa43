"""Read a controller's connection file; nothing in it can run code here.

ipyparallel's client imports what ``pack`` names, and puts ``ssh`` and the addresses into a command
line of ``ssh``, unquoted.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.system.paths import open_own
from gpumagic.system.text import harmless

#: The keys that a client reads; all others are left out.
_KEYS = (
    *("key", "signature_scheme", "curve_serverkey", "pack", "unpack", "task_scheme"),
    *("ssh", "location", "interface", "control", "task", "mux", "iopub", "notification"),
    *("registration", "broadcast"),
)
#: The serializers that jupyter_client has itself; it imports any other name.
_PACKERS = ("json", "orjson", "pickle", "msgpack")
#: Regular expressions for one word of a command line that is no option, and how to write it.
_SHAPES = {
    "ssh": (
        r"(?:[A-Za-z0-9_][\w.+-]*@)?[A-Za-z0-9_][\w.-]*(?::\d{1,5})?",
        "[user@]host[:port]",
    ),
    "location": (r"[A-Za-z0-9_:][\w.:%-]*", "a host"),
    "interface": (r"tcp://[\w.*:\[\]-]+|ipc://.+", "tcp://address"),
}


def read(file: Path) -> dict[str, Any]:
    """Return the checked content of a connection file.

    It is read only here, so that the client uses what was checked.

    Raises:
        SpecError: another user may have written it, or a value could run code here.
        ValueError: it is no connection file.
    """
    try:
        with open_own(file) as opened:
            content = json.load(opened)
    except PermissionError as error:
        raise SpecError(
            f"{file} is not used, since {error.strerror}: who can write it chooses where your code "
            "is sent; make a copy of mode 0600 if you trust it"
        ) from None
    except RecursionError:
        raise ValueError("too deeply nested") from None
    if not isinstance(content, dict):
        raise ValueError("no object")
    found = {name: content[name] for name in _KEYS if name in content}
    for name in ("pack", "unpack"):
        found[name] = found.get(name) or "json"
        if found[name] not in _PACKERS:
            raise _refused(file, name, found[name], f"one of {', '.join(_PACKERS)}")
    for name, (shape, meant) in _SHAPES.items():
        value = found.get(name) or ""
        if value and not (isinstance(value, str) and re.fullmatch(shape, value, re.ASCII)):
            raise _refused(file, name, value, meant)
    if found.get("ssh") and not found.get("interface", "").startswith("tcp:"):
        raise _refused(file, "interface", found.get("interface"), "tcp://address, for a tunnel")
    return found


def _refused(file: Path, name: str, value: object, meant: str) -> SpecError:
    shown = harmless(repr(value), 80)
    return SpecError(f"{file.name} is not used: its {name!r} is {shown}, not {meant}")
