"""Private pools of torch's allocator: whether a CUDA graph, a MemPool or other code uses them.

torch frees the memory of a pool that nothing uses any more only when the cache is emptied, and
tensors allocated in it may live on: segments of a pool do not show that it is used.
"""

from __future__ import annotations

import gc
from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.system import introspection

_BEGIN, _END = "_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool"


def captured_graphs() -> int:
    """Return the number of ``torch.cuda.CUDAGraph`` objects that have captured something."""
    base = cast(Any, torch_cuda.loaded())._C._CUDAGraph
    things = gc.get_objects()
    # By `id`: the hash of a type may be the user's code.
    kinds = {id(type(each)): type(each) for each in things}
    graphs = {number for number, kind in kinds.items() if introspection.derives(kind, base)}
    if not graphs:
        return 0
    return sum(_has_captured(base, each) for each in things if id(type(each)) in graphs)


def _has_captured(base: Any, graph: Any) -> bool:
    """Return whether a graph was captured, and not reset since."""
    try:
        base.pool(graph)
    except RuntimeError:
        return False
    return True


def is_used(ordinal: int, pool: tuple[int, int]) -> bool:
    """Return whether anything uses a private pool: a CUDA graph, a MemPool, code that allocates.

    torch reports no pool's number of users; but it refuses to allocate in a pool without any.
    """
    functions: Any = torch_cuda.c_functions()
    try:
        getattr(functions, _BEGIN)(ordinal, pool)
    except RuntimeError as error:
        if "use_count" in str(error):
            return False
        # Some thread allocates in it now. The call that failed has counted itself as a user.
        if "already recording" not in str(error):
            return True
    else:
        getattr(functions, _END)(ordinal, pool)
    functions._cuda_releasePool(ordinal, pool)
    return True
