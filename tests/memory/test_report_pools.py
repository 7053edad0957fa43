"""The report's own lines: graphs' pools, MemPools, fragmentation and pinned host memory."""

from __future__ import annotations

import gc
import warnings
from types import ModuleType

from gpumagic.memory.report import memory_report
from tests.support.allocator import MIB, empty


def test_fragmentation(torch: ModuleType) -> None:
    kept = [empty(torch, 2 * MIB) for _ in range(10)][::2]  # holes of 2 MiB in one segment
    row = memory_report().devices[0]
    assert row.fragmented == torch.cuda.memory_stats()["inactive_split_bytes.all.current"]
    assert row.fragmented == 10 * MIB
    assert "Fragmentation" not in str(memory_report())  # less than 1 % of the device
    del kept


def test_pools(torch: ModuleType) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        mine = empty(torch, MIB)
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph is empty
        with torch.cuda.graph(graph):
            its = empty(torch, 30 * MIB)
    report = memory_report()
    assert report.devices[0].mem_pools == 2 * MIB
    assert report.devices[0].graph_pools == 30 * MIB
    assert report.devices[1].mem_pools == report.devices[1].graph_pools == 0
    assert "CUDA graphs' pools, of reserved: cuda:0 30.0 MiB" in str(report)
    assert "MemPools and pools shared by graphs, of reserved: cuda:0 2.00 MiB" in str(report)
    del mine, its
    graph.reset()
    del pool, graph


def test_a_pool_that_graphs_share(torch: ModuleType) -> None:
    """torch lists it by a handle that looks like a MemPool's: the note names both."""
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph is empty
        with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
            its = empty(torch, 30 * MIB)
    report = memory_report()
    assert (report.devices[0].graph_pools, report.devices[0].mem_pools) == (0, 30 * MIB)
    assert "MemPools and pools shared by graphs, of reserved: cuda:0 30.0 MiB" in str(report)
    del its
    graph.reset()


def test_pinned_memory(torch: ModuleType) -> None:
    gc.collect()  # pinned memory that an earlier test left
    # torch notices with the next request for some that copies from it have ended.
    torch.cuda.synchronize()
    torch.empty(1, dtype=torch.uint8, pin_memory=True)
    report = memory_report()
    if not hasattr(torch._C, "_cuda_hostMemoryStats"):
        assert report.pinned is None
        assert "Pinned host memory: – (not counted by this torch)" in str(report)
        return
    before, active = report.pinned, report.pinned_active
    assert before is not None
    assert active is not None
    kept = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    report = memory_report()
    # Rounded to a power of two; the cache may have had it.
    assert report.pinned_active == active + 4 * MIB
    assert report.pinned in (before, before + 4 * MIB)
    assert "by live tensors" in str(report)
    del kept
