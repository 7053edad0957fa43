"""A cell on all engines, each with its own timer and its own memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.results import (
    ClusterMemory,
    ClusterTiming,
)
from tests.cluster.conftest import ENGINE_ID, INITIALISE_CUDA
from tests.support.clusters import Cluster
from tests.support.shells import Ran
from tests.virtual_gpu import World

Run = Callable[..., Ran]


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
    assert timing.per_engine[1].per_device[0].median == timing.gpu.worst
    assert timing.slowest.engine == 1
    assert timing.straggler.engine == 1
    assert timing.elapsed >= 0.8
    assert not timing.barrier
    assert "straggler: engine 1 on " in ran.text
    assert re.search(r"took 1\.[2-9]× the median", ran.text)
    assert not timing.failed
    frame = timing.to_pandas()
    assert list(frame.index) == [0, 1]
    assert frame.gpu_time[1] == timing.gpu.worst
    # The names that the cell made stay there; ours does not.
    assert cuda_engines.value(1, "engine") == 1
    assert cuda_engines.value(1, "[n for n in globals() if 'gpumagic' in n]") == []


def test_repeated(cuda_engines: Cluster, run: Run) -> None:
    timing = run(
        cuda_engines, "%cudatime --cluster -o -q -n 5 -r 3 torch.cuda._sleep(9_000_000)"
    ).value
    for one in timing.per_engine.values():
        assert (one.loops, one.repeat) == (5, 3)
        assert 0.98 * 0.009 <= one.gpu.median <= one.wall.median
        assert one.bound == "gpu"
    setup = "%%cudatime --cluster -o -q -n 2 -r 2 cycles = 2_000_000\ntorch.cuda._sleep(cycles)"
    assert run(cuda_engines, setup).value.gpu.best >= 0.98 * 0.002
    assert not run(cuda_engines, "%%cudatime --cluster -o -q -n 2 -r 2 -- -3\n1").value.failed
    with pytest.raises(UsageError, match="--barrier: these engines are not all the ranks"):
        run(cuda_engines, "%cudatime --cluster --barrier 1")


def test_host_bound_ranks_are_named(cuda_engines: Cluster, run: Run, engines_gpus: World) -> None:
    """A launch takes the host a hundred times as long as the GPU on one, the reverse on the other.

    A delayed host makes the one no less host-bound, and the other's GPU has so much work that the
    host would have to be delayed by 100 ms in most of five runs.
    """
    engines_gpus.set_launch_cost(300e-6)
    cell = (
        f"%%cudatime --cluster -o -n 5 -r 5\n{ENGINE_ID}\n"
        "torch.cuda._sleep(40_000_000 if engine else 1)\n"
        "for _ in range(20 * (1 - engine)): ones.add_(1)"
    )
    run(cuda_engines, "%%cudatime --cluster -q\nones = torch.ones(8, device='cuda')")
    ran = run(cuda_engines, cell)
    assert ran.value.host_bound == (0,)
    assert "host-bound, the GPU waits for work to be launched: engine 0" in ran.text


@pytest.mark.parametrize("options", ["-vtiming", "-qvtiming", "-t0:2 -v timing"])
def test_options_however_they_are_written(two_engines: Cluster, run: Run, options: str) -> None:
    run(two_engines, "timing = None")
    run(two_engines, f"%%cudatime --cluster {options}\nx = 1")
    timing = run(two_engines, "timing").value
    assert set(timing.per_engine) == {0, 1}
    assert not timing.failed
    assert two_engines.value(0, "'timing' in globals()") is False


def test_a_statement_that_begins_with_a_minus_sign(two_engines: Cluster, run: Run) -> None:
    timing = run(two_engines, "%cudatime --cluster -o -q -- -3 + 4").value
    assert not timing.failed
    assert set(run(two_engines, "%gpumem --cluster -o -q -- -3 + 4").value.per_engine) == {0, 1}


def test_unequal_engines_are_compared_by_one_quantity(cuda_engines: Cluster, run: Run) -> None:
    """GPU time for some and wall time for others would make stragglers of the latter."""
    from dataclasses import replace

    timing = run(cuda_engines, "%cudatime --cluster -o -q torch.cuda._sleep(20_000_000)").value
    first, second = timing.engines
    slow = replace(first.timing.wall, all=(1.0,))
    rows = (
        replace(first, timing=replace(first.timing, wall=slow)),
        replace(second, timing=replace(second.timing, gpu=None, wall=slow)),
    )
    mixed = ClusterTiming(rows)
    assert set(mixed.seconds.values()) == {1.0}
    assert mixed.straggler is None


def test_where_the_time_went_on_each(cuda_engines: Cluster, run: Run) -> None:
    from dataclasses import replace

    from gpumagic.results import Kernel, KernelReport

    statement = "%cudatime --cluster -o --kernels -n 1 -r 2 -w 0 torch.cuda._sleep(1000)"
    timing = run(cuda_engines, statement).value
    assert [*timing.kernels] == [0, 1]
    report = KernelReport((Kernel("spin", 7, 0.001, 0.0, 0.0),), busy={0: 0.001}, window=0.002)
    one = replace(timing.engines[0].timing, kernels=report)
    few = ClusterTiming(tuple(replace(timing.engines[0], engine=i, timing=one) for i in range(2)))
    assert str(few).count("spin") == 2
    many = ClusterTiming(tuple(replace(timing.engines[0], engine=i, timing=one) for i in range(9)))
    assert str(many).count("spin") == 1
    assert "kernels of the slowest engine" in str(many)


def test_why_there_are_no_kernels(two_engines: Cluster, run: Run) -> None:
    ran = run(two_engines, "%cudatime --cluster -o --kernels 1")
    assert not ran.value.kernels
    assert ran.value.notes == ("engines 0–1: no profile: torch is not imported",)
    assert "engines 0–1: no profile: torch is not imported" in ran.text


def test_some_engines_only(cuda_engines: Cluster, run: Run) -> None:
    timing = run(cuda_engines, "%cudatime --cluster -t 1 -o -q 1 + 1").value
    assert [each.engine for each in timing.engines] == [1]


def test_results_go_where_the_options_say(two_engines: Cluster, run: Run) -> None:
    ran = run(two_engines, "%%cudatime --cluster -q -o\nx = 1")
    assert ran.text == ""
    assert isinstance(ran.value, ClusterTiming)
    ran = run(two_engines, "%%cudatime --cluster\nx = 1")
    assert "Over the engines" in ran.text
    assert ran.value is None
    assert "<table" in ran.html


def test_an_engine_without_torch(two_engines: Cluster, run: Run) -> None:
    two_engines.run(1, "import sys; sys.modules['torch'] = None")
    timing = run(two_engines, "%cudatime --cluster -o -q sum(range(1000))").value
    assert timing.gpu is None
    assert set(timing.per_engine) == {0, 1}
    assert timing.per_engine[1].gpu_note is not None
    assert str(timing).count("–") > 2
    memory = run(two_engines, "%gpumem --cluster -o -q 1").value
    assert memory.per_engine[1].error is not None
    with pytest.raises(UsageError, match=r"engine 1: torch cannot be imported .* no process group"):
        run(two_engines, "%gpu dist init")


def test_gpu_off_on_one(two_engines: Cluster, run: Run) -> None:
    run(two_engines, "%gpu off --cluster -t 1 -q")
    two_engines.run(0, INITIALISE_CUDA)
    cell = (
        "%%cudatime --cluster -o\nimport torch\n"
        "if torch.cuda.is_available():\n    torch.cuda._sleep(300_000_000)"
    )
    timing = run(two_engines, cell).value
    assert timing.per_engine[0].gpu is not None
    assert timing.per_engine[1].gpu is None
    assert len(timing.gpu.all) == 1
    assert len(timing.wall.all) == 2


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
        assert delta.devices[0].peak == (4 + engine) * 2**20
    assert memory.peak == {0: 4 * 2**20, 1: 5 * 2**20}
    assert memory.highest.engine == 1
    assert "highest peak: +5.00 MiB at engine 1" in ran.text
    line = run(cuda_engines, "%gpumem --cluster -o -q more = torch.empty(256, device='cuda')").value
    assert line.peak == {0: 1024, 1: 1024}


def test_memory_when_one_runs_out(cuda_engines: Cluster, run: Run) -> None:
    cell = (
        f"%%gpumem --cluster -v memory\n{ENGINE_ID}\n"
        "x = torch.empty((100 if engine else 1) * 2**30, dtype=torch.uint8, device='cuda')"
    )
    ran = run(cuda_engines, cell, raising=False)
    assert "OutOfMemoryError" in ran.stderr
    memory = run(cuda_engines, "memory").value
    assert memory.per_engine[1].partial
    assert memory.per_engine[1].devices[0].ooms == 1
    assert memory.failed[1].startswith("OutOfMemoryError")


def test_from_a_script(cuda_engines: Cluster, capsys: Any) -> None:
    from gpumagic import cluster

    engines = cluster.connect(cuda_engines.client)
    assert len(cluster.devices(engines)) == 2
    timing = cluster.cudatime(engines, "torch.cuda._sleep(5_000_000)")
    assert 0.98 * 0.005 <= timing.gpu.best <= timing.wall.worst
    assert cluster.gpumem(engines, "y = torch.empty(128, device='cuda')").peak == {0: 512, 1: 512}
    assert cluster.choose(engines, "off").too_late == (0, 1)
    assert cluster.pin(engines, [0]).too_late == ()
