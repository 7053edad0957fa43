"""Which private pools of torch's allocator are used."""

from __future__ import annotations

import warnings
from typing import Any

from gpumagic.cuda import allocator, torch_cuda
from tests.support.allocator import torch
from tests.support.parking import needs_parking

__all__ = ["torch"]
pytestmark = needs_parking  # asked only then


def pools() -> set[tuple[int, tuple[int, int]]]:
    return {
        (segment["device"], segment["segment_pool_id"])
        for segment in torch_cuda.memory_snapshot()
        if segment["segment_pool_id"] != (0, 0)
    }


def test_a_pool_is_used_as_long_as_its_object_lives(torch: Any) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(100, device="cuda")
        assert allocator.is_used(0, pool.id)
        inside = pool.use_count()
        assert allocator.is_used(0, pool.id)
        assert pool.use_count() == inside  # asked without being counted
    before = pool.use_count()
    assert allocator.is_used(0, pool.id)
    assert pool.use_count() == before
    # It allocates as before.
    outside = torch.empty(100, device="cuda")
    assert pools() == {(0, pool.id)}
    number = pool.id
    del pool
    assert pools() == {(0, number)}
    assert not allocator.is_used(0, number)
    del tensor, outside


def test_graphs_are_counted_from_capture_to_reset(torch: Any) -> None:
    class Graph(torch.cuda.CUDAGraph):  # type: ignore[misc]
        def pool(self) -> Any:
            raise AssertionError("the user's code was run")

    graph, tensor = Graph(), torch.ones(10).to("cuda")
    assert allocator.captured_graphs() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.cuda.graph(graph):
            tensor.add_(1)
    assert allocator.captured_graphs() == 1
    graph.reset()
    assert allocator.captured_graphs() == 0
