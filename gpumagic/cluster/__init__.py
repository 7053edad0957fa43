"""The GPUs of many machines from one kernel, by ipyparallel's engines.

ipyparallel starts the engines, and carries messages and output. From a script::

    from gpumagic import cluster

    engines = cluster.connect("default")         # a profile's name, or a Client
    print(cluster.devices(engines))
    cluster.pin(engines)
    timing = cluster.cudatime(engines, "model(x)")

`connection` finds the cluster, `engine` has what runs on an engine, `calls` calls it there,
`selection` lists and chooses the engines' GPUs, `cells` measures a cell on all of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.cluster.cells import cudatime, gpumem
    from gpumagic.cluster.connection import Cluster, connect
    from gpumagic.cluster.selection import choose, devices, pin

_HOMES = {
    **dict.fromkeys(("Cluster", "connect"), "connection"),
    **dict.fromkeys(("choose", "devices", "pin"), "selection"),
    **dict.fromkeys(("cudatime", "gpumem"), "cells"),
}

__all__ = ["Cluster", "choose", "connect", "cudatime", "devices", "gpumem", "pin"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: engines need none of them."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
