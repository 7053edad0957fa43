"""Call a function on every engine: its value, or why there is none, within a timeout."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from gpumagic._version import __version__
from gpumagic.cluster.connection import Cluster
from gpumagic.cluster.engine import FUNCTIONS
from gpumagic.cluster.timeouts import TIMEOUT
from gpumagic.render.units import bytes_
from gpumagic.results.deserialize import from_json
from gpumagic.system import text

#: Seconds for an engine to confirm that it has dropped a request.
CONFIRMATION = 2.0
#: Bytes of a reply, at most: the replies of a thousand engines must fit into one kernel.
LARGEST = 16 * 2**20

_NOT_UNDERSTOOD = "its reply is not valid"


@dataclass(frozen=True)
class Reply:
    """An engine's reply; ``error`` says in one line why there is no value."""

    engine: int
    value: Any = None
    error: str | None = None


def call(
    cluster: Cluster,
    engines: Sequence[int],
    function: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    each: Mapping[int, Mapping[str, Any]] | None = None,
    timeout: float = TIMEOUT,
) -> dict[int, Reply]:
    """Call one of `engine.FUNCTIONS` on every one of ``engines``.

    All get ``arguments``; ``each`` has further ones by engine. A request to an engine that does not
    reply within ``timeout`` seconds, since it runs a long cell, is withdrawn, and so it is if this
    is interrupted.

    Raises:
        DeviceError: no engine replies, and neither does the controller.
    """
    client = cluster.client
    common = dict(arguments or {})
    if each is None:
        sent = [_send(client, engines, function, common)]
    else:
        sent = [_send(client, [e], function, {**common, **each[e]}) for e in engines]
    replies = {engine: Reply(engine, error="the engine is gone") for engine in engines}
    requests = {engine: future for result in sent for engine, future in futures(result).items()}
    try:
        concurrent.futures.wait(requests.values(), timeout)
    except BaseException:  # an interrupt: the caller does not wait for the replies
        withdraw(client, requests)
        raise
    for engine, future in requests.items():
        if future.done():
            replies[engine] = _reply(engine, _type_of(function), future.result())
        else:
            replies[engine] = Reply(engine, error=no_reply(client, engine, timeout))
    if not any(reply.value is not None for reply in replies.values()):
        cluster.check()
    withdraw(client, requests)
    return replies


def _send(client: Any, engines: Sequence[int], function: str, arguments: Mapping[str, Any]) -> Any:
    # As text, so that an engine without gpumagic, or with another Python, replies clearly.
    call = f"answer({__version__!r}, {function!r}, {dict(arguments)!r}, {LARGEST})"
    source = f"__import__('gpumagic.cluster.engine', fromlist=['answer']).{call}"
    return send(client, engines, lambda to: client.direct_view(to).apply_async(eval, source))


def send(client: Any, engines: Sequence[int], request: Callable[[list[int]], Any]) -> Any:
    """Call ``request`` with those of ``engines`` that the controller has; None if it has none.

    The client's thread removes an engine that has ended at any moment. ipyparallel looks all of
    them up before it sends anything, and raises if one is missing: the others are tried again.
    """
    while present := registered(client, engines):
        try:
            return request(present)
        except Exception:
            if registered(client, engines) == present:
                raise
    return None


def registered(client: Any, engines: Sequence[int]) -> list[int]:
    """Return those of ``engines`` that the controller has."""
    present = {*client.ids}
    return [engine for engine in engines if engine in present]


def futures(result: Any) -> dict[int, Any]:
    """Return the future of each engine's reply, from an ``AsyncResult``; none from None."""
    return {} if result is None else dict(zip(result._targets, result._children, strict=True))


@cache
def _type_of(function: str) -> Any:
    return get_type_hints(FUNCTIONS[function])["return"]


def _reply(engine: int, expected: Any, outcome: Any) -> Reply:
    if isinstance(outcome, Exception):
        return Reply(engine, error=_reason(outcome))
    return decode(engine, expected, outcome)


def decode(engine: int, expected: Any, outcome: Any) -> Reply:
    """Turn what an engine sent into a value of the annotation ``expected``, or an error."""
    kind, content = outcome if isinstance(outcome, tuple) and len(outcome) == 2 else ("", "")
    if type(kind) is not str:
        return Reply(engine, error=_NOT_UNDERSTOOD)
    if kind == "ok" and isinstance(content, str) and len(content) <= LARGEST:
        try:
            return Reply(engine, from_json(expected, content))
        except ValueError as error:
            return Reply(engine, error=f"{_NOT_UNDERSTOOD}: {error}")
    if kind == "version" and type(content) is str:
        other = text.reason(content)
        return Reply(
            engine,
            error=f"has gpumagic {other}, this kernel {__version__}: install the same there",
        )
    if kind == "large" and type(content) is int and 0 <= content < 2**63:
        return Reply(engine, error=f"its result is too large to fetch ({bytes_(content)})")
    if kind == "error" and isinstance(content, str):
        return Reply(engine, error=text.harmless(content))
    return Reply(engine, error=_NOT_UNDERSTOOD)


def _reason(error: Any) -> str:
    """Return why there is no value, by the exception that came instead."""
    name, message = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    if name == "ModuleNotFoundError" and "'gpumagic'" in str(message):
        return "gpumagic is not installed there: pip install gpumagic"
    if name == "ModuleNotFoundError" and "gpumagic." in str(message):
        return f"has a gpumagic that knows no clusters: install {__version__} there"
    return described(error)


def described(error: Any) -> str:
    """Return an exception, perhaps an engine's (ipyparallel's ``RemoteError``), in one line."""
    name, message = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    if name == "EngineError":
        return "the engine died"
    return f"{text.reason(name)}: {text.reason(message) if str(message) else ''}"


def no_reply(client: Any, engine: int, timeout: float) -> str:
    """Return why an engine has not begun with a request within ``timeout`` seconds."""
    if engine not in client.ids:
        return "the engine is gone"
    return f"no answer within {timeout:g} s: it is busy, or has lost its connection"


def withdraw(client: Any, requests: Mapping[int, Any]) -> None:
    """Withdraw the requests, by engine, that have no reply: they would queue at a busy engine.

    An engine confirms that from its control thread. The confirmation is awaited, with a timeout:
    until then, an engine whose cell ends still begins with the request.
    """
    late = {engine: future for engine, future in requests.items() if not future.done()}

    def abort(engines: list[int]) -> Any:
        messages = [late[engine].msg_id for engine in engines]
        return client.abort(messages, targets=engines, block=False)

    confirmed = send(client, [*late], abort)
    if confirmed is not None:
        concurrent.futures.wait([confirmed], CONFIRMATION)
