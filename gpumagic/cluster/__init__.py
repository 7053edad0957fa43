"""The GPUs of many machines from one kernel, by ipyparallel's engines.

ipyparallel starts the engines, and carries messages and output. From a script::

    from gpumagic import cluster

    engines = cluster.connect("default")         # a profile's name, or a Client
    print(cluster.devices(engines))
    cluster.pin(engines)
    timing = cluster.cudatime(engines, "model(x)")

`connection` finds the cluster, `engine` has what runs on an engine, `calls` calls it there;
`selection` lists and chooses the engines' GPUs, `cells` measures a cell on all of them.
"""

from gpumagic.cluster.cells import cudatime, gpumem
from gpumagic.cluster.connection import Cluster, connect
from gpumagic.cluster.selection import choose, devices, pin

__all__ = ["Cluster", "choose", "connect", "cudatime", "devices", "gpumem", "pin"]
