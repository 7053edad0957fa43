"""The CUDA graphs that use torch's allocator."""

from __future__ import annotations

import warnings
from typing import Any

from gpumagic.cuda import allocator
from tests.support.allocator import torch
from tests.support.parking import needs_parking

__all__ = ["torch"]
pytestmark = needs_parking  # asked only then


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
