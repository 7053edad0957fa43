"""A cell on all engines, each with its own timer."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.results import ClusterMemory, ClusterTiming
from tests.cluster.conftest import Shared, wait_for
from tests.support.clusters import Cluster
from tests.support.shells import Ran
from tests.virtual_gpu import World

Run = Callable[..., Ran]

ME = "engine = get_ipython().kernel.engine_id"
READY = "import torch; torch.zeros(1, device='cuda'); torch.cuda.synchronize()"


@pytest.fixture
def ready(shared: Shared) -> Cluster:
    """Engines on which CUDA is up, each with a GPU of its own; tests that use it may follow."""
    cluster, ask = shared.cluster, "globals().get('_ready')"
    if cluster is None or not all(cluster.value(engine, ask) for engine in (0, 1)):
        cluster = shared.fresh()
        mask = "import os; os.environ['CUDA_VISIBLE_DEVICES']"
        for engine in (0, 1):
            cluster.run(engine, f"{mask} = '{engine}'; {READY}; _ready = True")
    return cluster


def test_each_has_its_own_timer(ready: Cluster, run: Run) -> None:
    ran = run(
        ready,
        f"%%cudatime --cluster -v timing\n{ME}\ntorch.cuda._sleep(50_000_000 * (1 + 15 * engine))",
    )
    timing = run(ready, "timing").value
    assert isinstance(timing, ClusterTiming)
    assert 0.98 * 0.05 <= timing.gpu.best <= timing.per_engine[0].wall.median
    assert 0.98 * 0.80 <= timing.gpu.worst <= timing.per_engine[1].wall.median
    assert timing.per_engine[1].per_device[0].median == timing.gpu.worst
    assert timing.slowest.engine == 1
    assert timing.straggler.engine == 1
    assert timing.elapsed >= 0.8
    assert not timing.barrier
    assert "straggler: engine 1 on " in ran.text
    assert re.search(r"took 1\.[2-9] × the median", ran.text)
    assert not timing.failed
    frame = timing.to_pandas()
    assert list(frame.index) == [0, 1]
    assert frame.gpu_time[1] == timing.gpu.worst
    # The names that the cell made stay there; ours does not.
    assert ready.value(1, "engine") == 1
    assert ready.value(1, "[n for n in globals() if 'gpumagic' in n]") == []


def test_repeated(ready: Cluster, run: Run) -> None:
    timing = run(ready, "%cudatime --cluster -o -q -n 5 -r 3 torch.cuda._sleep(9_000_000)").value
    for one in timing.per_engine.values():
        assert (one.loops, one.repeat) == (5, 3)
        assert 0.98 * 0.009 <= one.gpu.median <= one.wall.median
        assert one.bound == "gpu"
    setup = "%%cudatime --cluster -o -q -n 2 -r 2 cycles = 2_000_000\ntorch.cuda._sleep(cycles)"
    assert run(ready, setup).value.gpu.best >= 0.98 * 0.002
    assert not run(ready, "%%cudatime --cluster -o -q -n 2 -r 2 -- -3\n1").value.failed
    with pytest.raises(UsageError, match="--barrier: these engines are not all the ranks"):
        run(ready, "%cudatime --cluster --barrier 1")


def test_host_bound_ranks_are_named(ready: Cluster, run: Run, engines_gpus: World) -> None:
    """A launch takes the host a hundred times as long as the GPU on one, the reverse on the other.

    Whatever else the host is held up with makes the one no less host-bound, and the other's GPU has
    so much to do that the host would have to be held up for 100 ms, most of five times.
    """
    engines_gpus.set_launch_cost(300e-6)
    cell = (
        f"%%cudatime --cluster -o -n 5 -r 5\n{ME}\ntorch.cuda._sleep(40_000_000 if engine else 1)\n"
        "for _ in range(20 * (1 - engine)): ones.add_(1)"
    )
    run(ready, "%%cudatime --cluster -q\nones = torch.ones(8, device='cuda')")
    ran = run(ready, cell)
    assert ran.value.host_bound == (0,)
    assert "host-bound, the GPU waits for work to be launched: engine 0" in ran.text


@pytest.mark.parametrize("options", ["-vtiming", "-qvtiming", "-t0:2 -v timing"])
def test_options_however_they_are_written(two: Cluster, run: Run, options: str) -> None:
    run(two, "timing = None")
    run(two, f"%%cudatime --cluster {options}\nx = 1")
    timing = run(two, "timing").value
    assert set(timing.per_engine) == {0, 1}
    assert not timing.failed
    assert two.value(0, "'timing' in globals()") is False


def test_a_statement_that_begins_with_a_minus_sign(two: Cluster, run: Run) -> None:
    timing = run(two, "%cudatime --cluster -o -q -- -3 + 4").value
    assert not timing.failed
    assert set(run(two, "%gpumem --cluster -o -q -- -3 + 4").value.per_engine) == {0, 1}


def test_unequal_engines_are_compared_by_one_quantity(ready: Cluster, run: Run) -> None:
    """GPU time for some and wall time for others would make stragglers of the latter."""
    from dataclasses import replace

    timing = run(ready, "%cudatime --cluster -o -q torch.cuda._sleep(20_000_000)").value
    first, second = timing.engines
    slow = replace(first.timing.wall, all=(1.0,))
    rows = (
        replace(first, timing=replace(first.timing, wall=slow)),
        replace(second, timing=replace(second.timing, gpu=None, wall=slow)),
    )
    mixed = ClusterTiming(rows)
    assert set(mixed.seconds.values()) == {1.0}
    assert mixed.straggler is None


def test_another_clients_result_is_left_alone(ready: Cluster, run: Run) -> None:
    from gpumagic.cluster.cell_run import _CLIENT

    state = "__import__('gpumagic.cluster.engine', fromlist=['e'])._partial_results"
    ready.run(0, f"{state}.update({{'theirs': (1, None), {_CLIENT!r}: (0, 'late')}})")
    run(ready, "%cudatime --cluster -q 1")
    assert ready.value(0, state) == {"theirs": (1, None)}
    ready.run(0, f"{state}.clear()")


def test_where_the_time_went_on_each(ready: Cluster, run: Run) -> None:
    from dataclasses import replace

    from gpumagic.results import Kernel, KernelReport

    statement = "%cudatime --cluster -o --kernels -n 1 -r 2 -w 0 torch.cuda._sleep(1000)"
    timing = run(ready, statement).value
    assert [*timing.kernels] == [0, 1]
    report = KernelReport((Kernel("spin", 7, 0.001, 0.0, 0.0),), busy={0: 0.001}, window=0.002)
    one = replace(timing.engines[0].timing, kernels=report)
    few = ClusterTiming(tuple(replace(timing.engines[0], engine=i, timing=one) for i in range(2)))
    assert str(few).count("spin") == 2
    many = ClusterTiming(tuple(replace(timing.engines[0], engine=i, timing=one) for i in range(9)))
    assert str(many).count("spin") == 1
    assert "the kernels of the slowest engine" in str(many)


def test_why_there_are_no_kernels(two: Cluster, run: Run) -> None:
    ran = run(two, "%cudatime --cluster -o --kernels 1")
    assert not ran.value.kernels
    assert ran.value.notes == ("engines 0–1: no profile: torch is not imported",)
    assert "engines 0–1: no profile: torch is not imported" in ran.text


def test_only_some(ready: Cluster, run: Run) -> None:
    timing = run(ready, "%cudatime --cluster -t 1 -o -q 1 + 1").value
    assert [each.engine for each in timing.engines] == [1]


def test_output_streams_and_values_are_shown(two: Cluster, run: Run) -> None:
    ran = run(two, f"%%cudatime --cluster -q\n{ME}\nprint('from', engine)\nengine + 40")
    assert "[stdout:0] \nfrom 0" in ran.stdout
    assert "[stdout:1] \nfrom 1" in ran.stdout
    assert "Out[0:" in ran.text
    assert ": 41" in ran.text
    assert ran.value is None
    ran = run(two, f"%%cudatime --cluster -q\n{ME}\nengine + 40;")
    assert ": 41" not in ran.text


def test_results_go_where_the_options_say(two: Cluster, run: Run) -> None:
    ran = run(two, "%%cudatime --cluster -q -o\nx = 1")
    assert ran.text == ""
    assert isinstance(ran.value, ClusterTiming)
    ran = run(two, "%%cudatime --cluster\nx = 1")
    assert "over the engines" in ran.text
    assert ran.value is None
    assert "<table" in ran.html


def test_the_exception_of_one_engine(two: Cluster, run: Run) -> None:
    cell = f"%%cudatime --cluster -v timing\n{ME}\n1 / (1 - engine)"
    ran = run(two, cell, raising=False)
    assert type(ran.error).__name__ == "AlreadyDisplayedError"
    assert "ZeroDivisionError" in ran.stderr
    assert "1 / (1 - engine)" in ran.stderr  # its own traceback
    assert "engine 1: ZeroDivisionError: division by zero" in ran.text
    timing = run(two, "timing").value
    assert set(timing.per_engine) == {0, 1}
    assert timing.failed == {1: "ZeroDivisionError: division by zero"}
    assert timing.per_engine[1].partial
    assert not timing.per_engine[0].partial
    # What it took until the exception is no time of the cell.
    assert list(timing.seconds) == [0]
    assert timing.wall.all == (timing.per_engine[0].wall.median,)
    assert timing.slowest.engine == 0
    assert "1 (partial)" in ran.text


def test_a_syntax_error(two: Cluster, run: Run) -> None:
    ran = run(two, "%%cudatime --cluster -q\n1 +", raising=False)
    assert isinstance(ran.error, SyntaxError)
    assert "[stderr" not in ran.stdout  # it was found here: nothing was sent


def test_an_engine_killed_in_the_middle(cluster_of: Callable[..., Cluster], run: Run) -> None:
    cluster = cluster_of(2)
    cell = (
        f"%%cudatime --cluster -v timing\n{ME}\nimport os, signal, time\ntime.sleep(0.2)\n"
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


def once_begun(begun: Sequence[Path], then: Callable[[], object]) -> threading.Thread:
    """A thread that calls ``then`` once all files are there, which a cell has made."""

    def waits() -> None:
        wait_for(lambda: all(file.exists() for file in begun))
        then()

    thread = threading.Thread(target=waits)
    thread.start()
    return thread


def test_a_controller_that_goes_away(
    cluster_of: Callable[..., Cluster], run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gpumagic.cluster.cell_run._CHECK_PERIOD", 0.5)
    monkeypatch.setattr("gpumagic.cluster.cell_run._FAILED_CHECKS", 2)
    monkeypatch.setattr("gpumagic.cluster.connection.PATIENCE", 1.0)
    cluster = cluster_of(1)
    run(cluster, "%gpu cluster -q")
    killer = once_begun([tmp_path / "begun"], cluster.end_controller)
    cell = f"import time; open({str(tmp_path / 'begun')!r}, 'w').close(); time.sleep(60)"
    with pytest.raises(UsageError, match=r"the controller .* does not answer: has it ended\?"):
        run(cluster, f"%%cudatime --cluster\n{cell}")
    killer.join()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_reaches_the_engines(two: Cluster, run: Run, tmp_path: Path) -> None:
    run(two, "%gpu cluster -q")
    begun = [tmp_path / f"begun{engine}" for engine in (0, 1)]
    interrupt = once_begun(begun, lambda: os.kill(os.getpid(), signal.SIGINT))
    begin = f"open({str(tmp_path / 'begun')!r} + str(engine), 'w').close()"
    cell = f"%%cudatime --cluster -v timing\n{ME}\nimport time\n{begin}\ntime.sleep(1000)"
    ran = run(two, cell, raising=False)  # and ends long before that
    interrupt.join()
    assert isinstance(ran.error, KeyboardInterrupt)
    timing = run(two, "timing").value
    assert all(one.partial for one in timing.per_engine.values())
    assert {*timing.failed} == {0, 1}
    assert two.value(0, "1") == 1  # and they are free again


def test_an_engine_without_torch(two: Cluster, run: Run) -> None:
    two.run(1, "import sys; sys.modules['torch'] = None")
    timing = run(two, "%cudatime --cluster -o -q sum(range(1000))").value
    assert timing.gpu is None
    assert set(timing.per_engine) == {0, 1}
    assert timing.per_engine[1].gpu_note is not None
    assert str(timing).count("–") > 2
    memory = run(two, "%gpumem --cluster -o -q 1").value
    assert memory.per_engine[1].error is not None
    with pytest.raises(UsageError, match=r"engine 1: torch cannot be imported .* no process group"):
        run(two, "%gpu dist init")


def test_gpu_off_on_one(two: Cluster, run: Run) -> None:
    run(two, "%gpu off --cluster -t 1 -q")
    two.run(0, READY)
    cell = (
        "%%cudatime --cluster -o\nimport torch\n"
        "if torch.cuda.is_available():\n    torch.cuda._sleep(9)"
    )
    timing = run(two, cell).value
    assert timing.per_engine[0].gpu is not None
    assert timing.per_engine[1].gpu is None
    assert len(timing.gpu.all) == 1
    assert len(timing.wall.all) == 2


def test_a_result_too_large(ready: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumagic.cluster.rpc.LARGEST", 2000)
    timing = run(ready, "%cudatime --cluster -o -n 1 -r 200 torch.cuda._sleep(1)").value
    assert not timing.per_engine
    assert all("its result is too large to fetch" in reason for reason in timing.failed.values())


# --- memory ------------------------------------------------------------------------------------


def test_memory_of_each(ready: Cluster, run: Run) -> None:
    cell = (
        f"%%gpumem --cluster -v memory\n{ME}\n"
        "big = torch.empty((1 + engine) * 2**20, dtype=torch.uint8, device='cuda')\n"
        "gone = torch.empty(3 * 2**20, dtype=torch.uint8, device='cuda')\n"
        "del gone"
    )
    ran = run(ready, cell)
    memory = run(ready, "memory").value
    assert isinstance(memory, ClusterMemory)
    for engine, delta in memory.per_engine.items():
        assert delta.devices[0].allocated == (1 + engine) * 2**20
        assert delta.devices[0].peak == (4 + engine) * 2**20
    assert memory.peak == {0: 4 * 2**20, 1: 5 * 2**20}
    assert memory.highest.engine == 1
    assert "highest peak: +5.00 MiB at engine 1" in ran.text
    line = run(ready, "%gpumem --cluster -o -q more = torch.empty(256, device='cuda')").value
    assert line.peak == {0: 1024, 1: 1024}


def test_memory_when_one_runs_out(ready: Cluster, run: Run) -> None:
    cell = (
        f"%%gpumem --cluster -v memory\n{ME}\n"
        "x = torch.empty((100 if engine else 1) * 2**30, dtype=torch.uint8, device='cuda')"
    )
    ran = run(ready, cell, raising=False)
    assert "OutOfMemoryError" in ran.stderr
    memory = run(ready, "memory").value
    assert memory.per_engine[1].partial
    assert memory.per_engine[1].devices[0].ooms == 1
    assert memory.failed[1].startswith("OutOfMemoryError")


def test_from_a_script(ready: Cluster, capsys: Any) -> None:
    from gpumagic import cluster

    engines = cluster.connect(ready.client)
    assert len(cluster.devices(engines)) == 2
    timing = cluster.cudatime(engines, "torch.cuda._sleep(5_000_000)")
    assert 0.98 * 0.005 <= timing.gpu.best <= timing.wall.worst
    assert cluster.gpumem(engines, "y = torch.empty(128, device='cuda')").peak == {0: 512, 1: 512}
    assert cluster.choose(engines, "off").too_late == (0, 1)
    assert cluster.pin(engines, [0]).too_late == ()
