"""The modules that run the magics; each is imported when it is first needed."""

from __future__ import annotations

from typing import Any


def command_module(name: str) -> Any:
    """Return the module with ``help_text()`` and ``run()`` of a magic."""
    if name == "gpu":
        from gpumagic.magics.gpu import command as gpu

        return gpu
    if name == "cudatime":
        from gpumagic.magics.cudatime import command as cudatime

        return cudatime
    from gpumagic.magics.gpumem import command as gpumem

    return gpumem
