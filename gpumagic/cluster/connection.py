"""Connect to a cluster: the one in use, a profile's, or a connection file's."""

from __future__ import annotations

import contextlib
import io
import os
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from gpumagic.cluster import connection_file
from gpumagic.errors import DependencyError, DeviceError, SpecError
from gpumagic.render.units import spans
from gpumagic.system.paths import user_path
from gpumagic.system.text import named

#: Seconds for the controller to answer.
CONTROLLER_TIMEOUT = 5.0

#: The clients in use that were created here, by the connection file.
_clients: dict[str, Any] = {}
#: All clients that were created here: each may have registered its %px.
_created: list[Any] = []


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
            DeviceError: no engine is registered, or the controller is gone.
        """
        ids = sorted(self.client.ids)
        if not ids:
            self.check()
            raise DeviceError(f"the cluster ({self.source}) has no engine yet")
        return ids

    def targets(self, text: str | None) -> list[int]:
        """Return the engines that ``-t`` names: all, ``2``, ``0,3``, ``0:4``, ``::2``.

        Raises:
            SpecError: it names no engine, or an unknown one.
        """
        return targets(text, self.ids)

    @property
    def location(self) -> str | None:
        """The controller's host, which is reached by the interface to the other engines."""
        found = self.client._config.get("location")
        return str(found) if found else None

    def check(self) -> None:
        """Raise an error unless the controller answers.

        Raises:
            DeviceError: it does not answer within `CONTROLLER_TIMEOUT` seconds.
        """
        if not self.answers():
            forget(self.client)
            raise DeviceError(self.no_answer)

    def answers(self) -> bool:
        """Return whether the controller answers within `CONTROLLER_TIMEOUT` seconds."""
        # Over SSH each connection needs its own tunnel, which this one would not have: not checked.
        return getattr(self.client, "_ssh", False) or _answers(self.client, CONTROLLER_TIMEOUT)

    @property
    def no_answer(self) -> str:
        """The message for a controller that does not answer."""
        return f"the controller of the cluster ({self.source}) does not answer: has it ended?"


def targets(text: str | None, ids: list[int]) -> list[int]:
    """Return those of ``ids`` that ``text`` names; see `Cluster.targets`."""
    if text is None or text == "all":
        return ids
    chosen: list[int] = []
    for word in text.split(","):
        if re.fullmatch(r"(-?\d{1,9})?:(-?\d{1,9})?(:(-?\d{1,9})?)?", word):
            step = word.rpartition(":")[2] if word.count(":") == 2 else "1"
            if step and not int(step):
                raise SpecError(f"-t {text}: the step of a slice cannot be 0")
            chosen += ids[slice(*(int(part) if part else None for part in word.split(":")))]
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
            f"clusters need ipyparallel ({error}); install it with: pip install 'gpumagic[cluster]'"
        ) from None
    return ipyparallel


def connect(where: Any = None, shell: Any = None) -> Cluster:
    """Connect to a cluster by a profile, a connection file, or ipyparallel's ``Client``.

    Without ``where``, return the cluster that ``%px`` of this ``shell`` uses, else the default
    profile's. A word is a file only if it ends in ``.json`` or has a separator: no file of the
    working directory takes the place of a profile. Only the user may own the file and have write
    access to it: its author decides where code is sent, and what answers.

    Raises:
        DependencyError: ipyparallel is not installed.
        SpecError: there is no such profile or file, or another user may have written it.
        DeviceError: no cluster runs there, or it does not answer.
    """
    package()
    if where is None:
        active = None if shell is None else _active(shell)
        if active is not None:
            return active
        return Cluster(_client(_file_of_profile("default")), "profile default")
    if not isinstance(where, (str, Path)):
        return Cluster(where, "a client")
    if _is_file_name(where):
        path = user_path(where)
        if not path.is_file():
            raise SpecError(f"there is no connection file {where}")
        return Cluster(_client(path), str(where))
    return Cluster(_client(_file_of_profile(str(where))), f"profile {where}")


def _is_file_name(where: str | Path) -> bool:
    text = str(where)
    separators = (os.sep, os.altsep or os.sep)
    return isinstance(where, Path) or text.endswith(".json") or any(s in text for s in separators)


def _active(shell: Any) -> Cluster | None:
    """Return the cluster of this shell's ``%px``, if it has one."""
    magic = shell.magics_manager.magics["line"].get("px")
    client = _client_of(getattr(magic, "__self__", None))
    if client is None or getattr(client, "_closed", False):
        return None
    return Cluster(client, "the one that %px uses")


def _file_of_profile(name: str) -> Path:
    profiles: Any = import_module("IPython.core.profileapp")
    folders: Any = import_module("IPython.core.profiledir")
    from IPython.paths import get_ipython_dir

    home = get_ipython_dir()
    try:
        folder = Path(folders.ProfileDir.find_profile_dir_by_name(home, name).security_dir)
    except folders.ProfileDirError:
        known = ", ".join(sorted(profiles.list_profiles_in(home))) or "none"
        if name != "default":
            raise SpecError(f"there is no profile {name!r}; there are: {known}") from None
        folder = Path(home) / "profile_default" / "security"
    files = [file for file in folder.glob("ipcontroller*-client.json") if _modified(file)]
    files.sort(key=_modified)
    if not files:
        option = "" if name == "default" else f" --profile={name}"
        raise DeviceError(
            f"no cluster runs in profile {name!r}; start one with: ipcluster start -n 4{option}"
        )
    return files[-1]


def _modified(file: Path) -> float:
    """Return a file's modification time; 0 for a broken link, or a file that is gone."""
    try:
        return file.stat().st_mtime
    except (OSError, RuntimeError):
        return 0.0


def _client(file: Path) -> Any:
    """Return the client for a controller's connection file; created once.

    Raises:
        SpecError: it is no connection file, or another user may have written it.
        DeviceError: the controller does not answer.
    """
    key = str(file.resolve())
    client = _clients.get(key)
    if client is not None and not client._closed:
        return client
    try:
        settings = connection_file.read(file)
        with contextlib.redirect_stdout(io.StringIO()):
            client = package().Client(settings, timeout=CONTROLLER_TIMEOUT)
    except SpecError:
        raise
    except TimeoutError:
        raise DeviceError(
            f"the controller that wrote {file.name} does not answer: has it ended?"
        ) from None
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise SpecError(
            f"{file.name} is no connection file of ipyparallel's ({named(error)})"
        ) from None
    except Exception as error:  # of many types: ssh, sockets, traits
        raise DeviceError(f"cannot connect by {file.name}: {named(error)}") from None
    _clients[key] = client
    _created.append(client)
    return client


def _answers(client: Any, timeout: float) -> bool:
    """Return whether the controller's hub answers a request on a new connection."""
    import zmq

    if client._closed:
        return False
    util: Any = import_module("ipyparallel.util")
    with client._context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        util.connect(
            socket,
            client._config["registration"],
            curve_serverkey=client.curve_serverkey,
            curve_secretkey=client.curve_secretkey,
            curve_publickey=client.curve_publickey,
        )
        client.session.send(socket, "connection_request")
        return bool(socket.poll(int(timeout * 1000)))


def forget(client: Any) -> None:
    """Close a client that was created here, since its controller is gone."""
    for key, known in list(_clients.items()):
        if known is client:
            del _clients[key]
            client.close(linger=0)


def close(shell: Any) -> None:
    """Close the clients that were created here, and unregister their ``%px``."""
    manager = shell.magics_manager
    for client in _created:
        client.close(linger=0)
        registered = [m for m in shell.configurables if _client_of(m) is client]
        for magics in manager.magics.values():
            for name in [
                n for n, f in magics.items() if getattr(f, "__self__", None) in registered
            ]:
                del magics[name]
        for each in registered:
            shell.configurables.remove(each)
            if manager.registry.get(type(each).__name__) is each:
                del manager.registry[type(each).__name__]
    _clients.clear()
    _created.clear()


def _client_of(magics: Any) -> Any:
    """Return the client of ipyparallel's magics; None for other magics."""
    return getattr(getattr(magics, "view", None), "client", None)
