"""A cell on all engines, each with its own timer and its own memory."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cluster.cell_results import ClusterMemory, ClusterTiming
from gpumagic.magics.cluster import options_sent
from gpumagic.magics.magic_class import grammar_of
from tests.cluster.conftest import ENGINE_ID, INITIALISE_CUDA, once_begun
from tests.support.clusters import Cluster
from tests.support.shells import Ran
from tests.support.waiting import UNTIL_INTERRUPTED

Run = Callable[..., Ran]
#: ipyparallel misses what comes before it listens.
PAUSE = "import time; time.sleep(1)"


def test_each_has_its_own_timer(cuda_engines: Cluster, run: Run) -> None:
    ran = run(
        cuda_engines,
        f"%%cudatime --cluster -v timing\n{ENGINE_ID}\n"
        "torch.cuda._sleep(50_000_000 * (1 + 15 * engine))",
    )
    timing = run(cuda_engines, "timing").value
    assert isinstance(timing, ClusterTiming)
    assert 0.98 * 0.05 <= timing.gpu.best <= timing.per_engine[0].wall.median
    assert 0.98 * 0.80 <= timing.gpu.worst <= timing.per_engine[1].wall.median
    assert timing.slowest.engine == 1
    assert re.search(r"slowest: engine 1 on .* \(1\.[2-9]× the median (GPU|wall) time\)", ran.text)
    assert not timing.failed
    # The names that the cell made stay there; ours does not.
    assert cuda_engines.value(1, "engine") == 1
    assert cuda_engines.value(1, "[n for n in globals() if 'gpumagic' in n]") == []
    assert [e.engine for e in run(cuda_engines, "%cudatime --cluster -t 1 -o -q 1").value] == [1]


def test_repeated(cuda_engines: Cluster, run: Run) -> None:
    timing = run(
        cuda_engines, "%cudatime --cluster -o -q -n 5 -r 3 torch.cuda._sleep(9_000_000)"
    ).value
    for one in timing.per_engine.values():
        assert (one.loops, one.repeat) == (5, 3)
        assert 0.98 * 0.009 <= one.gpu.median <= one.wall.median
    setup = "%%cudatime --cluster -oqn 2 -r 2 -s 'cycles = 2_000_000'\ntorch.cuda._sleep(cycles)"
    assert run(cuda_engines, setup).value.gpu.best >= 0.98 * 0.002
    assert not run(cuda_engines, "%cudatime --cluster -o -q -n 2 -r 2 -- -3").value.failed
    setup = "%%cudatime --cluster -oq --max-time 10us -s 'd = {{1, 2}}'\nassert isinstance(d, set)"
    assert not run(cuda_engines, setup).value.failed


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("--cluster -vtiming", ""),
        ("-q -o --cluster -t 0:2 -n 5 -v timing -r 3", "-n 5  -r 3"),
        ("--targets=0 --max-time 10s --cluster --", "--max-time 10s"),
        ("--cluster -t '0, 1' -n 5 --cold", "-n 5 --cold"),
        ('--cluster --targets="0, 1" -s "-v y"', '-s "-v y"'),
        ("--cluster -s 'x = \"-o -t 1\"' -n 2", "-s 'x = \"-o -t 1\"' -n 2"),
        ("--cluster -s \"x = '\\n'\"", "-s \"x = '\\n'\""),
        ("--cluster -s x='a',\"b\" -n 2", "-s x='a',\"b\" -n 2"),
        ("--cluster --max-time 0.1us", "--max-time 0.1us"),
        ("--cluster -s 'd = {{1, 2}}'", "-s 'd = {{1, 2}}'"),
        ("--cluster -s 'd = {q}; \\$q'", "-s 'd = {q}; \\$q'"),
        ("--cluster -s {q}", "-s {q}"),
    ],
)
def test_the_options_of_the_code_are_sent(written: str, sent: str) -> None:
    q = """d = ['"', "'", '{q}', '$q', '\\n', 'ü']"""
    read = grammar_of("cudatime").read
    # An engine has other variables.
    engines = read(options_sent(read(written, {"q": q})), {"q": "another", "d": 2})
    assert engines.given == pytest.approx(dict(read(sent, {"q": q}).given))


def test_results_go_where_the_options_say(two_engines: Cluster, run: Run) -> None:
    ran = run(two_engines, "%%cudatime --cluster -q -o -v mine\nx = 1")
    assert ran.text == ""
    assert isinstance(ran.value, ClusterTiming)
    assert two_engines.value(0, "'mine' in globals()") is False
    ran = run(two_engines, "%%cudatime --cluster\nx = 1")
    assert "Over the engines" in ran.text
    assert "<table" in ran.html


def test_output_streams_and_values_are_shown(two_engines: Cluster, run: Run) -> None:
    cell = f"%%cudatime --cluster -q\n{ENGINE_ID}\nprint('from', engine)\nengine + 40"
    ran = run(two_engines, cell)
    assert "[stdout:1] \nfrom 1" in ran.stdout
    assert ": 41" in ran.text
    assert ": 41" not in run(two_engines, f"{cell};").text
    run(
        two_engines,
        "%%cudatime --cluster -v t\nimport asyncio\nawait asyncio.sleep(0)",
        raising=False,
    )
    assert (
        run(two_engines, "t").value.failed[0] == "engines run no cell that awaits: leave await out"
    )


def test_the_exception_of_one_engine(two_engines: Cluster, run: Run) -> None:
    cell = f"%%cudatime --cluster -v timing\n{ENGINE_ID}\n{PAUSE}\n1 / (1 - engine)"
    ran = run(two_engines, cell, raising=False)
    assert type(ran.error).__name__ == "AlreadyDisplayedError"
    assert "1 / (1 - engine)" in ran.stderr  # its own traceback
    assert "engine 1: ZeroDivisionError: division by zero" in ran.text
    timing = run(two_engines, "timing").value
    assert {*timing.per_engine} == {0}
    assert timing.failed == {1: "ZeroDivisionError: division by zero"}
    ran = run(two_engines, "%%cudatime --cluster -q\n1 +", raising=False)
    assert type(ran.error).__name__ in ("AlreadyDisplayedError", "CompositeError")
    assert "SyntaxError" in f"{ran.stderr}{ran.error}"


def test_a_gpu_on_one_engine_only(two_engines: Cluster, run: Run) -> None:
    run(two_engines, "%gpu off --cluster -t 1 -q")
    two_engines.run(0, INITIALISE_CUDA)
    cell = (
        "%%cudatime --cluster -o\nimport torch\n"
        "if torch.cuda.is_available():\n    torch.cuda._sleep(300_000_000)"
    )
    timing = run(two_engines, cell).value
    assert [timing.per_engine[engine].gpu is None for engine in (0, 1)] == [False, True]
    assert (len(timing.gpu.all), len(timing.wall.all)) == (1, 2)


def test_memory_of_each(cuda_engines: Cluster, run: Run) -> None:
    cell = (
        f"%%gpumem --cluster -v memory\n{ENGINE_ID}\n"
        "big = torch.empty((1 + engine) * 2**20, dtype=torch.uint8, device='cuda')\n"
        "gone = torch.empty(3 * 2**20, dtype=torch.uint8, device='cuda')\n"
        "del gone"
    )
    ran = run(cuda_engines, cell)
    memory = run(cuda_engines, "memory").value
    assert isinstance(memory, ClusterMemory)
    for engine, delta in memory.per_engine.items():
        assert delta.devices[0].allocated == (1 + engine) * 2**20
    assert memory.peak == {0: 4 * 2**20, 1: 5 * 2**20}
    assert "+5.00 MiB" in ran.text
    line = run(cuda_engines, "%gpumem --cluster -o -q more = torch.empty(256, device='cuda')").value
    assert line.peak == {0: 1024, 1: 1024}


def test_from_a_script(cuda_engines: Cluster) -> None:
    from gpumagic import cluster

    engines = cluster.connect(cuda_engines.client)
    assert len(cluster.devices(engines)) == 2
    timing = cluster.cudatime(engines, "torch.cuda._sleep(5_000_000)", options="-n 1 -r 2")
    assert 0.98 * 0.005 <= timing.gpu.best <= timing.wall.worst
    assert cluster.gpumem(engines, "y = torch.empty(128, device='cuda')").peak == {0: 512, 1: 512}
    assert cluster.choose(engines, "off").too_late == (0, 1)


def test_an_engine_killed_in_the_middle(cluster_of: Callable[..., Cluster], run: Run) -> None:
    cluster = cluster_of(2)
    cell = (
        f"%%cudatime --cluster -v timing\n{ENGINE_ID}\nimport os, signal\n{PAUSE}\n"
        f"if engine: os.kill(os.getpid(), signal.SIGKILL)\n{PAUSE}"
    )
    ran = run(cluster, cell, raising=False)
    assert "died while running" in str(ran.error)
    timing = run(cluster, "timing").value
    assert timing.failed == {1: "the engine died"}
    assert timing.per_engine[0].wall.median >= 2


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_reaches_the_engines(
    two_engines: Cluster, run: Run, tmp_path: Path, busy_engine: Any
) -> None:
    begun = [tmp_path / f"begun{engine}" for engine in (0, 1)]
    interrupt = once_begun(begun, lambda: os.kill(os.getpid(), signal.SIGINT))
    begin = f"open({str(tmp_path / 'begun')!r} + str(engine), 'w').close()"
    cell = f"%%cudatime --cluster -v timing\n{ENGINE_ID}\nimport time\n{begin}\n{UNTIL_INTERRUPTED}"
    ran = run(two_engines, cell, raising=False)
    interrupt.join()
    assert isinstance(ran.error, KeyboardInterrupt)
    assert {*run(two_engines, "timing").value.failed} == {0, 1}
    assert two_engines.value(0, "1") == 1  # and they are free again
