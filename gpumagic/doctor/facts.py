"""What several checks are about, read once; a check reads itself what it alone needs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from gpumagic.cuda import devices, driver, probe, torch_cuda, visible_devices
from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.probe import Build, Start
from gpumagic.results.devices import DeviceTable
from gpumagic.system import system_files


@dataclass(frozen=True)
class Facts:
    """Facts about the machine, torch and this process."""

    build: Build
    start: Start
    table: DeviceTable
    state: DriverState
    #: Whether torch is loaded in this process; else a child process has imported it.
    torch_loaded: bool = True
    #: The newest CUDA version that the driver supports.
    driver_cuda: tuple[int, int] | None = None
    #: The evidence that this is a container; empty if there is none.
    container: tuple[str, ...] = ()

    @property
    def torch_in(self) -> str:
        """The process that torch was looked at in."""
        return "this process" if self.torch_loaded else "a child process"


def gather() -> Facts:
    """Return the facts; neither initialises CUDA nor imports torch in this process."""
    state, table = driver.state(), devices.devices(processes=False)
    build, start = _torch(state)
    return Facts(
        build=build,
        start=start,
        table=table,
        state=state,
        torch_loaded=torch_cuda.loaded() is not None,
        driver_cuda=table.cuda_version or driver.cuda_version(),
        container=_container(),
    )


def _torch(state: DriverState) -> tuple[Build, Start]:
    """Return torch's build, and how CUDA starts: in this process only if it is initialised here."""
    here = probe.build_here()
    if here is None:  # a child process, which sees the devices that this one sees
        seen = {}
        if state.initialized and state.uuids is not None:
            seen = {visible_devices.MASK: ",".join(state.uuids) or visible_devices.HIDE_ALL}
        return probe.in_child(seen)
    if torch_cuda.in_bad_fork():
        return here, Start(count=0)
    return here, probe.start_here() if state.initialized else probe.in_fork()


def _container() -> tuple[str, ...]:
    """Return the evidence that this is a container; empty if there is none."""
    if not sys.platform.startswith("linux"):
        return ()
    files = ("/.dockerenv", "/run/.containerenv")
    signs = [path for path in files if system_files.at(path).exists()]
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        signs.append("KUBERNETES_SERVICE_HOST is set")
    if not devices.in_first_pid_namespace():
        signs.append("a pid namespace of its own")
    return tuple(signs)
