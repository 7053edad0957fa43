"""The modules that parse the lines of the magics; each is imported when it is first needed."""

from __future__ import annotations

from typing import Any


def options_module(name: str) -> Any:
    """Return the module with ``parser()`` of a magic, and ``verb_parser(verb)`` of its verbs.

    It imports nothing that measures, restarts or draws: completion needs it at a key press.
    """
    if name == "gpu":
        from gpumagic.magics.gpu import options as gpu

        return gpu
    if name == "cudatime":
        from gpumagic.magics.cudatime import options as cudatime

        return cudatime
    from gpumagic.magics.gpumem import options as gpumem

    return gpumem
