"""The GPUs of many machines from one kernel, by ipyparallel's engines.

ipyparallel starts the engines, and carries messages and output. From a script::

    from gpumagic import cluster

    engines = cluster.connect("default")         # a profile, a connection file, or a Client
    print(cluster.devices(engines))
    cluster.pin(engines)
    timing = cluster.cudatime(engines, "model(x)")

`connection` connects to a cluster, by a file that `connection_file` checks; `rpc` calls a function
of `engine` on every engine; `selection` lists and selects the engines' devices, as `assignment`
plans it; `execution` times and measures a cell, which `cell_plan` describes and `cell_run` runs on
all engines; `process_group` makes them a process group, of which `distributed` is the part on the
engines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.cluster.connection import Cluster, connect
    from gpumagic.cluster.execution import cudatime, gpumem
    from gpumagic.cluster.process_group import end_group, group, init_group
    from gpumagic.cluster.selection import choose, devices, pin

_HOMES = {
    **dict.fromkeys(("Cluster", "connect"), "connection"),
    **dict.fromkeys(("choose", "devices", "pin"), "selection"),
    **dict.fromkeys(("group", "init_group", "end_group"), "process_group"),
    **dict.fromkeys(("cudatime", "gpumem"), "execution"),
}

__all__ = [
    "Cluster",
    "choose",
    "connect",
    "cudatime",
    "devices",
    "end_group",
    "gpumem",
    "group",
    "init_group",
    "pin",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: engines need none of them."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
