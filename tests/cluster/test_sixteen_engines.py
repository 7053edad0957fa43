"""Sixteen engines on loopback."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.clusters import Cluster
from tests.support.shells import Ran
from tests.virtual_gpu import Scenario

N = 16


def test_sixteen_engines(cluster_of: Callable[..., Cluster], run: Callable[..., Ran]) -> None:
    cluster = cluster_of(N, Scenario(devices=N))
    ran = run(cluster, "table = %gpu cluster -o")
    assert "0–15 as cuda:0" in ran.text
    table = run(cluster, "table").value
    assert [each.engine for each in table] == list(range(N))
    assert not table.silent
    assert {len(each.table) for each in table} == {N}

    chosen = run(cluster, "%gpu pin -o -q").value
    assert {each.selection.status for each in chosen} == {"applied"}
    seen = [each.selection.devices[0].uuid for each in chosen]
    assert [len(each.selection.devices) for each in chosen] == [1] * N
    assert len({*seen}) == N  # no two engines have the same
    assert [each.selection.devices[0].index for each in chosen] == list(range(N))

    cell = "%%cudatime --cluster -o\nimport time\ntime.sleep(0.02 if engine_id < 15 else 3)"
    for engine in range(N):
        cluster.run(engine, "engine_id = get_ipython().kernel.engine_id")
    ran = run(cluster, cell)
    timing = ran.value
    assert len(timing.per_engine) == N
    assert timing.slowest.engine == 15
    assert timing.straggler.engine == 15
    assert timing.wall.best >= 0.02
    assert timing.wall.worst >= 3
    assert "straggler: engine 15 on" in ran.text
    some = run(cluster, "%cudatime --cluster -t ::4 -o -q 1").value
    assert [each.engine for each in some.engines] == [0, 4, 8, 12]
