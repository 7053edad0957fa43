"""Find the notebooks of processes: this user's by the user's Jupyter servers, others' by claims.

Of the user's own kernels the servers have the name, the folder and the state. Without a server the
name comes from the kernel's environment at its start, and may be outdated. Of other users' kernels
only what they publish with their claims is shown.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpumagic.cuda.process_state import STATE
from gpumagic.results import Claim, Device, DeviceTable, Process
from gpumagic.system import jupyter_servers
from gpumagic.system.jupyter_servers import Session
from gpumagic.system.text import harmless
from gpumagic.system.trusted_file import open_own

_CONNECTION_FILE = re.compile(r"kernel-([\w-]{1,80})\.json")
_NAME = 200


@dataclass(frozen=True)
class Kernel:
    """A kernel of this user, with its notebook."""

    pid: int
    #: The notebook's name.
    name: str
    #: The server's folder, and the notebook's path in it; None without a server.
    folder: str | None = None
    path: str | None = None
    #: Seconds since the last cell, 0 while one runs; None where not known.
    idle: float | None = None
    #: The session through which its server can shut it down.
    session: Session | None = None


def of_processes(pids: Iterable[int], connection_file: str | None = None) -> dict[int, Kernel]:
    """Return this user's kernels among the processes, by pid.

    ``connection_file`` is this process's, if it is a kernel.
    """
    files = {pid: file for pid in pids if (file := _connection_file(pid, connection_file))}
    if not files:
        return {}
    sessions = {session.kernel: session for session in all_sessions()}
    found = {}
    for pid, file in files.items():
        kernel = _kernel(pid, file, sessions)
        if kernel is not None:
            found[pid] = kernel
    return found


def all_sessions() -> list[Session]:
    """Return the sessions of all of this user's servers."""
    return [each for server in jupyter_servers.running() for each in server.sessions()]


def _connection_file(pid: int, own: str | None) -> str | None:
    """Return the connection file of this user's kernel; None if the process is not one."""
    if pid == os.getpid() and own is not None:
        return own
    import psutil

    try:
        process = psutil.Process(pid)
        if hasattr(os, "getuid") and process.uids().real != os.getuid():
            return None
        words = process.cmdline()
    except (psutil.Error, OSError):
        return None
    return next((w.rpartition("=")[2] for w in words if _CONNECTION_FILE.search(w)), None)


def _kernel(pid: int, file: str, sessions: Mapping[str, Session]) -> Kernel | None:
    match = _CONNECTION_FILE.fullmatch(Path(file).name)
    session = sessions.get(match[1]) if match else None
    if session is None:
        name = _name_at_start(pid, file)
        return None if name is None else Kernel(pid, name)
    folder = session.server.folder
    return Kernel(pid, session.name, folder, session.path, idle_of(session), session)


def idle_of(session: Session) -> float | None:
    """Return the seconds since a session's last cell, 0 while one runs; None if not known."""
    if session.busy is False and session.last_activity is not None:
        return max(time.time() - session.last_activity, 1.0)
    return 0.0 if session.busy else None


def _name_at_start(pid: int, file: str) -> str | None:
    """Return the notebook's name at the kernel's start; None where not known."""
    name: object = None
    if pid == os.getpid():
        name = STATE.started_with.get("JPY_SESSION_NAME")
    else:
        import psutil

        with suppress(psutil.Error, OSError):
            name = psutil.Process(pid).environ().get("JPY_SESSION_NAME")
    if not name:
        with (
            suppress(OSError, ValueError, AttributeError, RecursionError),
            open_own(Path(file), private=True, follow=False) as opened,
        ):
            name = json.loads(opened.read(65536)).get("jupyter_session")
    text = str(name or "").rpartition("/")[2]
    # JupyterLab may use an identifier instead of a name.
    return harmless(text, _NAME) if text.endswith(".ipynb") else None


def this_notebook(connection_file: str | None) -> str | None:
    """Return the name of this kernel's notebook; None where not known."""
    found = of_processes([os.getpid()], connection_file).get(os.getpid())
    return None if found is None else found.name


# --- in tables -------------------------------------------------------------------------------


def with_notebooks(
    table: DeviceTable, claims: Sequence[Claim], connection_file: str | None = None
) -> tuple[DeviceTable, list[Claim]]:
    """Return the table and the claims with the notebooks of their processes."""
    listed = {p.pid for device in table for p in device.processes or () if p.mine or p.own}
    claiming = {claim.pid for claim in claims if claim.mine and not claim.own}
    kernels = _told_apart(of_processes(listed | claiming, connection_file))
    named = [
        replace(claim, notebook=found.name, idle=found.idle)
        if claim.mine and (found := kernels.get(claim.pid)) is not None
        else claim
        for claim in claims
    ]
    published = {claim.pid: claim for claim in claims}
    devices = tuple(_with_notebooks(device, kernels, published) for device in table)
    return replace(table, devices=devices), named


def _told_apart(kernels: Mapping[int, Kernel]) -> dict[int, Kernel]:
    """Return the kernels; where several notebooks have the same name, their paths are the names."""
    count = Counter(kernel.name for kernel in kernels.values())
    return {
        pid: kernel if count[kernel.name] == 1 else replace(kernel, name=kernel.path or kernel.name)
        for pid, kernel in kernels.items()
    }


def _with_notebooks(
    device: Device, kernels: Mapping[int, Kernel], published: Mapping[int, Claim]
) -> Device:
    if not device.processes:
        return device
    processes = tuple(_with_notebook(each, kernels, published) for each in device.processes)
    return replace(device, processes=processes)


def _with_notebook(
    process: Process, kernels: Mapping[int, Kernel], published: Mapping[int, Claim]
) -> Process:
    claim = published.get(process.pid)
    # A claim names a pid; only the owner of that process may say something of it.
    if claim is not None and (process.user is None or claim.user != process.user):
        claim = None
    if claim is not None:
        process = replace(
            process, notebook=claim.notebook, idle=claim.idle, parked=claim.parked or None
        )
    kernel = kernels.get(process.pid)
    if kernel is None:
        return process
    return replace(process, notebook=kernel.name, idle=kernel.idle, folder=kernel.folder or None)
