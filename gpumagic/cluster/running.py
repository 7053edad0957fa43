"""Run a cell under a magic on every engine: its output streams, each engine's result is kept."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpumagic.cluster.asking import TIMEOUT, Answer, ask, futures
from gpumagic.cluster.connecting import Cluster, package
from gpumagic.cluster.remote import Place
from gpumagic.errors import DeviceError
from gpumagic.results import ClusterMemory, ClusterTiming, EngineMemory, EngineTiming

#: The variable in which an engine keeps its result until it is fetched.
NAME = "_gpumagic_result"

#: Seconds between two looks at whether the controller is still there.
_LOOK = 5.0
#: Seconds for engines to end their cell after an interrupt.
_PATIENCE = 5.0

#: Told how many engines are done, of how many, and the seconds since the start.
Progress = Callable[[int, int, float], None]


def _nobody(done: int, of: int, seconds: float) -> None:
    """Nobody is told."""


@dataclass
class Outcome:
    """What became of a cell on the engines."""

    places: dict[int, Place] = field(default_factory=dict)
    #: The magic's result by engine id.
    results: dict[int, Any] = field(default_factory=dict)
    #: Why there is no result, or only a partial one, by engine id.
    errors: dict[int, str] = field(default_factory=dict)
    elapsed: float = 0.0
    #: What is to be raised when the results have been shown; None if all went well.
    exception: BaseException | None = None

    def described(self) -> list[dict[str, Any]]:
        """The fields of each engine's `EngineResult`."""
        found = []
        for engine in sorted({*self.places, *self.errors}):
            fields: dict[str, Any] = {"engine": engine, "error": self.errors.get(engine)}
            place = self.places.get(engine)
            if place is not None:
                fields |= {"host": place.host, "pid": place.pid, "rank": place.rank}
            found.append(fields)
        return found


def cudatime(
    cluster: Cluster,
    code: str,
    engines: Sequence[int] | None = None,
    *,
    options: str = "",
    progress: Progress = _nobody,
) -> ClusterTiming:
    """Time ``code`` on the engines, by ``%%cudatime options`` on each; its output is shown here.

    An engine on which the code raises, or that dies, has its reason in the result's ``failed``.

    Raises:
        DeviceError: no engine can run it, or the controller has gone.
    """
    result, exception = timed(cluster, code, engines, options, progress)
    if isinstance(exception, KeyboardInterrupt):
        raise exception
    return result


def gpumem(
    cluster: Cluster,
    code: str,
    engines: Sequence[int] | None = None,
    *,
    progress: Progress = _nobody,
) -> ClusterMemory:
    """What ``code`` does to GPU memory on the engines; see `cudatime` for the rest."""
    result, exception = measured(cluster, code, engines, "", progress)
    if isinstance(exception, KeyboardInterrupt):
        raise exception
    return result


def timed(
    cluster: Cluster,
    code: str,
    engines: Sequence[int] | None,
    options: str,
    progress: Progress,
    *,
    line: bool = False,
) -> tuple[ClusterTiming, BaseException | None]:
    """`cudatime`, and what is to be raised when its result has been shown.

    With ``line`` it is a line magic's statement.
    """
    outcome = prepare(cluster, cluster.ids if engines is None else engines)
    together = one_group(outcome)
    options = f"-q -v {NAME} {'--barrier ' * together}{options}"
    run(cluster, outcome, _source("cudatime", options, code, line), progress)
    rows = tuple(
        EngineTiming(**about, timing=outcome.results.get(about["engine"]))
        for about in outcome.described()
    )
    return ClusterTiming(rows, outcome.elapsed, together), outcome.exception


def measured(
    cluster: Cluster,
    code: str,
    engines: Sequence[int] | None,
    options: str,
    progress: Progress,
    *,
    line: bool = False,
) -> tuple[ClusterMemory, BaseException | None]:
    """`gpumem`, and what is to be raised when its result has been shown."""
    outcome = prepare(cluster, cluster.ids if engines is None else engines)
    run(cluster, outcome, _source("gpumem", f"-q -v {NAME} {options}", code, line), progress)
    rows = tuple(
        EngineMemory(**about, delta=outcome.results.get(about["engine"]))
        for about in outcome.described()
    )
    return ClusterMemory(rows, outcome.elapsed), outcome.exception


def _source(magic: str, options: str, code: str, line: bool) -> str:
    return f"%{magic} {options} {code}" if line else f"%%{magic} {options}\n{code}"


def prepare(cluster: Cluster, engines: Sequence[int], timeout: float = TIMEOUT) -> Outcome:
    """Which of ``engines`` can run a magic, and why the others cannot.

    Raises:
        DeviceError: none can.
    """
    outcome = Outcome()
    for engine, answer in ask(cluster, engines, "prepare", timeout=timeout).items():
        if answer.error is None:
            outcome.places[engine] = answer.value
        else:
            outcome.errors[engine] = answer.error
    if not outcome.places:
        engine, reason = next(iter(outcome.errors.items()))
        raise DeviceError(f"no engine can run the cell; engine {engine}: {reason}")
    return outcome


def one_group(outcome: Outcome) -> bool:
    """Whether the prepared engines are exactly the ranks of one process group."""
    sizes = {place.world_size for place in outcome.places.values()}
    ranks = {place.rank for place in outcome.places.values()}
    return sizes == {len(outcome.places)} and len(ranks - {None}) == len(outcome.places)


def run(cluster: Cluster, outcome: Outcome, source: str, progress: Progress) -> None:
    """Run ``source`` on the prepared engines, and fetch what it left in `NAME`.

    Output streams as ipyparallel shows it. An interrupt is passed on to the engines.

    Raises:
        DeviceError: the controller has gone.
    """
    engines = list(outcome.places)
    client = cluster.client
    started = time.monotonic()
    result = client.direct_view(engines).execute(source, silent=False, block=False)
    with result.stream_output():
        try:
            _wait(cluster, result, progress, started)
            result.wait_for_output(1)
        except KeyboardInterrupt as interrupt:
            outcome.exception = interrupt
            client.send_signal(signal.SIGINT, targets=engines, block=False)
            result.wait(_PATIENCE)
    outcome.elapsed = time.monotonic() - started
    _note_errors(outcome, result)
    alive = {*client.ids}
    ended = [engine for engine, future in futures(result) if future.done() and engine in alive]
    _fetch(cluster, outcome, ended)


def _wait(cluster: Cluster, result: Any, progress: Progress, started: float) -> None:
    looked = time.monotonic()
    while not result.wait(0.5):
        now = time.monotonic()
        progress(result.progress, len(result), now - started)
        if now - looked > _LOOK:
            cluster.check()  # a controller that is gone tells nobody
            looked = time.monotonic()


def _note_errors(outcome: Outcome, result: Any) -> None:
    failures = []
    for engine, future in futures(result):
        if not future.done():
            outcome.errors[engine] = "it has not ended after the interrupt"
            continue
        reply = future.result()
        if isinstance(reply, Exception):
            failures.append(reply)
            outcome.errors[engine] = _reason(reply)
    if failures and outcome.exception is None:
        errors = package().error
        try:
            errors.collect_exceptions(failures, "%px")
        except errors.CompositeError as composite:
            streamed = getattr(result, "_streamed_errors", 0) >= len(failures)
            outcome.exception = errors.AlreadyDisplayedError(composite) if streamed else composite


def _reason(error: Any) -> str:
    if getattr(error, "ename", "") == "EngineError":
        return "the engine died"
    text = str(getattr(error, "evalue", error)).splitlines()
    return f"{getattr(error, 'ename', type(error).__name__)}: {text[0] if text else ''}"


def _fetch(cluster: Cluster, outcome: Outcome, engines: Sequence[int]) -> None:
    if not engines:
        return
    answers: dict[int, Answer] = ask(cluster, engines, "take", {"name": NAME}, timeout=30.0)
    for engine, answer in answers.items():
        if answer.value is not None:
            outcome.results[engine] = answer.value
        elif answer.error is not None:
            outcome.errors.setdefault(engine, answer.error)
