"""Check the machine: the driver, its devices and files, the container, NVML, the toolkit."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from gpumagic.cuda import driver as cuda_driver
from gpumagic.cuda import nvml
from gpumagic.cuda.driver import LIBRARY
from gpumagic.cuda.process_state import STATE
from gpumagic.doctor.diagnosis import Finding
from gpumagic.doctor.facts import Facts
from gpumagic.errors import DeviceError
from gpumagic.system import child_process, system_files
from gpumagic.system.text import plural

#: NVML_ERROR_DRIVER_NOT_LOADED and NVML_ERROR_LIB_RM_VERSION_MISMATCH (nvml.h).
_NOT_LOADED, _MISMATCH = 9, 18
_WITH_GPUS = "start the container with its GPUs (docker run --gpus all)"


def driver(facts: Facts) -> Iterator[Finding]:
    """Check that there is a driver."""
    module = cuda_driver.kernel_module()
    if cuda_driver.installed():
        version = facts.table.driver_version or module or "unknown version"
        cuda = facts.driver_cuda
        supported = "" if cuda is None else f", for CUDA up to {cuda[0]}.{cuda[1]}"
        yield Finding("driver", "ok", f"{version}{supported}; its library can be loaded")
        return
    evidence = f"{LIBRARY} cannot be loaded"
    evidence += f", although kernel module {module} is loaded" if module else ""
    remedy = _WITH_GPUS if facts.container else "install the NVIDIA driver"
    if sys.platform == "darwin":
        evidence, remedy = "macOS has no CUDA", "use torch's device 'mps'"
    yield Finding("driver", "bad", evidence, remedy, "there is no NVIDIA driver")


def gpus(facts: Facts) -> Iterator[Finding]:
    """Check that the machine has GPUs, and that NVML can read each."""
    if not facts.table and facts.table.error is None:
        remedy = f"in a container: {_WITH_GPUS}; else check lspci"
        cause = "the machine, or the container, has no GPU"
        yield Finding("GPUs", "bad", "NVML lists none", remedy, cause)
    usable = [str(d.index) for d in facts.table if d.error is None and d.visible is not False]
    restart = " --restart" if facts.state.initialized or facts.state.failed else ""
    for device in facts.table:
        if device.error is not None:
            seen = usable and "lost" in device.error and device.visible is not False
            remedy_here = f"%gpu {','.join(usable)}{restart}" if seen else None
            name = f"GPU {device.index}"
            cause = f"{name} does not respond"
            yield Finding(name, "bad", f"{device.error} (NVML)", remedy_here, cause)


def device_files(facts: Facts) -> Iterator[Finding]:
    """Check that this process may open the driver's device files."""
    folder = system_files.at("/dev")
    found = sorted([*folder.glob("nvidia*"), *folder.glob("dxg")])
    files = {f"/dev/{p.name}": os.access(p, os.R_OK | os.W_OK) for p in found if not p.is_dir()}
    closed = [name for name, permitted in files.items() if not permitted]
    if closed:
        gpus = {name for name in files if re.fullmatch(r"/dev/nvidia\d+", name)}
        needed = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg"} & {*closed}
        yield Finding(
            "device files",
            "bad" if needed or (gpus and gpus <= {*closed}) else "warn",
            f"no permission to read and write {', '.join(closed)}",
            f"become a member of the group that ls -l {closed[0]} shows, often video",
            "this user may not open the driver's device files",
        )
    elif "/dev/nvidiactl" in files and "/dev/nvidia-uvm" not in files and facts.table:
        yield Finding(
            "device files",
            "warn",
            "there is no /dev/nvidia-uvm, which CUDA needs",
            "as root: nvidia-modprobe -u -c=0",
            "/dev/nvidia-uvm is missing",
        )
    elif files:
        yield Finding("device files", "ok", f"{', '.join(files)} can be read and written")


def container(facts: Facts) -> Iterator[Finding]:
    """Check whether this is a container, and which GPUs it was started with."""
    if not facts.container:
        return
    evidence = f"probably yes: {', '.join(facts.container)}"
    given = STATE.started_with.get("NVIDIA_VISIBLE_DEVICES")
    able = STATE.started_with.get("NVIDIA_DRIVER_CAPABILITIES")
    # Values as documented for the NVIDIA Container Toolkit ("Docker Specialized Configurations").
    if given in ("void", "none", ""):
        setting = f"NVIDIA_VISIBLE_DEVICES={given}"
        cause = f"the container was started with {setting}"
        yield Finding("container", "warn", f"{evidence}; {setting}", _WITH_GPUS, cause)
    elif able and not {"all", "compute"} & {*able.split(",")}:
        setting = f"NVIDIA_DRIVER_CAPABILITIES={able}, without compute"
        remedy = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        cause = "the container was started without the capability 'compute'"
        yield Finding("container", "warn", f"{evidence}; {setting}", remedy, cause)
    else:
        yield Finding("container", "ok", evidence)


def works_with_nvml(facts: Facts) -> Iterator[Finding]:
    """Check that NVML works: CUDA does not need it, but the cause may affect CUDA too."""
    try:
        nvml.session()
    except DeviceError as error:
        code = getattr(error.__cause__, "value", None)
        yield from _nvml_fails(facts, str(error), code)
    else:
        yield Finding("NVML", "ok", f"lists {plural(len(facts.table), 'GPU')}")


def _nvml_fails(facts: Facts, error: str, code: int | None) -> Iterator[Finding]:
    module = cuda_driver.kernel_module()  # in a container, the host's
    cause: str | None
    if code == _MISMATCH:
        error += f" (error {code}; kernel module {module})" if module else f" (error {code})"
        remedy = "reboot; or unload the kernel module, and load it: sudo modprobe nvidia"
        cause = "the driver was upgraded, and its kernel module and libraries do not match"
    elif code == _NOT_LOADED and not facts.start.count:
        error += f" (error {code})"
        remedy = "sudo modprobe nvidia; if that fails, reboot or reinstall the driver"
        cause = "the NVIDIA driver's kernel module is not loaded"
        if facts.container:
            remedy = f"{_WITH_GPUS}, if nvidia-smi on the host lists any"
            cause = "this container was started without its GPUs"
            cause += "" if module else ", or its host has not loaded the NVIDIA driver"
        elif module:
            remedy = "as root: nvidia-modprobe -u -c=0, which creates its device files"
            cause = "the NVIDIA driver's kernel module is loaded but does not respond"
    else:
        if cuda_driver.installed():
            cause = None if code is None else error
            yield Finding("NVML", "warn", error, "torch works without it; %gpu shows less", cause)
        return
    yield Finding("NVML", "bad", error, remedy, cause)


def pynvml(_: Facts) -> Iterator[Finding]:
    """Warn of packages that replace the module of nvidia-ml-py, and are not maintained."""
    for name in ("pynvml", "nvidia-ml-py3"):
        try:
            evidence = f"{name} {metadata.version(name)} is installed, which is not maintained"
        except metadata.PackageNotFoundError:
            continue
        remedy = f"%pip uninstall -y {name}, then %pip install --force-reinstall nvidia-ml-py"
        yield Finding("pynvml", "warn", evidence, remedy)


def toolkit(facts: Facts) -> Iterator[Finding]:
    """Check the CUDA toolkit, which is needed only to build extensions."""
    path = _nvcc()
    if path is None:
        yield Finding("toolkit", "ok", "no nvcc, which is needed only to build extensions")
        return
    try:
        output = child_process.run([path, "--version"], None, timeout=20).stdout
    except (OSError, child_process.ChildTimeoutError):
        output = ""
    match = re.search(r"release (\d+)(\.\d+)", output)
    if match is None:
        yield Finding("toolkit", "unknown", f"{path} does not report its version")
        return
    evidence = f"nvcc {match[1]}{match[2]} at {path}"
    built = facts.build.cuda
    # torch.utils.cpp_extension refuses another major version.
    if built is None or built.partition(".")[0] == match[1]:
        yield Finding("toolkit", "ok", evidence)
    else:
        evidence += f", while torch is built for CUDA {built}; torch itself does not need it"
        remedy = f"to build extensions, install toolkit {built} and set CUDA_HOME"
        yield Finding("toolkit", "warn", evidence, remedy)


def _nvcc() -> str | None:
    """Find nvcc on the ``PATH``, below ``CUDA_HOME``, or where NVIDIA installs it."""
    homes = (*map(os.environ.get, ("CUDA_HOME", "CUDA_PATH")), "/usr/local/cuda")
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    folders += [str(Path(home, "bin")) for home in homes if home]
    # Not the working folder, which an empty or relative entry is, and Windows searches first.
    absolute = [system_files.at(folder) for folder in folders if Path(folder).is_absolute()]
    found = (folder / name for folder in absolute for name in ("nvcc", "nvcc.exe"))
    return next((str(path) for path in found if os.access(path, os.X_OK)), None)
