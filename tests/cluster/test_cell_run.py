"""A cell on all engines: its output, its errors, and engines that do not end it."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.cluster import cell_run, rpc
from gpumagic.cluster.cell_run import Outcome
from gpumagic.cluster.engine import Place
from gpumagic.results import CudaTiming, MemoryDelta, Sample
from gpumagic.results.base import plain
from tests.cluster.conftest import ENGINE_ID, once_begun, wait_for
from tests.support.clusters import Cluster
from tests.support.interrupts import UNTIL_INTERRUPTED
from tests.support.shells import Ran

Run = Callable[..., Ran]

SAMPLE = Sample((1.0,))


def test_output_streams_and_values_are_shown(two_engines: Cluster, run: Run) -> None:
    ran = run(
        two_engines, f"%%cudatime --cluster -q\n{ENGINE_ID}\nprint('from', engine)\nengine + 40"
    )
    assert "[stdout:0] \nfrom 0" in ran.stdout
    assert "[stdout:1] \nfrom 1" in ran.stdout
    assert "Out[0:" in ran.text
    assert ": 41" in ran.text
    assert ran.value is None
    ran = run(two_engines, f"%%cudatime --cluster -q\n{ENGINE_ID}\nengine + 40;")
    assert ": 41" not in ran.text


def test_the_exception_of_one_engine(two_engines: Cluster, run: Run) -> None:
    cell = f"%%cudatime --cluster -v timing\n{ENGINE_ID}\n1 / (1 - engine)"
    ran = run(two_engines, cell, raising=False)
    assert type(ran.error).__name__ == "AlreadyDisplayedError"
    assert "ZeroDivisionError" in ran.stderr
    assert "1 / (1 - engine)" in ran.stderr  # its own traceback
    assert "engine 1: ZeroDivisionError: division by zero" in ran.text
    timing = run(two_engines, "timing").value
    assert set(timing.per_engine) == {0, 1}
    assert timing.failed == {1: "ZeroDivisionError: division by zero"}
    assert timing.per_engine[1].partial
    assert not timing.per_engine[0].partial
    # What it took until the exception is no time of the cell.
    assert list(timing.seconds) == [0]
    assert timing.wall.all == (timing.per_engine[0].wall.median,)
    assert timing.slowest.engine == 0
    assert "1 (partial)" in ran.text


def test_a_syntax_error(two_engines: Cluster, run: Run) -> None:
    ran = run(two_engines, "%%cudatime --cluster -q\n1 +", raising=False)
    assert isinstance(ran.error, SyntaxError)
    assert "[stderr" not in ran.stdout  # it was found here: nothing was sent


def test_another_clients_result_is_left_alone(cuda_engines: Cluster, run: Run) -> None:
    from gpumagic.cluster.cell_run import _CLIENT

    state = "__import__('gpumagic.cluster.engine', fromlist=['e'])._partial_results"
    cuda_engines.run(0, f"{state}.update({{'theirs': (1, None), {_CLIENT!r}: (0, 'late')}})")
    run(cuda_engines, "%cudatime --cluster -q 1")
    assert cuda_engines.value(0, state) == {"theirs": (1, None)}
    cuda_engines.run(0, f"{state}.clear()")


def test_a_result_too_large(
    cuda_engines: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumagic.cluster.rpc.LARGEST", 2000)
    timing = run(cuda_engines, "%cudatime --cluster -o -n 1 -r 200 torch.cuda._sleep(1)").value
    assert not timing.per_engine
    assert all("its result is too large to fetch" in reason for reason in timing.failed.values())


def test_a_busy_engine_is_not_waited_for(
    two_engines: Cluster, run: Run, busy_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others run the cell; it is withdrawn from the one that has not begun."""
    run(two_engines, "%cudatime --cluster -q 1")  # now it is known that there is no process group
    monkeypatch.setattr(cell_run, "_BEGIN_TIMEOUT", 10.0)
    monkeypatch.setattr(rpc, "CONFIRMATION", 60.0)
    with busy_engine(two_engines, 1):
        timing = run(two_engines, "%%cudatime --cluster -o -q\nran = True").value
        assert [*timing.per_engine] == [0]
        assert timing.failed == {1: "no answer within 10 s: it is busy, or has lost its connection"}
        with pytest.raises(UsageError, match="no engine can run the cell; engine 1: no answer"):
            run(two_engines, "%%cudatime --cluster -t 1\nran = True")
    assert two_engines.value(1, "'ran' in globals()") is False


def test_an_interrupt_before_an_engine_has_begun(
    two_engines: Cluster, run: Run, busy_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell is withdrawn, and what the engine runs for others goes on."""
    run(two_engines, "%cudatime --cluster -q 1")
    wait, waits = concurrent.futures.wait, []

    def interrupted(futures: Any, timeout: float) -> Any:
        waits.append(timeout)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return wait(futures, 60)  # the engine confirms, however slow the machine

    with busy_engine(two_engines, 1):
        with monkeypatch.context() as patch:
            patch.setattr("gpumagic.cluster.cell_run.concurrent.futures.wait", interrupted)
            cell = "%%cudatime --cluster -t 1 -v timing\nran = True"
            ran = run(two_engines, cell, raising=False)
        assert isinstance(ran.error, KeyboardInterrupt)
        assert run(two_engines, "timing").value.failed == {1: "it was interrupted before it began"}
    assert two_engines.value(1, "'ran' in globals()") is False


def test_an_engine_that_has_joined_a_group_meanwhile(two_engines: Cluster, run: Run) -> None:
    """It refuses the first message: ranks of a group run a cell in another way."""
    run(two_engines, "%gpu off --cluster -q")
    run(two_engines, "count = 0")
    run(two_engines, "%%cudatime --cluster -q\ncount = 0")
    init = "r.rendezvous((), {first})"
    for engine in (0, 1):
        prepare = init.format(first=engine == 0)
        two_engines.run(engine, f"import gpumagic.cluster.distributed as r; prepared = {prepare}")
    file = two_engines.value(0, "prepared[3]")
    joins = [
        two_engines.client[engine].execute(
            f"r.join(backend='gloo', master=('127.0.0.1', 1), file={file!r}, rank={engine}, "
            f"world_size=2, local_rank={engine}, local_world_size=2, timeout=300.0)",
            block=False,
        )
        for engine in (0, 1)
    ]
    for join in joins:
        join.get(timeout=300)
    with pytest.raises(UsageError, match="must run the code equally often"):
        run(two_engines, "%%cudatime --cluster -q -r 3\ncount += 1")
    timing = run(two_engines, "%%cudatime --cluster -q -o\ncount += 1").value
    assert timing.barrier
    assert [each.rank for each in timing.engines] == [0, 1]
    assert (two_engines.value(0, "count"), two_engines.value(1, "count")) == (1, 1)
    run(two_engines, "%gpu dist down -q")
    assert not run(two_engines, "%%cudatime --cluster -q -o\ncount += 1").value.barrier


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"payload": None},
        {"payload": {}},
        {"payload": [None, 7, {"source": "page"}]},
        {"payload": [{"source": "gpumagic"}]},
        {"payload": [{"source": "gpumagic", "reply": "ok"}]},
        {"payload": [{"source": "gpumagic", "reply": []}]},
        {"payload": [{"source": "gpumagic", "reply": ["ok"]}]},
        {"payload": [{"source": "gpumagic", "reply": ["ok", {}]}]},
        {"payload": [{"source": "gpumagic", "reply": [["ok"], "{}"]}]},
        {"payload": [{"source": "gpumagic", "reply": ["ok", "{}", 1]}]},
    ],
)
def test_a_payload_that_does_not_fit(content: Any) -> None:
    payload = cell_run._payload(SimpleNamespace(_content=content))
    reply = rpc.decode(0, cell_run._REPLY_TYPES["cudatime"], payload)
    assert reply.value is None
    assert reply.error is not None
    assert reply.error.startswith("its reply is not valid")


def test_a_result_of_another_magic() -> None:
    place = plain(Place("h", 1))
    for magic, other in (("cudatime", MemoryDelta()), ("gpumem", CudaTiming(None, SAMPLE, SAMPLE))):
        content = json.dumps([place, plain(other)])
        for kind, fits in ((magic, False), ({"cudatime": "gpumem"}.get(magic, "cudatime"), True)):
            reply = rpc.decode(0, cell_run._REPLY_TYPES[kind], ("ok", content))
            assert (reply.value is not None) is fits


def test_an_engine_killed_in_the_middle(cluster_of: Callable[..., Cluster], run: Run) -> None:
    cluster = cluster_of(2)
    cell = (
        f"%%cudatime --cluster -v timing\n{ENGINE_ID}\nimport os, signal, time\ntime.sleep(0.2)\n"
        "if engine: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(0.2)"
    )
    ran = run(cluster, cell, raising=False)
    assert type(ran.error).__name__ == "CompositeError"
    assert "died while running" in str(ran.error)
    timing = run(cluster, "timing").value
    assert timing.failed == {1: "the engine died"}
    assert timing.per_engine[0].wall.median >= 0.4
    assert "engine 1: the engine died" in str(timing)
    assert [each.engine for each in run(cluster, "%gpu cluster -o -q").value] == [0]


def test_a_controller_that_goes_away(
    cluster_of: Callable[..., Cluster], run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gpumagic.cluster.cell_run._CHECK_PERIOD", 0.5)
    monkeypatch.setattr("gpumagic.cluster.cell_run._FAILED_CHECKS", 2)
    monkeypatch.setattr("gpumagic.cluster.connection.CONTROLLER_TIMEOUT", 1.0)
    cluster = cluster_of(1)
    run(cluster, "%gpu cluster -q")
    killer = once_begun([tmp_path / "begun"], cluster.end_controller)
    cell = f"import time; open({str(tmp_path / 'begun')!r}, 'w').close(); time.sleep(60)"
    with pytest.raises(UsageError, match=r"the controller .* does not answer: has it ended\?"):
        run(cluster, f"%%cudatime --cluster\n{cell}")
    killer.join()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_reaches_the_engines(two_engines: Cluster, run: Run, tmp_path: Path) -> None:
    run(two_engines, "%gpu cluster -q")
    begun = [tmp_path / f"begun{engine}" for engine in (0, 1)]
    interrupt = once_begun(begun, lambda: os.kill(os.getpid(), signal.SIGINT))
    begin = f"open({str(tmp_path / 'begun')!r} + str(engine), 'w').close()"
    cell = f"%%cudatime --cluster -v timing\n{ENGINE_ID}\nimport time\n{begin}\n{UNTIL_INTERRUPTED}"
    ran = run(two_engines, cell, raising=False)
    interrupt.join()
    assert isinstance(ran.error, KeyboardInterrupt)
    timing = run(two_engines, "timing").value
    assert all(one.partial for one in timing.per_engine.values())
    assert {*timing.failed} == {0, 1}
    assert two_engines.value(0, "1") == 1  # and they are free again


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_while_the_cell_is_sent_reaches_the_engines(
    two_engines: Cluster, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have begun by then, and would run on with nobody waiting for them."""
    run(two_engines, "%cudatime --cluster -q 1")
    begun = [tmp_path / f"begun{engine}" for engine in (0, 1)]
    send, sent = rpc.send, []

    def interrupted(client: Any, engines: Any, request: Any) -> Any:
        result = send(client, engines, request)
        if not sent:
            wait_for(lambda: all(each.exists() for each in begun))
            signal.raise_signal(signal.SIGINT)
        sent.append(result)
        return result

    monkeypatch.setattr(rpc, "send", interrupted)
    begin = f"open({str(tmp_path / 'begun')!r} + str(engine), 'w').close()"
    cell = f"%%cudatime --cluster -v timing\n{ENGINE_ID}\nimport time\n{begin}\n{UNTIL_INTERRUPTED}"
    ran = run(two_engines, cell, raising=False)
    assert isinstance(ran.error, KeyboardInterrupt)
    assert {*run(two_engines, "timing").value.failed} == {0, 1}
    assert [two_engines.value(engine, "1") for engine in (0, 1)] == [1, 1]


def test_ranks_of_two_groups_are_no_group() -> None:
    def together(*masters: str) -> bool:
        places = {
            engine: Place("h", engine, rank=engine, world_size=2, master=master)
            for engine, master in enumerate(masters)
        }
        return Outcome(places=places).is_one_group

    assert together("a:1", "a:1")
    assert not together("a:1", "a:2")
