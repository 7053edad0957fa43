"""``%gpu ps --mine`` and ``%gpu shutdown NAME``: the user's own notebooks on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics.gpu.saved_choice import connection_file
from gpumagic.render.units import bytes_
from gpumagic.results import DeviceTable, Notebook, NotebookTable, Shutdown
from gpumagic.selection import notebooks
from gpumagic.selection.device_table import devices
from gpumagic.selection.notebooks import Kernel
from gpumagic.system.jupyter_servers import Session
from gpumagic.system.text import harmless


def mine(shell: Any) -> NotebookTable:
    """Return the user's notebooks, those with the most GPU memory first."""
    found = [notebook for notebook, _ in _found(shell)]
    return NotebookTable(tuple(sorted(found, key=lambda each: -(each.memory or 0))))


def _found(shell: Any) -> list[tuple[Notebook, Session | None]]:
    """Return the notebooks, each with the session by which its server can shut it down."""
    table = devices(processes=True)
    pids = {p.pid for device in table for p in device.processes or () if p.mine or p.own}
    kernels = notebooks.of_processes(pids | {os.getpid()}, connection_file(shell))
    found = [(_notebook(kernel, table), kernel.session) for kernel in kernels.values()]
    known = {session.kernel for _, session in found if session is not None}
    for session in notebooks.all_sessions():
        if session.kernel not in known:
            idle = notebooks.idle_of(session)
            name, folder = session.name, session.server.folder or None
            found.append((Notebook(name, session.path, folder, idle=idle), session))
    return found


def is_parked() -> bool:
    """Return whether GPU memory of this process is parked."""
    if "gpumagic.memory.parking" not in sys.modules:
        return False
    from gpumagic.memory.parking import PARKING

    return PARKING.active


def _is_parked(kernel: Kernel, table: DeviceTable) -> bool | None:
    """Return whether a kernel's memory is parked, by what it publishes; None if not known."""
    if kernel.pid == os.getpid():
        return is_parked()
    claims = (claim for device in table for claim in device.claims)
    return next((claim.parked for claim in claims if claim.mine and claim.pid == kernel.pid), None)


def _notebook(kernel: Kernel, table: DeviceTable) -> Notebook:
    held = {
        device.index: process.memory
        for device in table
        for process in device.processes or ()
        if process.pid == kernel.pid and process.mine is not False
    }
    return Notebook(
        name=kernel.name,
        path=kernel.path,
        folder=kernel.folder or None,
        pid=kernel.pid,
        devices=held,
        idle=kernel.idle,
        own=kernel.pid == os.getpid(),
        parked=_is_parked(kernel, table),
    )


def shutdown(shell: Any, name: str, options: argparse.Namespace) -> Shutdown:
    """Have a notebook's server shut its kernel down, once the user has confirmed it.

    Raises:
        SpecError: there is no name, or no notebook, or more than one, has it, or it is this one.
        DeviceError: its server does not do it, or the user cannot be asked.
    """
    if not name:
        raise SpecError("no notebook is named; %gpu shutdown NAME ends one, %gpu ps --mine has all")
    notebook, session = _named(_found(shell), name)
    if notebook.own:
        raise SpecError(f"{notebook.location} is this notebook: use the menu Kernel > Shut Down")
    if session is None:
        raise DeviceError(f"{notebook.location} cannot be shut down: its server does not list it")
    if not options.yes and not _confirmed(shell, notebook):
        return Shutdown(notebook, done=False)
    failure = session.server.shut_down(session)
    if failure is not None:
        raise DeviceError(f"{notebook.location} was not shut down: {failure}")
    return Shutdown(replace(notebook, idle=None), done=True)


def _named(
    found: list[tuple[Notebook, Session | None]], name: str
) -> tuple[Notebook, Session | None]:
    """Return the notebook with this name, or with this end of its path."""
    wanted = PurePosixPath(name).parts
    matches = [
        each
        for each in found
        if wanted and PurePosixPath(each[0].location).parts[-len(wanted) :] == wanted
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        paths = ", ".join(sorted(f"{each.location} ({_held(each)})" for each, _ in matches))
        raise SpecError(f"{len(matches)} notebooks are called {name!r}; name its folder: {paths}")
    count = Counter(each.name for each, _ in found)
    all_names = sorted(n.name if count[n.name] == 1 else n.location for n, _ in found)
    raise SpecError(
        f"no notebook of yours is called {harmless(name)!r}; there are: "
        f"{', '.join(all_names) or 'none'}"
    )


def _held(notebook: Notebook) -> str:
    """Return a phrase on the GPU memory that a notebook holds."""
    if not notebook.devices:
        return "no GPU memory"
    if notebook.memory is None:
        return "GPU memory, how much is not known"
    return f"{bytes_(notebook.memory)} of GPU memory"


def _confirmed(shell: Any, notebook: Notebook) -> bool:
    """Return whether the user says yes."""
    question = (
        f"Shut down {notebook.location}, which holds {_held(notebook)}? Its variables will be "
        "lost. [y/N] "
    )
    kernel = getattr(shell, "kernel", None)
    try:
        answer = input(question) if kernel is None else kernel.raw_input(question)
    except (EOFError, RuntimeError):  # StdinNotImplementedError: the front end cannot ask
        raise DeviceError(
            f"{notebook.location} was not shut down: you cannot be asked here; add --yes"
        ) from None
    return str(answer).strip().lower() in ("y", "yes")
