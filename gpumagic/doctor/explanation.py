"""Explain why a cell failed, in one line with cause and command, by the exception's text.

Cheap, unlike `diagnose`: each line looks up only the facts that it states. Other folders append
to `EXPLAINERS`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from gpumagic.cuda import devices, driver, failure, init_trace, nvml, probe
from gpumagic.doctor import build, process
from gpumagic.results import Explanation, Finding, Result
from gpumagic.system import introspection

_MORE = "%gpu doctor shows more"


def explain(error: BaseException) -> Result | None:
    """Return the explanation of an exception, or None; holds no reference to the exception."""
    for explainer in EXPLAINERS:
        found = explainer(error)
        if found is not None:
            return found
    return None


def _cuda(error: BaseException) -> Explanation | None:
    """Explain a CUDA error, recognised by its text: a worker's error arrives as text only."""
    text = full_text(error)
    _note_failure(text)
    for pattern, line in _LINES:
        if re.search(pattern, text, re.IGNORECASE):
            return Explanation(line())
    return None


def full_text(error: BaseException) -> str:
    """Return the messages of an exception, its causes and contexts, within limits."""
    some = itertools.islice(introspection.linked(error), _EXCEPTIONS)
    return "\n".join(_excerpt(introspection.message(each)) for each in some)


#: Limits on the exceptions, and on the characters of each, that are searched.
_EXCEPTIONS, _CHARACTERS = 100, 20_000


def _excerpt(text: str) -> str:
    """Return a text, or both ends of a long one: a worker's error is below its traceback."""
    half = _CHARACTERS // 2
    return text if len(text) <= _CHARACTERS else f"{text[:half]}\n{text[-half:]}"


#: torch's messages when CUDA does not start.
_NO_START = (
    "No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device|CUDA unknown error|"
    "CUDA driver initialization failed|Unexpected error from cudaGetDevice"
)


def _note_failure(text: str) -> None:
    """Record that CUDA may have failed to start: no function of torch or CUDA reports it."""
    if re.search(_NO_START, text) and not driver.is_initialized():
        failure.suspect(hidden=False)


#: Called in this order until one returns an explanation.
EXPLAINERS: list[Callable[[BaseException], Result | None]] = [_cuda]


# --- the lines ---------------------------------------------------------------------------------


def _no_kernel() -> str:
    here = probe.build_here()
    if here is not None:
        table = devices.devices(processes=False)
        for device in (device for device in table if device.visible is not False):
            found = build.kernel(device, here.architectures)
            if found is not None and found.status == "bad":
                return _cause_and_remedy(found)
    return (
        "gpumagic: the failed kernel was not built for this GPU's compute capability; torch's own "
        f"kernels are, as far as known, so check extensions. {_MORE}."
    )


def _driver_too_old() -> str:
    if devices.devices(processes=False).error == nvml.NOT_LOADED:
        return _no_device()  # the driver's version is not the cause
    here = probe.build_here()
    found = None if here is None else build.fit(here, driver.cuda_version())
    if found is None or found.status != "bad":
        return f"gpumagic: the NVIDIA driver is too old for a library in use. {_MORE}."
    return _cause_and_remedy(found)


def _cause_and_remedy(found: Finding) -> str:
    return f"gpumagic: {found.cause}. To do: {found.remedy}. {_MORE}."


def _forked() -> str:
    location = init_trace.location()
    where = "" if location is None else f" ({location})"
    return (
        "gpumagic: the worker was forked from this process, in which CUDA was initialised"
        f"{where}; {process.FORK_REMEDY}. {_MORE}."
    )


def _not_compiled() -> str:
    here = probe.build_here()
    version = "" if here is None else f" ({here.version})"
    return (
        f"gpumagic: this torch{version} is built without CUDA: it computes on the CPU only. "
        f"{_MORE}, and what to install."
    )


def _no_device() -> str:
    table = devices.devices(processes=False)
    if not table:
        return f"gpumagic: {table.error or 'this machine has no GPU'}. {_MORE}."
    if table.cuda_missing:
        return f"gpumagic: {driver.MISSING}. {_MORE}."
    if failure.has_failed(table):
        return (
            "gpumagic: CUDA failed to start earlier in this process, which lasts until the process "
            f"ends: %gpu on --restart. {_MORE}."
        )
    if all(device.visible is False for device in table):
        mask = table.environment.get("CUDA_VISIBLE_DEVICES")
        by = "" if mask is None else f" by CUDA_VISIBLE_DEVICES={mask}"
        # If CUDA is not initialised, it has just failed to start.
        state = "failed to start" if table.cuda_initialized is False else "has started"
        return (
            f"gpumagic: every GPU is hidden{by}; CUDA {state} so, which lasts until the process "
            f"ends: %gpu on --restart. {_MORE}."
        )
    return f"gpumagic: CUDA finds no device. {_MORE}, and why."


def _ordinal() -> str:
    seen = [device for device in devices.devices(processes=False) if device.ordinal is not None]
    listed = ", ".join(f"cuda:{d.ordinal} (GPU {d.index})" for d in seen)
    return (
        f"gpumagic: this kernel sees {listed or 'no device'}; visible devices are renumbered from "
        "0. The table: %gpu"
    )


def _line(cause: str) -> Callable[[], str]:
    return lambda: f"gpumagic: {cause}. {_MORE}."


def _sticky(cause: str) -> Callable[[], str]:
    """Return the line for an error after which every later CUDA call fails too."""
    return _line(
        f"{cause}. CUDA reports it asynchronously: CUDA_LAUNCH_BLOCKING=1, set before CUDA starts, "
        "shows the line that failed. Every later CUDA call fails too, so restart the kernel"
    )


#: Pattern and line; the first that matches is used. Meanings as in the CUDA runtime's
#: documentation (cudaError_t).
_LINES: list[tuple[str, Callable[[], str]]] = [
    (r"Cannot re-initialize CUDA in forked subprocess", _forked),
    (r"no kernel image is available", _no_kernel),
    (
        r"driver version is insufficient|NVIDIA driver on your system is too old",
        _driver_too_old,
    ),
    (r"Torch not compiled with CUDA enabled", _not_compiled),
    (
        r"no CUDA-capable device is detected|No CUDA GPUs are available"
        r"|Found no NVIDIA driver on your system",
        _no_device,
    ),
    (
        r"CUDA unknown error|CUDA driver initialization failed|Unexpected error from cudaGetDevice",
        _line("CUDA failed to start, which lasts until the process ends"),
    ),
    (r"CUDA error: invalid device ordinal", _ordinal),
    (
        r"CUDA error: device-side assert triggered",
        _sticky("an assertion in a kernel failed, mostly an index out of range"),
    ),
    (
        r"CUDA error: (an illegal memory access|misaligned address|unspecified launch failure"
        r"|an illegal instruction)",
        _sticky("a kernel failed on the device"),
    ),
    (
        r"CUDA error: system has unsupported display driver",
        _line("the driver's components do not match; after an upgrade, reboot"),
    ),
    (
        r"CUDA error: system not yet initialized",
        _line("NVIDIA's Fabric Manager is not running, which NVSwitch needs"),
    ),
    (
        r"CUDA error: all CUDA-capable devices are busy or unavailable",
        _line("another process uses the GPU exclusively, or its compute mode prohibits use"),
    ),
    (
        # `gpumagic.memory.oom` explains out of memory.
        r"CUDA error: (?!out of memory)(.+)",
        _line("CUDA reports errors asynchronously, perhaps not at their line"),
    ),
]
