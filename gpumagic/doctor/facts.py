"""Read the data that the doctor judges, once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path

from gpumagic.cuda import (
    devices,
    driver,
    failure,
    init_trace,
    machine,
    nvml,
    probe,
    torch_cuda,
    visible_devices,
)
from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.probe import Build, Start
from gpumagic.cuda.process_state import STATE
from gpumagic.doctor import system
from gpumagic.doctor.system import Toolkit
from gpumagic.errors import DeviceError
from gpumagic.results import DeviceTable
from gpumagic.selection import cpu_threads, gate
from gpumagic.selection.cpu_threads import Cores

#: The packages that provide, or have provided, a module named pynvml.
NVML_PACKAGES = ("nvidia-ml-py", "pynvml", "nvidia-ml-py3")


@dataclass(frozen=True)
class Package:
    """An installed package that provides, or may provide, the module ``pynvml``."""

    name: str
    version: str
    #: Whether the package lists the module's file.
    owns_module: bool


@dataclass(frozen=True)
class Facts:
    """Facts about the machine, torch and this process."""

    build: Build
    #: Whether torch is loaded in this process; else a child process has imported it.
    torch_loaded: bool
    start: Start
    table: DeviceTable
    state: DriverState
    driver_installed: bool
    driver_cuda: tuple[int, int] | None = None
    #: Version of the driver's kernel module.
    kernel_module: str | None = None
    #: Version of the driver's libraries, from the file name of NVML.
    library: str | None = None
    nvml_error: str | None = None
    nvml_code: int | None = None
    packages: tuple[Package, ...] = ()
    module_file: str | None = None
    toolkit: Toolkit | None = None
    #: Name and permission (may read and write) of each device file.
    device_files: Mapping[str, bool] = field(default_factory=dict)
    #: The evidence that this is a container; empty if there is none.
    container: tuple[str, ...] = ()
    wsl: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_at_start: Mapping[str, str] = field(default_factory=dict)
    #: The environment when CUDA was initialised; None if that was not observed.
    environment_at_init: Mapping[str, str] | None = None
    #: The settings that torch's allocator has read; None if it does not report them.
    allocator_settings: str | None = None
    #: Where CUDA was initialised, for the user; None if that was not observed.
    initialized_at: str | None = None
    gate: str | None = None
    gate_allows: tuple[int, ...] = ()
    bad_fork: bool = False
    #: What has destroyed this process's CUDA context, as a clause; None if nothing has.
    context_failure: str | None = None
    threads: int | None = None
    cores: Cores = field(default_factory=lambda: Cores(1, 1))


def gather() -> Facts:
    """Return the facts; neither initialises CUDA nor imports torch in this process."""
    state = driver.state()
    table = devices.devices(processes=False)
    build, start = _torch(state)
    closed, location = gate.current(), init_trace.location()
    nvml_error, nvml_code = _nvml()
    return Facts(
        build=build,
        torch_loaded=torch_cuda.loaded() is not None,
        start=start,
        table=table,
        state=state,
        driver_installed=driver.installed(),
        driver_cuda=table.cuda_version or driver.cuda_version(),
        kernel_module=machine.kernel_module(),
        library=_library(),
        nvml_error=nvml_error,
        nvml_code=nvml_code,
        packages=_packages(),
        module_file=_module_file(),
        toolkit=system.toolkit(),
        device_files=system.device_files(),
        container=system.container(),
        wsl=system.wsl(),
        environment=dict(os.environ),
        environment_at_start=dict(STATE.started_with),
        environment_at_init=init_trace.environment_then(),
        allocator_settings=torch_cuda.allocator_settings(),
        initialized_at=None if location is None else str(location),
        gate=None if closed is None else closed.spec,
        gate_allows=() if closed is None else closed.allowed,
        bad_fork=torch_cuda.in_bad_fork(),
        context_failure=failure.check_context(),
        threads=cpu_threads.number(),
        cores=cpu_threads.cores(),
    )


def _torch(state: DriverState) -> tuple[Build, Start]:
    """Return torch's build, and how CUDA starts: in this process only if it is initialised here."""
    here = probe.build_here()
    if here is None:
        return probe.in_child(_same_devices(state))
    if torch_cuda.in_bad_fork():
        return here, Start(count=0)
    if state.initialized:
        return here, probe.start_here()
    return here, probe.in_fork()


def _same_devices(state: DriverState) -> dict[str, str]:
    """Return variables with which a child process sees this process's devices."""
    if not state.initialized or state.uuids is None:
        return {}
    return {visible_devices.MASK: ",".join(state.uuids) or visible_devices.HIDE_ALL}


def _nvml() -> tuple[str | None, int | None]:
    try:
        nvml.session()
    except DeviceError as error:
        return str(error), getattr(error.__cause__, "value", None)
    return None, None


def _library() -> str | None:
    """Return the version of the NVML library that this process has loaded, from its file name."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"/libnvidia-ml\.so\.(\d{3,}(?:\.\d+)+)", maps)
    return match[1] if match else None


def _packages() -> tuple[Package, ...]:
    found = []
    for name in NVML_PACKAGES:
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        files = {str(path) for path in package.files or ()}
        owns = bool(files & {"pynvml.py", "pynvml/__init__.py"})
        found.append(Package(name, package.version, owns))
    return tuple(found)


def _module_file() -> str | None:
    try:
        spec = util.find_spec("pynvml")
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin
