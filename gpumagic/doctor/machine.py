"""Check the machine: driver, devices and their files, container, NVML."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from gpumagic.doctor.facts import Facts
from gpumagic.results import Finding
from gpumagic.system.text import plural

#: NVML_ERROR_DRIVER_NOT_LOADED and NVML_ERROR_LIB_RM_VERSION_MISMATCH (nvml.h).
_NOT_LOADED, _MISMATCH = 9, 18


def driver(facts: Facts) -> Finding:
    """Return the finding on the driver and its version."""
    if facts.driver_installed:
        versions = [
            f"version {facts.table.driver_version} (NVML)" if facts.table.driver_version else "",
            f"kernel module {facts.kernel_module} (/proc/driver/nvidia/version)"
            if facts.kernel_module
            else "",
        ]
        if not any(versions) and facts.library:
            versions = [f"version {facts.library} (NVML's file)"]
        known = ", ".join(filter(None, versions)) or "unknown version"
        return Finding("driver", "ok", f"{known}; its library can be loaded")
    if sys.platform == "darwin":
        return Finding(
            "driver", "bad", "macOS has no CUDA; torch computes on 'mps' here", None, _NO_DRIVER
        )
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    return Finding(
        "driver",
        "bad",
        f"{library} cannot be loaded"
        + (
            f", although kernel module {facts.kernel_module} is loaded"
            if facts.kernel_module
            else ""
        ),
        "start the container with its GPUs (docker run --gpus all, NVIDIA Container Toolkit)"
        if facts.container
        else "install the NVIDIA driver",
        _NO_DRIVER,
    )


_NO_DRIVER = "there is no NVIDIA driver"


def cuda(facts: Facts) -> Finding:
    """Return the finding on the CUDA version that the driver supports."""
    version = facts.driver_cuda
    if version is None:
        return Finding("CUDA of the driver", "unknown", "the driver does not report it")
    source = "NVML" if facts.table.cuda_version else "cuDriverGetVersion"
    return Finding("CUDA of the driver", "ok", f"up to {version[0]}.{version[1]} ({source})")


def devices(facts: Facts) -> Iterator[Finding]:
    """Check that the machine has GPUs, and that NVML can read each."""
    if not facts.driver_installed:
        return
    if not facts.table and facts.table.error is None:
        yield Finding(
            "GPUs",
            "bad",
            "NVML lists none",
            "in a container, start it with its GPUs (docker run --gpus all); else check lspci",
            "the machine, or the container, has no GPU",
        )
    usable = [str(d.index) for d in facts.table if d.error is None and d.visible is not False]
    started = facts.state.initialized or facts.state.failed
    hide = f"%gpu {','.join(usable)}{' --restart' * bool(started)}"
    for device in facts.table:
        if device.error is not None:
            seen = "lost" in device.error and device.visible is not False
            yield Finding(
                f"GPU {device.index}",
                "bad",
                f"{device.error} (NVML)",
                hide if seen and usable else None,
                f"GPU {device.index} does not respond",
            )
    parts = {d.index: len(d.mig) for d in facts.table if d.mig}
    if parts:
        listed = ", ".join(f"GPU {i} into {plural(n, 'instance')}" for i, n in parts.items())
        yield Finding("MIG", "ok", f"divided: {listed}; select one with %gpu MIG-…")


def device_files(facts: Facts) -> Iterator[Finding]:
    """Check that this process may open the driver's device files."""
    if not sys.platform.startswith("linux"):
        return
    files = facts.device_files
    if not files:
        if facts.driver_installed:
            yield Finding("device files", "unknown", "there is no /dev/nvidia*")
        return
    closed = [name for name, permitted in files.items() if not permitted]
    if not closed and _not_loaded(facts):
        # As root, the driver's libraries create the file even without the kernel module.
        yield Finding("device files", "unknown", f"{', '.join(files)}; no kernel module behind it")
    elif closed:
        numbered = {name for name in files if re.fullmatch(r"/dev/nvidia\d+", name)}
        needed = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg"} & set(closed)
        yield Finding(
            "device files",
            "bad" if needed or (numbered and numbered <= set(closed)) else "warn",
            f"no permission to read and write {', '.join(closed)}",
            f"become a member of the group that ls -l {closed[0]} shows, often video",
            "this user may not open the driver's device files",
        )
    elif "/dev/nvidiactl" in files and not any(name.endswith("-uvm") for name in files):
        yield Finding(
            "device files",
            "warn",
            f"{', '.join(files)} can be opened, but there is no /dev/nvidia-uvm, which CUDA needs",
            "as root: nvidia-modprobe -u -c=0",
            "/dev/nvidia-uvm is missing",
        )
    else:
        yield Finding("device files", "ok", f"{', '.join(files)} can be read and written")


def container(facts: Facts) -> Iterator[Finding]:
    """Check whether this is a container, and which GPUs it was started with."""
    if facts.wsl:
        yield Finding("WSL", "ok", "uses the driver of Windows; NVML lists no processes here")
    if not facts.container:
        return
    evidence = f"probably yes: {', '.join(facts.container)}"
    given = facts.environment_at_start.get("NVIDIA_VISIBLE_DEVICES")
    able = facts.environment_at_start.get("NVIDIA_DRIVER_CAPABILITIES")
    # Values as documented for the NVIDIA Container Toolkit ("Docker Specialized Configurations").
    if given in ("void", "none", ""):
        yield Finding(
            "container",
            "warn",
            f"{evidence}; NVIDIA_VISIBLE_DEVICES={given}",
            "start the container with its GPUs (docker run --gpus all)",
            f"the container was started with NVIDIA_VISIBLE_DEVICES={given}",
        )
    elif able and not {"all", "compute"} & set(able.split(",")):
        yield Finding(
            "container",
            "warn",
            f"{evidence}; NVIDIA_DRIVER_CAPABILITIES={able}, without compute",
            "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            "the container was started without the capability 'compute'",
        )
    else:
        yield Finding("container", "ok", evidence)


def _not_loaded(facts: Facts) -> bool:
    """Return whether NVML reports that the driver is not loaded, and CUDA does not start either."""
    return facts.nvml_code == _NOT_LOADED and not facts.start.count


def _missing_module(facts: Facts) -> Finding:
    """Return the finding on a driver that is not loaded, or not passed into the container."""
    module = facts.kernel_module  # in a container /proc shows the host's
    evidence = f"{facts.nvml_error} (error {_NOT_LOADED}"
    evidence += f"; kernel module {module} is loaded)" if module else ")"
    if facts.container:
        cause = "this container was started without its GPUs"
        cause += "" if module else ", or its host has not loaded the NVIDIA driver"
        remedy = (
            "start it with its GPUs (docker run --gpus all), if nvidia-smi on the host lists any"
        )
    elif module:
        cause = "the NVIDIA driver's kernel module is loaded but does not respond"
        remedy = "as root: nvidia-modprobe -u -c=0, which creates its device files"
    else:
        cause = "the NVIDIA driver's kernel module is not loaded"
        remedy = "sudo modprobe nvidia; if that fails, reboot or reinstall the driver"
    return Finding("NVML", "bad", evidence, remedy, cause)


def nvml(facts: Facts) -> Iterator[Finding]:
    """Check that NVML works: CUDA does not need it, but the cause may affect CUDA too."""
    if not facts.driver_installed and facts.nvml_error is not None:
        return
    if facts.nvml_error is None:
        yield Finding("NVML", "ok", f"lists {plural(len(facts.table), 'GPU')}")
    elif _not_loaded(facts):
        yield _missing_module(facts)
    elif facts.nvml_code == _MISMATCH:
        parts = ", ".join(
            f"{name} {version}"
            for name, version in (
                ("kernel module", facts.kernel_module),
                ("library", facts.library),
            )
            if version
        )
        yield Finding(
            "NVML",
            "bad",
            f"{facts.nvml_error} (error 18{f'; {parts}' if parts else ''})",
            "reboot; or unload and load the kernel module: sudo rmmod nvidia_uvm nvidia_drm "
            "nvidia_modeset nvidia, then sudo modprobe nvidia",
            "the driver was upgraded, and its kernel module and libraries do not match",
        )
    else:
        yield Finding(
            "NVML",
            "warn",
            facts.nvml_error,
            "torch does not need it; %gpu shows less without it",
            facts.nvml_error if facts.nvml_code is not None else None,
        )
