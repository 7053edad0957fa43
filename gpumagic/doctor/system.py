"""Read the system's files on the machine: device files, container, toolkit."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from gpumagic.cuda import devices
from gpumagic.system import child_process, system_files


@dataclass(frozen=True)
class Toolkit:
    """The CUDA compiler, nvcc."""

    path: str
    version: tuple[int, int] | None = None


def toolkit() -> Toolkit | None:
    """Find nvcc on the ``PATH``, below ``CUDA_HOME``, or where NVIDIA installs it."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    homes = (*map(os.environ.get, ("CUDA_HOME", "CUDA_PATH")), "/usr/local/cuda")
    folders += [str(Path(home, "bin")) for home in homes if home]
    searched = [str(system_files.at(folder)) for folder in folders if Path(folder).is_absolute()]
    path = child_process.find_program("nvcc", searched)
    if path is None:
        return None
    try:
        done = child_process.run([path, "--version"], None, timeout=20)
    except (OSError, child_process.ChildTimeoutError):
        return Toolkit(path)
    match = re.search(r"release (\d+)\.(\d+)", done.stdout)
    return Toolkit(path, (int(match[1]), int(match[2])) if match else None)


def device_files() -> dict[str, bool]:
    """Return the driver's device files, and whether this process may read and write each."""
    if not sys.platform.startswith("linux"):
        return {}
    folder = system_files.at("/dev")
    found = sorted([*folder.glob("nvidia*"), *folder.glob("dxg")])
    return {f"/dev/{p.name}": os.access(p, os.R_OK | os.W_OK) for p in found if not p.is_dir()}


def container() -> tuple[str, ...]:
    """Return the evidence that this is a container; empty if there is none."""
    if not sys.platform.startswith("linux"):
        return ()
    files = ("/.dockerenv", "/run/.containerenv")
    signs = [path for path in files if system_files.at(path).exists()]
    groups = system_files.read("/proc/1/cgroup") or ""
    words = ("docker", "kubepods", "containerd", "libpod", "lxc")
    signs += [f"control group of process 1: {word}" for word in words if word in groups][:1]
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        signs.append("KUBERNETES_SERVICE_HOST is set")
    if not devices.in_first_pid_namespace():
        signs.append("a pid namespace of its own")
    return tuple(signs)


def wsl() -> bool:
    """Return whether this is WSL, Linux on Windows."""
    return "microsoft" in (system_files.read("/proc/version") or "").lower()
