"""Ask engines: for the GPUs of their hosts, and to choose which of them each engine sees."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic._version import __version__
from gpumagic.cluster.connection import Cluster, forget
from gpumagic.cluster.results import ClusterSelection, ClusterTable, EngineResult
from gpumagic.cuda.visible_devices import MASK
from gpumagic.errors import DeviceError
from gpumagic.selection.spec import parse
from gpumagic.system import text
from gpumagic.wording import plural

if TYPE_CHECKING:
    from ipyparallel import AsyncResult, Client

#: Seconds for engines to reply, to choose (some start the driver for the first time), and for an
#: engine to confirm that it has dropped a request.
TIMEOUT, _CHOICE, _CONFIRMATION = 5.0, 30.0, 2.0


def devices(cluster: Cluster, engines: Sequence[int] | None = None) -> ClusterTable:
    """List what every engine sees of its host's GPUs; needs no torch there, initialises no CUDA.

    An engine that does not answer within 5 seconds is in the table with the reason.

    Raises:
        DeviceError: there is no engine.
    """
    asked = cluster.ids if engines is None else engines
    rows = call(cluster, "devices", {engine: {} for engine in asked})
    tables = (replace(row, value=row.value[0]) if row.value else row for row in rows)
    return ClusterTable(tuple(tables), cluster.source)


def choose(
    cluster: Cluster,
    spec: str,
    engines: Sequence[int] | None = None,
    *,
    min_free: int | None = None,
    idle: bool = False,
    claim: bool = True,
) -> ClusterSelection:
    """Make the same choice on every engine, verified there.

    With ``auto N`` each engine chooses N free GPUs of its host. Since each claims what it chooses,
    engines of one host get different GPUs, as long as there are enough.

    Raises:
        SpecError: the spec is invalid.
    """
    parse(spec)
    specs = dict.fromkeys(cluster.ids if engines is None else engines, spec)
    return _apply(cluster, spec, specs, min_free=min_free, idle=idle, claim=claim)


def pin(
    cluster: Cluster, engines: Sequence[int] | None = None, *, claim: bool = True
) -> ClusterSelection:
    """Give each engine one GPU: the engine with local rank i of a host gets its GPU i.

    Ranks count all engines of the host that were started with the same GPUs, so that a scheduler
    that gave each engine its own GPU is right, too.

    Raises:
        DeviceError: a host has fewer GPUs than engines, or an engine does not answer; nothing was
            changed.
    """
    rows = call(cluster, "devices", {engine: {} for engine in cluster.ids})
    silent = [row for row in rows if row.error is not None]
    if silent:
        raise DeviceError(f"engine {silent[0].engine}: {silent[0].error}; nothing was changed")
    ranks: dict[tuple[str | None, tuple[str, ...]], list[int]] = {}
    specs = {}
    chosen = {*(cluster.ids if engines is None else engines)}
    for row in rows:
        table, given = row.value
        mates = ranks.setdefault((row.host, given), [])
        mates.append(row.engine)
        if row.engine not in chosen:
            continue
        if table.error is not None:
            raise DeviceError(f"{row.host}: {table.error}; nothing was changed")
        if len(mates) > len(given):
            of = f" of {len(table)}" if len(table) > len(given) else ""
            raise DeviceError(
                f"{row.host}: more engines were started with {plural(len(given), 'GPU')}{of} "
                f"({MASK}): nothing was changed; -t leaves engines out, from engine {row.engine} on"
            )
        specs[row.engine] = given[len(mates) - 1]
    return _apply(cluster, "pin", specs, min_free=None, idle=False, claim=claim)


def _apply(
    cluster: Cluster, requested: str, specs: dict[int, str], **options: object
) -> ClusterSelection:
    asked = {engine: {"spec": spec, **options} for engine, spec in specs.items()}
    return ClusterSelection(tuple(call(cluster, "choose", asked, _CHOICE)), requested)


# --- a function on every engine ------------------------------------------------------------------


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
    client, timeout = cluster.client, TIMEOUT if timeout is None else timeout
    requests = {engine: _send(client, engine, function, arguments[engine]) for engine in arguments}
    sent = {engine: request for engine, request in requests.items() if request is not None}
    try:
        client.wait([*sent.values()], timeout)
    finally:
        late = {engine: request for engine, request in sent.items() if not request.ready()}
        for engine, request in late.items():
            if engine in client.ids:  # it would queue at a busy engine
                confirmed = client.abort(request, targets=engine, block=False)
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


def _send(client: Client, engine: int, function: str, arguments: Mapping[str, Any]) -> Any:
    # As text, so that an engine without gpumagic, or with another Python, replies clearly.
    call = f"answer({__version__!r}, {function!r}, {dict(arguments)!r})"
    source = f"__import__('gpumagic.cluster.engine', fromlist=['answer']).{call}"
    try:
        return client[engine].apply_async(eval, source)
    except Exception:
        if engine in client.ids:
            raise
        return None  # its thread has removed the engine meanwhile


def _result(engine: int, request: AsyncResult) -> EngineResult:
    try:
        host, value = request.get()
    except Exception as error:
        return EngineResult(engine, error=described(error))
    return EngineResult(engine, host, value)


def described(error: object) -> str:
    """Return an exception of an engine (ipyparallel's ``RemoteError``) in one line."""
    name, message = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    if name == "EngineError":
        return "the engine died"
    if name == "ModuleNotFoundError" and "'gpumagic'" in str(message):
        return "gpumagic is not installed there: pip install gpumagic"
    if name in ("SpecError", "DeviceError", "UsageError"):
        return text.reason(message)
    return f"{text.reason(name)}: {text.reason(message) if str(message) else ''}"
