"""Call functions of `engine` on the engines: who replies, who does not, and why."""

from __future__ import annotations

import base64
import concurrent.futures
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from gpumagic._version import __version__
from gpumagic.cluster import engine as on_engine
from gpumagic.cluster.connection import Cluster, forget
from gpumagic.cluster.results import EngineResult
from gpumagic.results.devices import MOST_DEVICES
from gpumagic.system import text

#: Seconds for engines to reply, and for one to confirm that it has dropped a request.
TIMEOUT, _CONFIRMATION = 5.0, 2.0
#: Why there is no reply.
GONE = "the engine is gone"


def source(function: Callable[..., object], *arguments: object) -> str:
    """Return the code that calls a function of `engine` there, with arguments of plain data.

    It is text, so that an engine without gpumagic, or with another Python, replies clearly.
    """
    name = function.__name__
    module = f"__import__({on_engine.__name__!r}, fromlist=[{name!r}])"
    return f"{module}.{name}{(__version__, *arguments)!r}"


def call(
    cluster: Cluster, sources: Mapping[int, str], kind: type, timeout: float | None = None
) -> list[EngineResult]:
    """Run code from `source` on each engine, which replies an object of a ``kind``.

    A request to an engine that does not reply within ``timeout`` seconds (`TIMEOUT`), since it runs
    a long cell, is withdrawn, and so it is if this is interrupted.
    """
    client, timeout = cluster.client, TIMEOUT if timeout is None else timeout
    requests, outcomes = {}, dict[int, object]()
    for engine in sources:
        try:
            requests[engine] = client[engine].execute(sources[engine], silent=True, block=False)
        except Exception:
            if engine in client.ids:
                raise
            outcomes[engine] = GONE  # its thread has removed the engine meanwhile
    try:
        client.wait([*requests.values()], timeout)
    finally:
        late = [engine for engine, request in requests.items() if not request.ready()]
        for engine in late:
            outcomes[engine] = GONE
            if engine in client.ids:  # it would queue at a busy engine
                busy = f"no answer within {timeout:g} s: it is busy, or has lost its connection"
                outcomes[engine] = busy
                confirmed = client.abort(requests[engine], targets=engine, block=False)
                concurrent.futures.wait([confirmed], _CONFIRMATION)
    if late and len(late) == len(sources):
        forget(client)
    for engine in requests.keys() - outcomes.keys():
        try:
            outcomes[engine] = requests[engine].get()
        except Exception as error:
            outcomes[engine] = error
    return [result(engine, outcomes[engine], kind) for engine in sources]


def result(engine: int, outcome: object, kind: type) -> EngineResult:
    """Return what an engine has replied, an object of a ``kind``, or why there is none.

    ``outcome`` is ipyparallel's reply, its exception, or why there is neither.
    """
    if isinstance(outcome, str):
        return EngineResult(engine, error=outcome)
    if isinstance(outcome, Exception):
        return EngineResult(engine, error=described(outcome))
    try:
        host, value = _payload(outcome)
        of = getattr(value, "table", value)
        if any(len(getattr(of, each, ())) > MOST_DEVICES for each in ("devices", "per_device")):
            raise ValueError("more devices than a machine has")
    except Exception:  # whatever it has sent
        host, value = "", None
    if type(host) is not str or not isinstance(value, kind):
        return EngineResult(engine, error="it has left no result")
    return EngineResult(engine, host, value)


def _payload(reply: Any) -> tuple[Any, Any]:
    """Return the host's name and the value that a function of `engine` has put into a reply.

    A reply of ipyparallel's is unpickled anyway: who may answer is decided by the cluster's key.
    """
    ours = (each for each in reply._content["payload"] if each["source"] == on_engine.PAYLOAD)
    host, value = pickle.loads(base64.b64decode(next(ours)["result"]))
    return host, value


def described(error: object) -> str:
    """Return an exception of an engine (ipyparallel's ``RemoteError``) in one line."""
    name, message = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    if name == "EngineError":
        return "the engine died"
    if name == "ModuleNotFoundError" and "'gpumagic'" in str(message):
        return "gpumagic is not installed there: pip install gpumagic"
    if name in ("SpecError", "DeviceError", "UsageError"):
        return text.reason(message)
    return ": ".join(text.reason(each) for each in (name, message) if str(each))
