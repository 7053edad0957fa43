"""Find a cluster of ipyparallel's: the one that ``%px`` uses, or a profile's."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.errors import DependencyError, DeviceError, SpecError
from gpumagic.render.units import spans
from gpumagic.system.shell import Shell
from gpumagic.system.text import named
from gpumagic.system.user_paths import opened

if TYPE_CHECKING:
    from ipyparallel import Client

#: Seconds for the controller to answer.
_TIMEOUT = 5.0
#: The clients that were created here, with their connection files. The first registers ``%px``.
_created: list[tuple[Path, Any]] = []

_SLICE = re.compile(r"(-?\d{1,9})?:(-?\d{1,9})?")


@dataclass(frozen=True)
class Cluster:
    """A connection to a controller."""

    #: ipyparallel's ``Client``.
    client: Any
    #: How it was found, as text for the user.
    source: str

    @property
    def ids(self) -> list[int]:
        """The ids of the engines that are registered now.

        Raises:
            DeviceError: no engine is registered.
        """
        ids = sorted(self.client.ids)
        if not ids:
            raise DeviceError(f"the cluster ({self.source}) has no engine yet")
        return ids


def targets(text: str | None, ids: list[int]) -> list[int]:
    """Return those of ``ids`` that ``-t`` names: all, ``2``, ``0,3``, ``0:4``.

    Raises:
        SpecError: it names no engine, or an unknown one.
    """
    if text is None or text == "all":
        return ids
    chosen: list[int] = []
    for word in text.split(","):
        if (ends := _SLICE.fullmatch(word)) is not None:
            chosen += ids[slice(*(int(end) if end else None for end in ends.groups()))]
        elif re.fullmatch(r"\d{1,9}", word):
            chosen.append(int(word))
        else:
            raise SpecError(f"-t {text}: write an engine's id, a list (0,3) or a slice (0:4)")
    unknown = sorted({*chosen} - {*ids})
    if unknown or not chosen:
        what = f"there is no engine {', '.join(map(str, unknown))}" if unknown else "no engine"
        raise SpecError(f"-t {text}: {what}; there are {spans(ids)}")
    return list(dict.fromkeys(chosen))


def package() -> Any:
    """Import ipyparallel.

    Raises:
        DependencyError: it is not installed.
    """
    try:
        import ipyparallel
    except ImportError as error:
        raise DependencyError(
            f"clusters need ipyparallel ({error}); install it with: pip install ipyparallel"
        ) from None
    return ipyparallel


def connect(where: object = None, shell: Shell | None = None) -> Cluster:
    """Connect to a cluster: a profile's name, or ipyparallel's ``Client``.

    Without ``where``, return the cluster that ``%px`` of this ``shell`` uses, else the default
    profile's.

    Raises:
        DependencyError: ipyparallel is not installed.
        SpecError: there is no such profile, or another user may have written its connection file.
        DeviceError: no cluster runs there, or it does not answer.
    """
    package()
    if where is None:
        px = None if shell is None else shell.magics_manager.magics["line"].get("px")
        client = _client_of(getattr(px, "__self__", None))
        if client is not None and not client._closed:
            return Cluster(client, "the one that %px uses")
        where = "default"
    if not isinstance(where, str):
        return Cluster(where, "a client")
    return Cluster(_client(_connection_file(where)), f"profile {where}")


def _connection_file(profile: str) -> Path:
    """Return the newest connection file of a profile."""
    folders: Any = import_module("IPython.core.profiledir")
    from IPython.paths import get_ipython_dir

    home = get_ipython_dir()
    try:
        folder = Path(folders.ProfileDir.find_profile_dir_by_name(home, profile).security_dir)
    except folders.ProfileDirError:
        if profile != "default":
            raise SpecError(f"there is no profile {profile!r} in {home}") from None
        folder = Path(home)
    files = [file for file in folder.glob("ipcontroller*-client.json") if file.is_file()]
    if not files:
        option = "" if profile == "default" else f" --profile={profile}"
        raise DeviceError(
            f"no cluster runs in profile {profile!r}; start one with: ipcluster start -n 4{option}"
        )
    return max(files, key=lambda file: file.stat().st_mtime)


def _client(file: Path) -> Any:
    """Return the client for a controller's connection file, created once."""
    for known, client in _created:
        if known == file and not client._closed:
            return client
    try:
        client = package().Client(_connection(file), timeout=_TIMEOUT)
    except TimeoutError:
        raise DeviceError(
            f"the controller that wrote {file.name} does not answer: has it ended?"
        ) from None
    except SpecError:
        raise
    except Exception as error:  # of many types: sockets, ssh, JSON, traits
        raise DeviceError(f"cannot connect by {file.name}: {named(error)}") from None
    _created.append((file, client))
    return client


def _connection(file: Path) -> dict[str, Any]:
    """Return what a connection file has.

    Raises:
        SpecError: another user may have written it.
    """
    with opened(file) as text:
        status = os.fstat(text.fileno())
        if os.name != "nt" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
            raise SpecError(
                f"{file} is not used, since other users can write it (owner {status.st_uid}, mode "
                f"{stat.S_IMODE(status.st_mode):04o}): who can write it chooses where your code is "
                "sent; make a copy of mode 0600 if you trust it"
            )
        return dict(json.load(text))  # a text would be the name of another file


def forget(client: Client) -> None:
    """Connect anew the next time, if the client was created here: nobody answers it."""
    if any(client is created for _, created in _created):
        client.close(linger=0)


def close(shell: Shell) -> None:
    """Close the clients that were created here, and unregister their ``%px``."""
    manager, clients = shell.magics_manager, [client for _, client in _created]
    for client in clients:
        client.close(linger=0)
    ours = [each for each in shell.configurables if _client_of(each) in clients]
    for magics in manager.magics.values():
        for name, function in [*magics.items()]:
            if getattr(function, "__self__", None) in ours:
                del magics[name]
    for each in ours:
        shell.configurables.remove(each)
        if manager.registry.get(type(each).__name__) is each:
            del manager.registry[type(each).__name__]
    _created.clear()


def _client_of(magics: object) -> Any:
    """Return the client of ipyparallel's magics; None for other magics."""
    return getattr(getattr(magics, "view", None), "client", None)
