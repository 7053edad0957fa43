"""The Jupyter servers of this user on this machine: list their sessions, shut one down.

A server writes its address and its token to a file in Jupyter's runtime folder. The token is sent
only to a loopback address on which the process named in the file listens, and only if file and
process belong to this user.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
import secrets
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from gpumagic.system.text import harmless
from gpumagic.system.trusted_file import open_own

#: Seconds to wait for a server, and how many servers are queried at most.
_TIMEOUT, _SERVERS = 0.5, 16
#: Seconds for a server to shut a kernel down: it first requests that of the kernel.
_SHUTDOWN_TIMEOUT = 15.0
#: The most bytes of a file and of a response, and characters of a name.
_FILE, _RESPONSE, _NAME = 65536, 2**20, 200


@dataclass(frozen=True)
class Server:
    """A running server; its ``repr`` does not contain its token."""

    pid: int
    address: str
    port: int
    secure: bool
    base_url: str
    #: The folder that its notebooks are relative to.
    folder: str
    _authorization: dict[str, str]

    def __repr__(self) -> str:
        return f"<Server {self.address}:{self.port}>"

    def sessions(self) -> list[Session]:
        """Return the sessions; none if the server does not respond or refuses.

        A server that only a password protects refuses.
        """
        try:
            status, content = self._request("GET", "api/sessions", _TIMEOUT)
            models = json.loads(content) if status == 200 else []
        except (OSError, ValueError, RecursionError, http.client.HTTPException):
            return []
        found = [] if type(models) is not list else [_session(self, model) for model in models]
        return [session for session in found if session is not None]

    def shut_down(self, session: Session) -> str | None:
        """End a session and its kernel; return why that failed, None on success."""
        try:
            path = f"api/sessions/{quote(session.id, safe='')}"
            status, _ = self._request("DELETE", path, _SHUTDOWN_TIMEOUT)
        except (OSError, http.client.HTTPException) as error:
            return f"its server does not respond ({type(error).__name__})"
        return None if status == 204 else f"its server refuses (HTTP status {status})"

    def _request(self, method: str, path: str, timeout: float) -> tuple[int, bytes]:
        """Return the status and content of a response. No proxy is used, no redirect followed.

        Raises:
            OSError, HTTPException: there is no response, or it is too long.
        """
        if (self.address, self.port) not in _listening(self.pid):
            # The server has ended since, and another process may listen there.
            raise ConnectionRefusedError
        if self.secure:
            # Its certificate is for another host name; the check above has identified the server.
            context = ssl._create_unverified_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self.address, self.port, timeout=timeout, context=context
            )
        else:
            connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, f"{self.base_url}{path}", headers=self._authorization)
            response = connection.getresponse()
            content = response.read(_RESPONSE + 1)
            if len(content) > _RESPONSE:
                raise http.client.HTTPException("too long")
            return response.status, content


@dataclass(frozen=True)
class Session:
    """A notebook, or a console, and its kernel."""

    server: Server
    id: str
    kernel: str
    #: The notebook's name, without its folder.
    name: str
    #: The notebook's path below the server's folder.
    path: str
    busy: bool | None
    #: When the kernel was last active, in seconds since the epoch; None where not known.
    last_activity: float | None


def running() -> list[Server]:
    """Return this user's servers that run on this machine."""
    try:
        from jupyter_core.paths import jupyter_runtime_dir
    except ImportError:
        return []
    return [*_servers(Path(jupyter_runtime_dir()))]


def _servers(folder: Path) -> Iterator[Server]:
    files = [path for name in ("jpserver", "nbserver") for path in folder.glob(f"{name}-*.json")]
    for path in sorted(files, key=_modified, reverse=True)[:_SERVERS]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            with open_own(path, private=True, follow=False) as file:
                found = _server(json.loads(file.read(_FILE)))
            if found is not None:
                yield found


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _server(fields: Any) -> Server | None:
    """Return the server that a file describes; None if it does not listen on a loopback address."""
    if type(fields) is not dict:
        return None
    pid, port, token = (fields.get(name) for name in ("pid", "port", "token"))
    if type(pid) is not int or type(port) is not int or not 0 < port < 65536:
        return None
    base = fields.get("base_url")
    if type(base) is not str or not base.startswith("/"):
        base = urlsplit(str(fields.get("url"))).path or "/"
    addresses = [address for address, number in _listening(pid) if number == port]
    if not addresses or not base.isascii() or not base.isprintable() or " " in base:
        return None
    if type(token) is str and token and token.isascii() and token.isprintable():
        authorization = {"Authorization": f"token {token}"}
    else:  # a server without one wants a cookie and a header that agree, to change anything
        value = secrets.token_hex(16)
        authorization = {"Cookie": f"_xsrf={value}", "X-XSRFToken": value}
    return Server(
        pid=pid,
        address=addresses[0],
        port=port,
        secure=fields.get("secure") is True,
        base_url=base if base.endswith("/") else f"{base}/",
        folder=harmless(str(fields.get("root_dir") or fields.get("notebook_dir") or "")),
        _authorization=authorization,
    )


def _listening(pid: int) -> set[tuple[str, int]]:
    """Return the loopback addresses and ports on which a process of this user listens."""
    import psutil

    try:
        process = psutil.Process(pid)
        if hasattr(os, "geteuid") and process.uids().effective != os.geteuid():
            return set()
        # Its name before psutil 6.
        connections = getattr(process, "net_connections", None) or process.connections
        found = [each.laddr for each in connections("tcp") if each.status == psutil.CONN_LISTEN]
    except (psutil.Error, OSError):
        return set()
    return {(address, place.port) for place in found if (address := _loopback(place.ip))}


def _loopback(address: str) -> str | None:
    """Return the loopback address that reaches a listening address; None if none does."""
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified:
        return "127.0.0.1" if parsed.version == 4 else "::1"
    return address if parsed.is_loopback else None


def _session(server: Server, model: Any) -> Session | None:
    """Return the session that a server's response describes; None if it is not valid."""
    kernel = model.get("kernel") if type(model) is dict else None
    if type(kernel) is not dict or type(kernel.get("id")) is not str:
        return None
    if type(model.get("id")) is not str:
        return None
    notebook = model.get("notebook")
    path = notebook.get("path") if type(notebook) is dict else None
    path = str(path or model.get("path") or "")
    name = path.rpartition("/")[2]
    if not name.endswith(".ipynb"):  # a console, or the identifier of a shared document
        name = str(model.get("name") or name)
    state = kernel.get("execution_state")
    return Session(
        server=server,
        id=model["id"],
        kernel=kernel["id"],
        name=harmless(name.rpartition("/")[2], _NAME),
        path=harmless(path),
        busy={"busy": True, "idle": False}.get(state) if type(state) is str else None,
        last_activity=_seconds(kernel.get("last_activity")),
    )


def _seconds(text: Any) -> float | None:
    """Return an ISO 8601 time in seconds since the epoch; None if it is not valid."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
