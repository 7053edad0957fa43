"""The facts that the checks judge; each is read when a check first needs it."""

from __future__ import annotations

from functools import cached_property

from gpumagic.cuda import device_table, driver, init_failure, probe, processes, visible_devices
from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.probe import Start
from gpumagic.cuda.pytorch import build, torch_cuda
from gpumagic.cuda.pytorch.build import Build
from gpumagic.results.devices import DeviceTable
from gpumagic.system import system_files


class Facts:
    """Facts about the machine, torch and this process; ``known`` ones are not read.

    Neither initialises CUDA nor imports torch in this process.
    """

    def __init__(self, **known: object) -> None:
        vars(self).update(known)

    @cached_property
    def state(self) -> DriverState:
        """The state of the driver in this process."""
        init_failure.has_failed(self.table)  # of which the driver knows nothing
        return driver.state()

    @property
    def started(self) -> bool:
        """Whether CUDA has started in this process, or failed to: it reads no variable again."""
        return bool(self.state.initialized or self.state.failed)

    @property
    def restart(self) -> str:
        """The option with which a choice takes effect; empty where it needs none."""
        return " --restart" if self.started else ""

    @cached_property
    def table(self) -> DeviceTable:
        """The devices."""
        return device_table.read(usage=True)

    @cached_property
    def torch_loaded(self) -> bool:
        """Whether torch is loaded in this process; else a child process imports it."""
        return torch_cuda.loaded() is not None

    @cached_property
    def _child(self) -> tuple[Build, Start]:
        """What a child process, which sees the devices that this one sees, finds out."""
        seen = {}
        if self.state.initialized and self.state.uuids is not None:
            uuids = ",".join(self.state.uuids)
            seen = {visible_devices.MASK: uuids or visible_devices.HIDE_ALL}
        return probe.in_child(seen)

    @cached_property
    def build(self) -> Build:
        """torch's build."""
        return build.here() or self._child[0]

    @cached_property
    def start(self) -> Start:
        """How CUDA starts: in this process only if it is initialised here."""
        if not self.torch_loaded:
            return self._child[1]
        if torch_cuda.in_bad_fork():
            return Start(count=0)
        return probe.in_fork()

    @cached_property
    def driver_cuda(self) -> tuple[int, int] | None:
        """The newest CUDA version that the driver supports."""
        return driver.cuda_version()

    @cached_property
    def container(self) -> bool:
        """Whether this is probably a container."""
        files = ("/.dockerenv", "/run/.containerenv")
        signs = any(system_files.at(path).exists() for path in files)
        return signs or not processes.in_first_pid_namespace()

    @property
    def torch_in(self) -> str:
        """The process in which torch was examined, as a part of a sentence."""
        return "this process" if self.torch_loaded else "a child process"
