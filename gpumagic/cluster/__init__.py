"""From one kernel to many machines, over ipyparallel's engines.

ipyparallel starts the engines, carries the messages and brings the output back; here is only what
is said over it. From a script::

    from gpumagic import cluster

    engines = cluster.connect("default")         # a profile, a connection file, or a Client
    print(cluster.devices(engines))
    cluster.pin(engines)
    timing = cluster.cudatime(engines, "model(x)")

`connection` finds the cluster; `rpc` calls a function of `engine` on every engine; `selection`
lists the engines' devices and assigns them, as `assignment` plans it; `execution` runs a cell under
a magic on all of them; `process_group` makes a process group of them, of which `distributed` is the
part on the engines; `engine_restart` restarts an engine in place.
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
