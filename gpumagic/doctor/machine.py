"""Check the machine: the driver, its devices and files, NVML."""

from __future__ import annotations

import os
import sys

from gpumagic.cuda import driver as cuda_driver
from gpumagic.cuda import nvml
from gpumagic.doctor.diagnosis import Finding
from gpumagic.doctor.facts import Facts
from gpumagic.errors import DeviceError
from gpumagic.system import system_files
from gpumagic.wording import plural

_WITH_GPUS = (
    "start the container with its GPUs (docker run --gpus all), and where it sets "
    "NVIDIA_DRIVER_CAPABILITIES, with compute,utility"
)


def driver(facts: Facts) -> Finding:
    """Check that there is a driver."""
    module, library = cuda_driver.kernel_module(), cuda_driver.LIBRARY
    if cuda_driver.installed():
        version = facts.table.driver_version or module or "unknown version"
        major, minor = facts.driver_cuda or ("?", "?")
        return Finding("driver", "ok", f"{version}, for CUDA up to {major}.{minor}")
    evidence = f"{library} cannot be loaded"
    evidence += f", although kernel module {module} is loaded" if module else ""
    remedy = _WITH_GPUS if facts.container else "install the NVIDIA driver"
    if sys.platform == "darwin":
        evidence, remedy = "macOS has no CUDA", "use torch's device 'mps'"
    return Finding("driver", "bad", evidence, remedy, f"there is no NVIDIA driver: {evidence}")


def gpus(facts: Facts) -> Finding | None:
    """Check that the machine has GPUs, and that NVML can read each."""
    if not facts.table and facts.table.error is None:
        remedy = f"in a container: {_WITH_GPUS}; else check lspci"
        cause = "the machine, or the container, has no GPU"
        return Finding("GPUs", "bad", "NVML lists none", remedy, cause)
    broken = [f"GPU {device.index}: {device.unusable}" for device in facts.table if device.unusable]
    if not broken:
        return None
    usable = [str(d.index) for d in facts.table if not d.unusable and d.visible is not False]
    remedy_here = f"%gpu {','.join(usable)}{facts.restart}" if usable else None
    cause = "; ".join(broken)
    return Finding("GPUs", "bad", f"{cause} (NVML)", remedy_here, cause)


def device_files(facts: Facts) -> Finding | None:
    """Check that this process may open the driver's device files."""
    folder = system_files.at("/dev")
    named = (*folder.glob("nvidia*"), *folder.glob("dxg"))
    found = sorted(path for path in named if path.exists() and not path.is_dir())
    closed = [f"/dev/{path.name}" for path in found if not os.access(path, os.R_OK | os.W_OK)]
    names = ", ".join(f"/dev/{path.name}" for path in found)
    open_to_all = all(path.stat().st_mode & 0o006 == 0o006 for path in found)
    if closed and open_to_all:  # it is no matter of groups
        cause = f"this job, or container, may not open {', '.join(closed)} (a device cgroup)"
        remedy = "request these GPUs of the scheduler, or start the container with them"
        if facts.start.count:
            return Finding("device files", "ok", f"{names}; {cause}")
    elif closed:
        cause = f"this user may not read and write {', '.join(closed)}"
        remedy = f"become a member of the group that ls -l {closed[0]} shows, often video"
    elif facts.table and folder / "nvidiactl" in found and folder / "nvidia-uvm" not in found:
        cause, remedy = "there is no /dev/nvidia-uvm", "as root: nvidia-modprobe -u -c=0"
    else:
        return Finding("device files", "ok", f"{names} can be opened") if names else None
    return Finding("device files", "warn" if facts.start.count else "bad", cause, remedy, cause)


def works_with_nvml(facts: Facts) -> Finding | None:
    """Check that NVML works: CUDA does not need it, but the cause may affect CUDA too."""
    try:
        nvml.Session().close()
    except DeviceError as error:
        evidence, code = str(error), getattr(error.__cause__, "value", None)
    else:
        return Finding("NVML", "ok", f"lists {plural(len(facts.table), 'GPU')}")
    module = cuda_driver.kernel_module()  # in a container, the host's
    evidence += f" (kernel module: {module or 'not loaded'})"
    if code == nvml.VERSIONS_DIFFER:
        remedy = "reboot; or unload the kernel module, and load it: sudo modprobe nvidia"
        cause = "the driver was upgraded, and its kernel module and libraries do not match"
    elif code == nvml.DRIVER_NOT_LOADED and facts.container:
        remedy = f"{_WITH_GPUS}, if nvidia-smi on the host lists any"
        cause = "this container was started without its GPUs"
        cause += "" if module else ", or its host has not loaded the NVIDIA driver"
    elif code == nvml.DRIVER_NOT_LOADED:
        remedy = "sudo modprobe nvidia; if that fails, reboot or reinstall the driver"
        state = "is loaded but does not respond" if module else "is not loaded"
        cause = f"the NVIDIA driver's kernel module {state}"
    elif cuda_driver.installed():
        return Finding("NVML", "warn", evidence, "torch works without it; %gpu does not", evidence)
    else:
        return None
    return Finding("NVML", "warn" if facts.start.count else "bad", evidence, remedy, cause)
