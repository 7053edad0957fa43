"""Call a function on every engine: its value, or why there is none, within a timeout."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Mapping
from typing import Any

from gpumagic._version import __version__
from gpumagic.cluster.connection import Cluster, forget
from gpumagic.results.cluster import EngineResult
from gpumagic.system import text

#: Seconds for engines to reply, and for an engine to confirm that it has dropped a request.
TIMEOUT, _CONFIRMATION = 5.0, 2.0


def call(
    cluster: Cluster,
    function: str,
    arguments: Mapping[int, Mapping[str, Any]],
    timeout: float | None = None,
) -> list[EngineResult]:
    """Call one of `engine.FUNCTIONS` on each engine of ``arguments``, with its arguments.

    A request to an engine that does not reply within ``timeout`` seconds (`TIMEOUT`), since it runs
    a long cell, is withdrawn, and so it is if this is interrupted.
    """
    timeout = TIMEOUT if timeout is None else timeout
    client, deadline = cluster.client, time.monotonic() + timeout
    requests = {engine: _send(client, engine, function, arguments[engine]) for engine in arguments}
    sent = {engine: request for engine, request in requests.items() if request is not None}
    try:
        for request in sent.values():
            request.wait(max(deadline - time.monotonic(), 0))
    finally:
        late = {engine: request for engine, request in sent.items() if not request.ready()}
        for engine, request in late.items():
            confirmed = _withdraw(client, engine, request)
            if confirmed is not None:
                concurrent.futures.wait([confirmed], _CONFIRMATION)
    found = []
    for engine, request in requests.items():
        if request is None or (engine in late and engine not in client.ids):
            found.append(EngineResult(engine, error="the engine is gone"))
        elif engine in late:
            busy = f"no answer within {timeout:g} s: it is busy, or has lost its connection"
            found.append(EngineResult(engine, error=busy))
        else:
            found.append(_result(engine, request))
    if late and len(late) == len(requests):
        forget(client)
    return found


def _send(client: Any, engine: int, function: str, arguments: Mapping[str, Any]) -> Any:
    # As text, so that an engine without gpumagic, or with another Python, replies clearly.
    call = f"answer({__version__!r}, {function!r}, {dict(arguments)!r})"
    source = f"__import__('gpumagic.cluster.engine', fromlist=['answer']).{call}"
    try:
        return client[engine].apply_async(eval, source)
    except Exception:
        if engine in client.ids:
            raise
        return None  # its thread has removed the engine meanwhile


def _withdraw(client: Any, engine: int, request: Any) -> Any:
    """Withdraw a request: it would queue at a busy engine."""
    if engine not in client.ids:
        return None
    return client.abort(request, targets=engine, block=False)


def _result(engine: int, request: Any) -> EngineResult:
    try:
        (host, pid), value = request.get()
    except Exception as error:
        return EngineResult(engine, error=described(error))
    return EngineResult(engine, host, pid, value)


def described(error: Any) -> str:
    """Return an exception of an engine (ipyparallel's ``RemoteError``) in one line."""
    name, message = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    if name == "EngineError":
        return "the engine died"
    if name == "ModuleNotFoundError" and "'gpumagic'" in str(message):
        return "gpumagic is not installed there: pip install gpumagic"
    if name in ("SpecError", "DeviceError", "UsageError"):
        return text.reason(message)
    return f"{text.reason(name)}: {text.reason(message) if str(message) else ''}"
