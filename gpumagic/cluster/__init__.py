"""From one kernel to many machines, over ipyparallel's engines.

ipyparallel starts the engines, carries the messages and brings the output back; here is only what
is said over it. From a script::

    from gpumagic import cluster

    engines = cluster.connect("default")         # a profile, a connection file, or a Client
    print(cluster.devices(engines))
    cluster.pin(engines)
    timing = cluster.cudatime(engines, "model(x)")

`connecting` finds the cluster, `asking` puts one question to every engine, `remote` answers there,
`choosing` looks at devices and gives them to engines, as `pinning` plans it, `running` runs a cell
under a magic on all of them, `grouping` makes a process group of them, by the `ranks` there, and
`successor` is an engine restarted in place.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.cluster.choosing import choose, devices, pin
    from gpumagic.cluster.connecting import Cluster, connect
    from gpumagic.cluster.grouping import end_group, group, init_group
    from gpumagic.cluster.running import cudatime, gpumem

_HOMES = {
    **dict.fromkeys(("Cluster", "connect"), "connecting"),
    **dict.fromkeys(("choose", "devices", "pin"), "choosing"),
    **dict.fromkeys(("group", "init_group", "end_group"), "grouping"),
    **dict.fromkeys(("cudatime", "gpumem"), "running"),
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
