"""Check whether the environment variables of CUDA and torch were set before they were read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from gpumagic.cuda import visible_devices
from gpumagic.doctor.facts import Facts
from gpumagic.results import Finding
from gpumagic.selection import launch_blocking
from gpumagic.system.text import listed, plural

#: When a variable is read: at the start of the process, by ``import torch``, when CUDA is
#: initialised, when a device's context is created, when a library creates its handle, or always.
Moment = Literal["process", "torch", "cuda", "context", "handle", "always"]

_READ: Mapping[str, Moment] = {
    visible_devices.MASK: "cuda",
    visible_devices.ORDER: "cuda",
    "HIP_VISIBLE_DEVICES": "cuda",
    "ROCR_VISIBLE_DEVICES": "cuda",
    "CUDA_MODULE_LOADING": "cuda",
    "CUDA_LAUNCH_BLOCKING": "context",
    "CUDA_DEVICE_MAX_CONNECTIONS": "context",
    "PYTORCH_ALLOC_CONF": "torch",
    "PYTORCH_CUDA_ALLOC_CONF": "torch",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "cuda",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "always",
    "NVIDIA_TF32_OVERRIDE": "handle",
    "CUBLAS_WORKSPACE_CONFIG": "handle",
    "OMP_NUM_THREADS": "torch",
    "MKL_NUM_THREADS": "torch",
    "LD_LIBRARY_PATH": "process",
}
_WHEN: Mapping[Moment, str] = {
    "process": "when the process starts",
    "torch": "by 'import torch'",
    "cuda": "when CUDA is initialised",
    "context": "when a device is first used",
    "handle": "when a library such as cuBLAS is first used",
    "always": "every time it is used",
}
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def variables(facts: Facts) -> Iterator[Finding]:
    """Yield a finding on each variable that is or was set, and on ``CUDA_VISIBLE_DEVICES``."""
    for name in _READ:
        now, at_start = facts.environment.get(name), facts.environment_at_start.get(name)
        if name == visible_devices.MASK:
            yield _mask(facts)
        elif now is not None or at_start is not None:
            found = _library_path(facts) if name == "LD_LIBRARY_PATH" else _variable(facts, name)
            if found is not None:
                yield found


def _variable(facts: Facts, name: str) -> Finding:
    now, at_start = facts.environment.get(name), facts.environment_at_start.get(name)
    value = "not set" if now is None else f"'{now}'"
    if now == at_start:
        return _judged(name, now, f"{value}, {_since()}")
    before = "not set" if at_start is None else f"'{at_start}'"
    changed = f"{value} now, {before} {_at_start()}"
    moment = _READ[name]
    if _passed(facts, moment) is False:
        return _judged(name, now, f"{changed}: in time, since it is read {_WHEN[moment]}")
    if moment == "always":
        return _judged(name, now, f"{changed}; it is read {_WHEN[moment]}")
    effective = _effective(facts, name, now)
    if effective:
        return _judged(name, now, f"{changed}: in time, since this value was read")
    if effective is None:
        return Finding(
            name, "unknown", f"{changed}; it was read {_past(moment)}, before or after this change"
        )
    return Finding(
        name,
        "warn",
        f"{changed}: too late, it was read {_past(moment)}",
        f"restart the kernel and set it before it is read {_WHEN[moment]}",
    )


def _since() -> str:
    return "unchanged since this process started"


def _at_start() -> str:
    # Only Linux has the environment of the start; elsewhere the first one is read later.
    return "at the start" if sys.platform.startswith("linux") else "when gpumagic was loaded"


def _past(moment: Moment) -> str:
    return _WHEN[moment].replace(" is ", " was ").replace("starts", "started")


def _passed(facts: Facts, moment: Moment) -> bool | None:
    """Return whether the moment has passed in this process; None if unknown."""
    if moment == "process":
        return True
    if moment == "torch":
        return facts.torch_loaded
    if facts.state.failed:
        return True
    if moment == "cuda":
        return facts.state.initialized
    if not facts.state.contexts:
        return False if facts.state.initialized is not None else None
    return True if moment == "context" else None


def _effective(facts: Facts, name: str, now: str | None) -> bool | None:
    """Return whether the current value is the one that was read; None if unknown."""
    if name in _ALLOCATOR:
        # The newer name takes precedence.
        others = [facts.environment.get(other) for other in _ALLOCATOR if other != name]
        if facts.allocator_settings is None or any(others):
            return None
        return facts.allocator_settings == (now or "")
    if _READ[name] == "cuda" and facts.environment_at_init is not None:
        return facts.environment_at_init.get(name) == now
    if _READ[name] == "process":
        return False
    return None


def _judged(name: str, value: str | None, evidence: str) -> Finding:
    """Return the finding on a variable that is in effect, with a warning of slow settings."""
    if name == "CUDA_LAUNCH_BLOCKING" and value == "1":
        return Finding(
            name,
            "warn",
            f"{evidence}: the host waits for every kernel, which is slow",
            "unless you are looking for a failing kernel, "
            + (
                "%gpu reset --restart" if launch_blocking.is_temporary() else "unset it and restart"
            ),
        )
    if name == "PYTORCH_NO_CUDA_MEMORY_CACHING" and value:
        return Finding(
            name,
            "warn",
            f"{evidence}: every tensor is allocated by the driver, which is slow",
            "unset it and restart the kernel",
        )
    return Finding(name, "ok", evidence)


def _library_path(facts: Facts) -> Finding | None:
    """Warn of CUDA libraries on the path: they may be loaded instead of torch's own."""
    value = facts.environment_at_start.get("LD_LIBRARY_PATH", "")
    patterns = ("libcudart.so*", "libcublas*.so*", "libcudnn*.so*", "libnccl.so*")
    found = sorted(
        {
            str(Path(folder) / file.name.partition(".so")[0])
            for folder in value.split(":")
            if folder
            for pattern in patterns
            for file in Path(folder).glob(pattern)
        }
    )
    if not found:
        return None
    return Finding(
        "LD_LIBRARY_PATH",
        "warn",
        f"contains {listed(found, 3)}, which may be loaded instead of torch's own",
        "if libraries do not match, unset it and restart the kernel",
    )


# --- CUDA_VISIBLE_DEVICES ----------------------------------------------------------------------


def _mask(facts: Facts) -> Finding:
    name, value = visible_devices.MASK, facts.environment.get(visible_devices.MASK)
    evidence = "not set" if value is None else f"'{value}'"
    if facts.environment.get(name) == facts.environment_at_start.get(name):
        evidence += f", {_since()}"
    if not facts.table:
        return Finding(name, "ok", evidence)
    variables = visible_devices.variables(facts.environment)
    wanted = visible_devices.view(variables, facts.table).visible
    if wanted is None:
        if facts.state.initialized:
            return _variable(facts, name)
        return Finding(name, "ok", f"{evidence}; which GPUs it shows is unknown before CUDA starts")
    shows = f"shows {len(wanted)} of {plural(len(facts.table), 'GPU')}"
    if facts.state.initialized or facts.state.failed:
        seen = {device.index for device in facts.table if device.visible}
        if any(device.visible is None for device in facts.table):
            return Finding(name, "unknown", f"{evidence}; the driver does not report what it shows")
        if seen != wanted:
            devices = ", ".join(f"GPU {index}" for index in sorted(seen)) or "no GPU"
            return Finding(
                name,
                "warn",
                f"{evidence} {shows}: too late, this process sees {devices}",
                "%gpu SPEC --restart, or restart the kernel and select before CUDA is used",
            )
        return Finding(name, "ok", f"{evidence}, {shows}, in time: this process sees them")
    if not wanted:
        return Finding(
            name,
            "bad",
            f"{evidence} hides every GPU",
            "%gpu on",
            f"every GPU is hidden from this process: {name}={value}",
        )
    return Finding(name, "ok", f"{evidence}, {shows}, not yet read")
