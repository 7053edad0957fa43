"""Run a cell under a magic on every engine by one message each, whose reply has the result."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import secrets
import signal
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpumagic._version import __version__
from gpumagic.cluster import rpc
from gpumagic.cluster.cell_plan import CellPlan
from gpumagic.cluster.connection import Cluster, package
from gpumagic.cluster.engine import IN_GROUP, PAYLOAD, Place
from gpumagic.cluster.timeouts import TIMEOUT
from gpumagic.errors import DeviceError
from gpumagic.results import CudaTiming, MemoryDelta
from gpumagic.system import interrupts

#: Seconds between two checks of the controller, and the number of checks that may fail in a row: it
#: may be busy with engines that register, which must not end the wait for a running cell.
_CHECK_PERIOD, _FAILED_CHECKS = 5.0, 6
#: Seconds for engines to end their cell after an interrupt, and for the last of the output.
_INTERRUPT_TIMEOUT, _OUTPUT_TIMEOUT = 5.0, 1.0
#: Seconds for an engine to begin, and to send a result that its reply could not carry.
_BEGIN_TIMEOUT, _FETCH_TIMEOUT = TIMEOUT, 30.0

#: The name of this process for the engines, and the numbers of its runs.
_CLIENT = secrets.token_hex(8)
_runs = itertools.count(1)
#: By ipyparallel's client, the last `Place` of each engine, by the engine's UUID.
_places: weakref.WeakKeyDictionary[Any, dict[str, Place]] = weakref.WeakKeyDictionary()
#: The types of a result, and of a reply, by magic.
_RESULT_TYPES: dict[str, type] = {"cudatime": CudaTiming, "gpumem": MemoryDelta}
_REPLY_TYPES: dict[str, Any] = {
    "cudatime": tuple[Place, CudaTiming | None],
    "gpumem": tuple[Place, MemoryDelta | None],
}

#: Called with the number of engines that are done, of how many, and the seconds since the start.
Progress = Callable[[int, int, float], None]


@dataclass
class Outcome:
    """The replies of the engines to a cell."""

    places: dict[int, Place] = field(default_factory=dict)
    #: The magic's result by engine id.
    results: dict[int, Any] = field(default_factory=dict)
    #: Why there is no result, or only a partial one, by engine id.
    errors: dict[int, str] = field(default_factory=dict)
    elapsed: float = 0.0
    #: Whether any engine has run it.
    ran: bool = False
    #: The exception to raise when the results have been shown; None if there is none.
    exception: BaseException | None = None

    @property
    def is_one_group(self) -> bool:
        """Whether the engines are exactly the ranks of one process group."""
        groups = {(place.world_size, place.master) for place in self.places.values()}
        ranks = {place.rank for place in self.places.values()} - {None}
        number = len(self.places)
        return len(groups) == 1 and {size for size, _ in groups} == {number} == {len(ranks)}

    def engine_fields(self) -> list[dict[str, Any]]:
        """Return the fields of each engine's `EngineResult`."""
        found = []
        for engine in sorted({*self.places, *self.errors}):
            fields: dict[str, Any] = {"engine": engine, "error": self.errors.get(engine)}
            place = self.places.get(engine)
            if place is not None:
                fields |= {"host": place.host, "pid": place.pid, "rank": place.rank}
            found.append(fields)
        return found


def run(
    cluster: Cluster,
    engines: Sequence[int],
    plan: CellPlan,
    for_group: Callable[[CellPlan, Outcome], CellPlan],
    progress: Progress,
) -> Outcome:
    """Run a cell on the engines, and return what they have sent.

    Output streams as ipyparallel shows it. An interrupt is passed on to the engines. ``for_group``
    returns the plan for engines of these process groups, or raises.

    Raises:
        DeviceError: no engine can run it, or one of a process group's ranks does not reply, or the
            controller is gone.
    """
    outcome = Outcome()
    left = list(engines)
    while left:
        _prepare(cluster, left, outcome)
        left = [engine for engine in left if engine in outcome.places]
        request = _Request(cluster, left, outcome, for_group(plan, outcome), progress)
        request.run()
        left = request.collect()
    if not outcome.ran and outcome.exception is None:
        raise _none_can(outcome)
    return outcome


def _none_can(outcome: Outcome) -> DeviceError:
    reasons = [f"; engine {engine}: {reason}" for engine, reason in outcome.errors.items()]
    return DeviceError(f"no engine can run the cell{''.join(reasons[:1])}")


def _prepare(cluster: Cluster, engines: Sequence[int], outcome: Outcome) -> None:
    """Find out which of ``engines`` can run a magic, and their process groups.

    Engines that were in no group before are not called again: they refuse a cell if that has
    changed.
    """
    client = cluster.client
    places = _places.setdefault(client, {})
    known = {engine: places.get(_uuid(client, engine)) for engine in engines}
    if all(place is not None and place.rank is None for place in known.values()):
        outcome.places.update(known)  # type: ignore[arg-type]
        return
    for engine, reply in rpc.call(cluster, engines, "prepare", timeout=_BEGIN_TIMEOUT).items():
        if reply.error is None:
            outcome.places[engine] = places[_uuid(client, engine)] = reply.value
        else:
            outcome.errors[engine] = reply.error
    if not outcome.places:
        raise _none_can(outcome)
    sizes = [place.world_size or 0 for place in outcome.places.values()]
    if outcome.errors and max(sizes) > len(outcome.places):
        engine, reason = next(iter(outcome.errors.items()))
        raise DeviceError(
            f"engine {engine}: {reason}. Its process group might wait for it for ever: nothing was "
            "run; -t leaves engines out"
        )


def _uuid(client: Any, engine: int) -> str:
    return str(client._engines.get(engine))


class _Request:
    """The message to each engine that runs a cell there, and the replies."""

    def __init__(
        self,
        cluster: Cluster,
        engines: Sequence[int],
        outcome: Outcome,
        plan: CellPlan,
        progress: Progress,
    ) -> None:
        self._cluster, self._client = cluster, cluster.client
        self._outcome = outcome
        self._magic = plan.magic
        self._progress = progress
        self._number = next(_runs)
        self._in_no_group = all(outcome.places[engine].rank is None for engine in engines)
        self._is_one_group = outcome.is_one_group
        #: Engines whose request was withdrawn before they began.
        self._withdrawn: set[int] = set()
        self._engines, self._code = engines, self._source(plan)
        self._result: Any = None
        self._replies: dict[int, Any] = {}

    def _source(self, plan: CellPlan) -> str:
        line, cell = plan.arguments()
        call = (plan.magic, line, cell, __version__, _CLIENT, self._number, self._in_no_group)
        function = "run_async_cell" if plan.awaits else "run_cell"
        return (
            f"{'await ' if plan.awaits else ''}__import__('gpumagic.cluster.engine', "
            f"fromlist=['{function}']).{function}{(*call, rpc.LARGEST)!r}"
        )

    def _send(self) -> None:
        def execute(on: list[int]) -> Any:
            return self._client.direct_view(on).execute(self._code, silent=False, block=False)

        with interrupts.interrupts_after():  # the requests are known before
            self._result = rpc.send(self._client, self._engines, execute)
            self._replies = rpc.futures(self._result)
            for engine in {*self._engines} - {*self._replies}:
                self._outcome.errors[engine] = "the engine is gone"

    def run(self) -> None:
        """Send it, and show the output until all engines have ended, or it was withdrawn."""
        started = time.monotonic()
        with contextlib.ExitStack() as output:
            try:
                self._send()
                if self._result is None:
                    return
                output.enter_context(self._result.stream_output())
                self._wait(started)
                outputs = [reply.output for reply in self._expected().values()]
                concurrent.futures.wait(outputs, _OUTPUT_TIMEOUT)
            except KeyboardInterrupt as interrupt:
                self._outcome.exception = interrupt
                self._withdraw("it was interrupted before it began")
                self._interrupt()
                concurrent.futures.wait(self._expected().values(), _INTERRUPT_TIMEOUT)
        self._outcome.elapsed += time.monotonic() - started

    def _wait(self, started: float) -> None:
        checked, failed_checks, is_one_group = started, 0, self._is_one_group
        begin = started + _BEGIN_TIMEOUT if self._in_no_group else float("inf")
        while running := self._running():
            concurrent.futures.wait(running.values(), min(0.5, max(begin - time.monotonic(), 0)))
            now = time.monotonic()
            if now >= begin:
                begin = float("inf")
                self._withdraw(None)
            # The other ranks of a group would wait for one that has died.
            if is_one_group and any(map(_has_died, self._replies.values())):
                is_one_group = False
                self._interrupt()
            number = len(self._replies)
            self._progress(number - len(self._running()), number, now - started)
            if now - checked > _CHECK_PERIOD:  # the end of the controller sends no message
                failed_checks = 0 if self._cluster.answers() else failed_checks + 1
                if failed_checks >= _FAILED_CHECKS:
                    raise DeviceError(self._cluster.no_answer)
                checked = time.monotonic()

    def _expected(self) -> dict[int, Any]:
        return {e: reply for e, reply in self._replies.items() if e not in self._withdrawn}

    def _running(self) -> dict[int, Any]:
        return {e: reply for e, reply in self._expected().items() if not reply.done()}

    def _withdraw(self, error: str | None) -> None:
        """Withdraw the cell from the engines that have not begun with it."""
        late = {e: reply for e, reply in self._running().items() if not _has_begun(reply)}
        rpc.withdraw(self._client, late)
        for engine, reply in late.items():
            if not _has_begun(reply):
                self._withdrawn.add(engine)
                self._outcome.errors[engine] = error or rpc.no_reply(
                    self._client, engine, _BEGIN_TIMEOUT
                )

    def _interrupt(self) -> None:
        def interrupt(engines: list[int]) -> Any:
            return self._client.send_signal(signal.SIGINT, targets=engines, block=False)

        rpc.send(self._client, [*self._running()], interrupt)

    def collect(self) -> list[int]:
        """Put results and errors into the outcome; return the engines that refused the cell."""
        outcome = self._outcome
        refused, raised, exceptions = [], [], []
        for engine, future in self._expected().items():
            outcome.ran = True
            if not future.done():
                outcome.errors[engine] = "it has not ended after the interrupt"
                continue
            reply = future.result()
            if isinstance(reply, Exception):
                exceptions.append(reply)
                outcome.errors[engine] = rpc.described(reply)
                raised.append(engine)
            elif not self._store_reply(engine, _payload(reply)):
                refused.append(engine)
        if exceptions and outcome.exception is None:
            outcome.exception = _composite(exceptions, self._result)
        self._fetch(rpc.registered(self._client, raised))
        return refused if outcome.exception is None else []

    def _store_reply(self, engine: int, payload: tuple[Any, ...]) -> bool:
        """Store an engine's result; False if it refuses, being in a process group now."""
        places = _places[self._client]
        if payload[:1] == (IN_GROUP,):
            places.pop(_uuid(self._client, engine), None)
            return False
        reply = rpc.decode(engine, _REPLY_TYPES[self._magic], payload)
        if reply.error is not None:
            self._outcome.errors[engine] = reply.error
            return True
        place, result = reply.value
        self._outcome.places[engine] = places[_uuid(self._client, engine)] = place
        self._store(engine, result)
        return True

    def _fetch(self, engines: Sequence[int]) -> None:
        """Fetch the results of engines whose code has raised."""
        if not engines:
            return
        arguments = {"client": _CLIENT, "run": self._number}
        found = rpc.call(
            self._cluster, engines, "partial_result", arguments, timeout=_FETCH_TIMEOUT
        )
        for engine, reply in found.items():
            self._store(engine, reply.value)

    def _store(self, engine: int, result: Any) -> None:
        if isinstance(result, _RESULT_TYPES[self._magic]):
            self._outcome.results[engine] = result
        else:
            self._outcome.errors.setdefault(engine, "it has left no result")


def _has_begun(reply: Any) -> bool:
    """Return whether an engine has begun with the request of this reply."""
    return reply.done() or reply.output.metadata["execute_input"] is not None


def _has_died(reply: Any) -> bool:
    return reply.done() and getattr(reply.result(), "ename", "") == "EngineError"


def _payload(reply: Any) -> tuple[Any, ...]:
    """Return what `engine.run_cell` has written into an execute_reply; nothing of it is trusted."""
    content = getattr(reply, "_content", None)
    items = content.get("payload") if isinstance(content, dict) else None
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("source") == PAYLOAD:
            written = item.get("reply")
            return tuple(written) if isinstance(written, list) else ()
    return ()


def _composite(exceptions: list[Exception], result: Any) -> BaseException | None:
    """Return ipyparallel's exception for those of the engines, as ``%px`` raises it."""
    errors = package().error
    try:
        errors.collect_exceptions(exceptions, "%px")
    except errors.CompositeError as composite:
        streamed = getattr(result, "_streamed_errors", 0) >= len(exceptions)
        found: BaseException = errors.AlreadyDisplayedError(composite) if streamed else composite
        return found
    return None
