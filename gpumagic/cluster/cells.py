"""Time a cell, or measure its GPU memory, on every engine, as ``%%px`` runs it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpumagic.cluster import calls, engine
from gpumagic.cluster.cell_results import ClusterMemory, ClusterTiming
from gpumagic.cluster.connection import Cluster, package
from gpumagic.cluster.results import EngineResult
from gpumagic.errors import DeviceError
from gpumagic.results.base import Result

if TYPE_CHECKING:
    from ipyparallel import AsyncResult, Client

#: Seconds between two looks, for engines to end after an interrupt, and for the last output.
_LOOK, _INTERRUPT_TIMEOUT, _OUTPUT_TIMEOUT = 0.5, 5.0, 1.0


def cudatime(
    cluster: Cluster, code: str, engines: Sequence[int] | None = None, options: str = ""
) -> ClusterTiming:
    """Time ``code`` by ``%%cudatime`` on the engines; its output is shown here.

    ``options`` are those of the magic, as they are typed: ``"-n 100 -r 7"``. An engine on which
    the code raises, or that dies, has its reason in the result's ``failed``.

    Raises:
        DeviceError: there is no engine.
    """
    return ClusterTiming(_measured(cluster, engines, "cudatime", options, code))


def gpumem(cluster: Cluster, code: str, engines: Sequence[int] | None = None) -> ClusterMemory:
    """Measure what ``code`` does to GPU memory on the engines; see `cudatime` for the rest."""
    return ClusterMemory(_measured(cluster, engines, "gpumem", "", code))


def _measured(
    cluster: Cluster, engines: Sequence[int] | None, magic: str, options: str, code: str
) -> tuple[EngineResult, ...]:
    results, exception = run(cluster, engines, magic, options, code)
    if isinstance(exception, KeyboardInterrupt):
        raise exception
    return results


def run(
    cluster: Cluster,
    engines: Sequence[int] | None,
    magic: str,
    options: str,
    cell: str | None,
    code: str = "",
) -> tuple[tuple[EngineResult, ...], BaseException | None]:
    """Run a magic on the engines; ``code`` is what follows the options on its line.

    Returns their results, and the exception to raise when these have been shown.

    Output streams as ipyparallel shows it. An interrupt is passed on to the engines. As with
    ``%%px``, a busy engine begins when it is free.

    Raises:
        DeviceError: there is no engine.
    """
    wanted = cluster.ids if engines is None else engines
    present = [each for each in wanted if each in cluster.client.ids]
    if not present:
        raise DeviceError("the engines are gone; see %gpu cluster")
    line = f"{options} -q -v {engine.RESULT}{f' -- {code}' if code else ''}"
    source = calls.source(engine.run_cell, magic, line, cell)
    interrupted: KeyboardInterrupt | None = None
    result = cluster.client.direct_view(present).execute(source, silent=False, block=False)
    with result.stream_output():
        try:
            while not result.wait(_LOOK):
                pass  # open to Ctrl-C
            result.wait_for_output(_OUTPUT_TIMEOUT)
        except KeyboardInterrupt as interrupt:
            interrupted = interrupt
            _interrupt(cluster.client, result, present)
    outcomes = dict.fromkeys(wanted, calls.GONE) | {
        each: reply.result() if reply.done() else "it has not ended after the interrupt"
        for each, reply in zip(present, result._children, strict=True)
    }
    rows = [calls.result(each, outcomes[each], Result) for each in wanted]
    raised = [each for each in outcomes.values() if isinstance(each, Exception)]
    return tuple(rows), interrupted or _composite(raised, result)


def _interrupt(client: Client, result: AsyncResult, engines: Sequence[int]) -> None:
    """Interrupt engines that run the cell, and withdraw it from those that have not begun."""
    present = [each for each in engines if each in client.ids]
    if present:
        client.abort(result, targets=present, block=False)
        client.send_signal(signal.SIGINT, targets=present, block=False)
        result.wait(_INTERRUPT_TIMEOUT)


def _composite(exceptions: list[Exception], result: object) -> BaseException | None:
    """Return ipyparallel's exception for those of the engines, as ``%px`` raises it."""
    if not exceptions:
        return None
    errors = package().error
    try:
        errors.collect_exceptions(exceptions, "%px")
    except errors.CompositeError as composite:
        streamed = getattr(result, "_streamed_errors", 0) >= len(exceptions)
        found: BaseException = errors.AlreadyDisplayedError(composite) if streamed else composite
        return found
    return None
