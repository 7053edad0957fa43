"""Run a cell under a magic on every engine: its output streams, each engine's result is kept."""

from __future__ import annotations

import itertools
import secrets
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpumagic.cluster.connection import Cluster, package
from gpumagic.cluster.engine import Place
from gpumagic.cluster.rpc import TIMEOUT, Answer, ask, futures, told
from gpumagic.errors import DeviceError, SpecError
from gpumagic.render.units import spans
from gpumagic.results import ClusterMemory, ClusterTiming, EngineMemory, EngineTiming
from gpumagic.system.text import noun

#: Seconds between two looks at whether the controller is still there, and how often it may be
#: silent: it may be busy with engines that come, and a running cell must not be given up for that.
_LOOK, _MISSES = 5.0, 6
#: Seconds for engines to end their cell after an interrupt.
_PATIENCE = 5.0

#: How the variables begin in which an engine keeps a result of ours until it is fetched.
_RESULT = f"_gpumagic_result_{secrets.token_hex(4)}_"

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
    setup: str = "",
) -> tuple[ClusterTiming, BaseException | None]:
    """`cudatime`, and what is to be raised when its result has been shown.

    With ``line`` it is a line magic's statement; ``setup`` is what follows the options of a cell's.
    """
    outcome = prepare(cluster, cluster.ids if engines is None else engines)
    together, names = one_group(outcome), _names(options)
    if "--barrier" in names and not together:
        raise SpecError(
            "--barrier: these engines are not all the ranks of one process group; %gpu dist init "
            "makes one of them"
        )
    if together and not _alike(names):
        raise SpecError(
            "the ranks of a process group must run the code equally often, or they wait for each "
            "other for ever: give -n, -r and -w, without --precision, --max-time, --queued and "
            "--kernels; or no repeats"
        )
    if together and "--barrier" not in names:
        options += " --barrier"
    run(cluster, outcome, "cudatime", options, code, progress, line=line, setup=setup)
    rows = tuple(
        EngineTiming(**about, timing=outcome.results.get(about["engine"]))
        for about in outcome.described()
    )
    result = ClusterTiming(rows, outcome.elapsed, together)
    if "--kernels" in names:
        result = replace(result, notes=tuple(_without_kernels(result)))
    return result, outcome.exception


def _without_kernels(result: ClusterTiming) -> Iterator[str]:
    """Why engines that have a timing have no kernels."""
    reasons: dict[str, list[int]] = {}
    for engine, timing in result.per_engine.items():
        if timing.kernels is None and engine not in result.failed:
            reason = timing.notes[-1] if timing.notes else "no profile"
            reasons.setdefault(reason, []).append(engine)
    for reason, engines in reasons.items():
        yield f"{noun(len(engines), 'engine')} {spans(engines)}: {reason}"


def measured(
    cluster: Cluster,
    code: str,
    engines: Sequence[int] | None,
    options: str,
    progress: Progress,
    *,
    line: bool = False,
    setup: str = "",
) -> tuple[ClusterMemory, BaseException | None]:
    """`gpumem`, and what is to be raised when its result has been shown."""
    outcome = prepare(cluster, cluster.ids if engines is None else engines)
    run(cluster, outcome, "gpumem", options, code, progress, line=line, setup=setup)
    rows = tuple(
        EngineMemory(**about, delta=outcome.results.get(about["engine"]))
        for about in outcome.described()
    )
    return ClusterMemory(rows, outcome.elapsed), outcome.exception


def _names(options: str) -> set[str]:
    """The names of the options, and harmless other words."""
    try:
        words = shlex.split(options)
    except ValueError:  # a quote inside of a word is a part of it
        words = options.split()
    # A value may follow its option at once: -n5, --precision=1%.
    return {word.split("=")[0] if word[:2] == "--" else word[:2] for word in words}


def _alike(names: set[str]) -> bool:
    """Whether code is run equally often wherever it is run with these options."""
    if names & {"--precision", "--max-time", "--queued", "--kernels"}:
        return False
    counts = {"-n", "-r", "-w"}
    return counts <= names or not names & {*counts, "-s", "--repeat", "--cold"}


def prepare(cluster: Cluster, engines: Sequence[int], timeout: float = TIMEOUT) -> Outcome:
    """Which of ``engines`` can run a magic, and why the others cannot.

    Raises:
        DeviceError: none can.
    """
    outcome = Outcome()
    answers = ask(cluster, engines, "prepare", {"results": _RESULT}, timeout=timeout)
    for engine, answer in answers.items():
        if answer.error is None:
            outcome.places[engine] = answer.value
        else:
            outcome.errors[engine] = answer.error
    engine, reason = next(iter(outcome.errors.items()), (-1, ""))
    if not outcome.places:
        raise DeviceError(f"no engine can run the cell; engine {engine}: {reason}")
    sizes = [place.world_size or 0 for place in outcome.places.values()]
    if reason and max(sizes) > len(outcome.places):
        raise DeviceError(
            f"engine {engine}: {reason}. Its process group might wait for it for ever: nothing was "
            "run; -t leaves engines out"
        )
    return outcome


def one_group(outcome: Outcome) -> bool:
    """Whether the prepared engines are exactly the ranks of one process group."""
    groups = {(place.world_size, place.master) for place in outcome.places.values()}
    ranks = {place.rank for place in outcome.places.values()} - {None}
    sizes = {size for size, _ in groups}
    number = len(outcome.places)
    return len(groups) == 1 and sizes == {number} and len(ranks) == number


_runs = itertools.count(1)


def run(
    cluster: Cluster,
    outcome: Outcome,
    magic: str,
    options: str,
    code: str,
    progress: Progress,
    *,
    line: bool,
    setup: str,
) -> None:
    """Run ``code`` under a magic on the prepared engines, and fetch the results.

    Output streams as ipyparallel shows it. An interrupt is passed on to the engines.

    Raises:
        DeviceError: the controller has gone.
    """
    client = cluster.client
    # Of this run: an engine that did not end in time may deliver an earlier one's.
    name = f"{_RESULT}{next(_runs)}"
    options = f"{options} -q -v {name}"
    setup = setup and f"-- {setup}"
    source = f"%{magic} {options} -- {code}" if line else f"%%{magic} {options} {setup}\n{code}"
    engines = _registered(client, list(outcome.places))
    for engine in {*outcome.places} - {*engines}:
        outcome.errors[engine] = "the engine is gone"
    if not engines:
        return
    started = time.monotonic()
    result = client.direct_view(engines).execute(source, silent=False, block=False)
    with result.stream_output():
        try:
            _wait(cluster, result, progress, started, one_group(outcome))
            result.wait_for_output(1)
        except KeyboardInterrupt as interrupt:
            outcome.exception = interrupt
            _interrupt(client, engines)
            result.wait(_PATIENCE)
    outcome.elapsed = time.monotonic() - started
    _note_errors(outcome, result)
    ended = [engine for engine, future in futures(result) if future.done()]
    _fetch(cluster, outcome, _registered(client, ended), name)


def _interrupt(client: Any, engines: Sequence[int]) -> None:
    left = _registered(client, engines)
    if left:
        client.send_signal(signal.SIGINT, targets=left, block=False)


def _has_died(future: Any) -> bool:
    return future.done() and getattr(future.result(), "ename", "") == "EngineError"


def _registered(client: Any, engines: Sequence[int]) -> list[int]:
    there = {*client.ids}
    return [engine for engine in engines if engine in there]


def _wait(
    cluster: Cluster, result: Any, progress: Progress, started: float, together: bool
) -> None:
    """Return when all engines have ended.

    Of a group, none waits for a rank that has died: the others are interrupted, once.
    """
    looked, misses = time.monotonic(), 0
    while not result.wait(0.5):
        now = time.monotonic()
        if together and any(_has_died(future) for _, future in futures(result)):
            together = False
            left = [engine for engine, future in futures(result) if not future.done()]
            _interrupt(cluster.client, left)
        progress(result.progress, len(result), now - started)
        if now - looked > _LOOK:  # a controller that is gone tells nobody
            misses = 0 if cluster.answers() else misses + 1
            if misses >= _MISSES:
                raise DeviceError(cluster.silence)
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
            outcome.errors[engine] = told(reply)
    if failures and outcome.exception is None:
        errors = package().error
        try:
            errors.collect_exceptions(failures, "%px")
        except errors.CompositeError as composite:
            streamed = getattr(result, "_streamed_errors", 0) >= len(failures)
            outcome.exception = errors.AlreadyDisplayedError(composite) if streamed else composite


def _fetch(cluster: Cluster, outcome: Outcome, engines: Sequence[int], name: str) -> None:
    if not engines:
        return
    answers: dict[int, Answer] = ask(cluster, engines, "take", {"name": name}, timeout=30.0)
    for engine, answer in answers.items():
        if answer.value is not None:
            outcome.results[engine] = answer.value
        else:
            outcome.errors.setdefault(engine, answer.error or "it has left no result")
