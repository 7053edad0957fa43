"""The environment variables that matter, and whether each was set in time to count."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from gpumagic.cuda import visible_devices
from gpumagic.doctor.facts import Facts
from gpumagic.results import Finding
from gpumagic.system.text import plural

#: When a variable is read: as the process starts, with ``import torch``, as CUDA is initialised, as
#: a device's context is made, as a library makes its handle, or whenever it is needed.
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
    "torch": "with 'import torch'",
    "cuda": "when CUDA is initialised",
    "context": "when a device is first used",
    "handle": "when a library such as cuBLAS is first used",
    "always": "whenever it is needed",
}
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def variables(facts: Facts) -> Iterator[Finding]:
    """A finding for each variable that is set, or was at the start; always for the mask."""
    for name in _READ:
        now, begun = facts.environment.get(name), facts.environment_at_start.get(name)
        if name == visible_devices.MASK:
            yield _mask(facts)
        elif now is not None or begun is not None:
            found = _library_path(facts) if name == "LD_LIBRARY_PATH" else _variable(facts, name)
            if found is not None:
                yield found


def _variable(facts: Facts, name: str) -> Finding:
    now, begun = facts.environment.get(name), facts.environment_at_start.get(name)
    value = "not set" if now is None else f"'{now}'"
    if now == begun:
        return _judged(name, now, f"{value}, {_since()}")
    then = "not set" if begun is None else f"'{begun}'"
    changed = f"{value}; {_at_start()} {then}"
    moment = _READ[name]
    if _passed(facts, moment) is False:
        return _judged(name, now, f"{changed}, in time: it is read {_WHEN[moment]}")
    if moment == "always":
        return _judged(name, now, f"{changed}; it is read {_WHEN[moment]}")
    counted = _counted(facts, name, now)
    if counted:
        return _judged(name, now, f"{changed}, in time: it was read as it is now")
    if counted is None:
        return Finding(
            name, "unknown", f"{changed}; it was read {_past(moment)}, before or after the change"
        )
    return Finding(
        name,
        "warn",
        f"{changed}: too late to count, it was read {_past(moment)}",
        f"restart the kernel and set it before it is read, {_WHEN[moment]}",
    )


def _since() -> str:
    return "as at the start of this process"


def _at_start() -> str:
    # Only Linux keeps it for us; elsewhere the first thing known is later.
    return "at the start" if sys.platform.startswith("linux") else "when gpumagic was loaded"


def _past(moment: Moment) -> str:
    return _WHEN[moment].replace(" is ", " was ").replace("starts", "started")


def _passed(facts: Facts, moment: Moment) -> bool | None:
    """Whether the moment has passed in this process; None where that is not known."""
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


def _counted(facts: Facts, name: str, now: str | None) -> bool | None:
    """Whether the present value is the one that was read; None where that is not known."""
    if name in _ALLOCATOR:
        # The newer name goes before the older one.
        others = [facts.environment.get(other) for other in _ALLOCATOR if other != name]
        if facts.allocator_settings is None or any(others):
            return None
        return facts.allocator_settings == (now or "")
    if _READ[name] == "cuda" and facts.environment_then is not None:
        return facts.environment_then.get(name) == now
    if _READ[name] == "process":
        return False
    return None


def _judged(name: str, value: str | None, evidence: str) -> Finding:
    """The finding on a variable that counts: some values cost something."""
    if name == "CUDA_LAUNCH_BLOCKING" and value == "1":
        return Finding(
            name,
            "warn",
            f"{evidence}: the host waits for every kernel, so all is slower",
            "good for finding the kernel that fails; for anything else start without it",
        )
    if name == "PYTORCH_NO_CUDA_MEMORY_CACHING" and value:
        return Finding(
            name,
            "warn",
            f"{evidence}: every tensor is allocated by the driver, which is slow",
            "start without it",
        )
    return Finding(name, "ok", evidence)


def _library_path(facts: Facts) -> Finding | None:
    """Only where a library of CUDA lies there: it may be loaded instead of the one torch brings."""
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
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return Finding(
        "LD_LIBRARY_PATH",
        "warn",
        f"leads to {', '.join(found[:3])}{more}, which may be loaded instead of what torch brings",
        "if libraries do not fit, start without it",
    )


# --- the one that hides devices ----------------------------------------------------------------


def _mask(facts: Facts) -> Finding:
    name, value = visible_devices.MASK, facts.environment.get(visible_devices.MASK)
    said = "not set" if value is None else f"'{value}'"
    if facts.environment.get(name) == facts.environment_at_start.get(name):
        said += f", {_since()}"
    if not facts.table:
        return Finding(name, "ok", said)
    present = {
        key: facts.environment[key]
        for key in (visible_devices.MASK, visible_devices.ORDER)
        if key in facts.environment
    }
    wanted = visible_devices.view(present, facts.table).visible
    if wanted is None:
        if facts.state.initialized:
            return _variable(facts, name)
        return Finding(name, "ok", f"{said}; what it shows is not known before CUDA starts")
    shows = f"shows {len(wanted)} of {plural(len(facts.table), 'GPU')}"
    if facts.state.initialized or facts.state.failed:
        seen = {device.index for device in facts.table if device.visible}
        if any(device.visible is None for device in facts.table):
            return Finding(name, "unknown", f"{said}; the driver does not say what it shows")
        if seen != wanted:
            listed = ", ".join(f"GPU {index}" for index in sorted(seen)) or "no GPU"
            return Finding(
                name,
                "warn",
                f"{said} {shows}: too late to count, this process sees {listed}",
                "%gpu SPEC --restart, or restart the kernel and choose before CUDA is used",
            )
        return Finding(name, "ok", f"{said}, {shows}, in time: this is what the process sees")
    if not wanted:
        return Finding(
            name,
            "bad",
            f"{said}: hides every GPU",
            "%gpu on",
            f"every GPU is hidden from this process: {name}={value}",
        )
    return Finding(name, "ok", f"{said}, {shows}, not yet read")
