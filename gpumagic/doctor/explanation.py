"""Explain why a cell failed, in one line with cause and command, by the exception's text.

Cheap, unlike `diagnose`: each line looks up only the facts that it states.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from gpumagic.cuda import devices, driver, failure, init_trace, nvml, probe
from gpumagic.doctor import build, process
from gpumagic.doctor.diagnosis import Finding
from gpumagic.results.base import Explanation
from gpumagic.system import introspection

#: Limits on the exceptions, and on the characters of each, that are searched.
_EXCEPTIONS, _CHARACTERS = 100, 20_000
_ENDS = "lasts until the process ends: %gpu on --restart"
_LINE_OF_FAILURE = (
    "CUDA reports it asynchronously: CUDA_LAUNCH_BLOCKING=1, set before CUDA starts, shows the "
    "line that failed"
)


def explain(error: BaseException) -> Explanation | None:
    """Return the explanation of an exception, or None; holds no reference to the exception.

    A CUDA error is recognised by its text: a worker's error arrives as text only.
    """
    text = full_text(error)
    if failure.is_cuda_error(text) and (dead := failure.check_context()) is not None:
        return Explanation(
            f"gpumagic: CUDA has failed in this process: {dead}. It works again after %gpu reset "
            "--restart --keep all, with the variables on the host, or after a restart of the "
            f"kernel. {_LINE_OF_FAILURE}."
        )
    if re.search(_NO_START, text) and not driver.is_initialized():
        failure.suspect(hidden=False)  # no function of torch or CUDA reports it
    line = next((line for pattern, line in _LINES if re.search(pattern, text)), None)
    if line is None:
        return None
    said = line(text)
    return Explanation(f"gpumagic: {said}." + ("" if "%gpu" in said else " More: %gpu doctor."))


def full_text(error: BaseException) -> str:
    """Return the messages of an exception, its causes and contexts, within limits."""
    some = itertools.islice(introspection.linked(error), _EXCEPTIONS)
    return "\n".join(_excerpt(introspection.message(each)) for each in some)


def _excerpt(text: str) -> str:
    """Return a text, or both ends of a long one: a worker's error is below its traceback."""
    half = _CHARACTERS // 2
    return text if len(text) <= _CHARACTERS else f"{text[:half]}\n{text[-half:]}"


# --- the lines, of which each gets the exception's text ------------------------------------------


def _no_kernel(_: str) -> str:
    here = probe.build_here()
    for device in devices.devices(processes=False) if here else ():
        found = build.kernel(device, here.architectures) if here else None
        if found is not None and found.status == "bad" and device.visible is not False:
            return _cause_and_remedy(found)
    return (
        "the failed kernel was not built for this GPU's compute capability; torch's own kernels "
        "are, as far as known, so check extensions"
    )


def _driver_too_old(text: str) -> str:
    if devices.devices(processes=False).error == nvml.NOT_LOADED:
        return _no_device(text)  # the driver's version is not the cause
    here = probe.build_here()
    found = None if here is None else build.fit(here, driver.cuda_version())
    if found is None or found.status != "bad":
        return "the NVIDIA driver is too old for a library in use"
    return _cause_and_remedy(found)


def _cause_and_remedy(found: Finding) -> str:
    return f"{found.cause}. To do: {found.remedy}"


def _forked(_: str) -> str:
    location = init_trace.location()
    where = "" if location is None else f" ({location})"
    return (
        f"the worker was forked from this process, in which CUDA was initialised{where}; "
        f"{process.FORK_REMEDY}"
    )


def _not_compiled(_: str) -> str:
    here = probe.build_here()
    version = "" if here is None else f" ({here.version})"
    return f"this torch{version} is built without CUDA: it computes on the CPU only"


def _no_device(_: str) -> str:
    table = devices.devices(processes=False)
    if not table:
        return table.error or "this machine has no GPU"
    if table.cuda_missing:
        return driver.MISSING
    if failure.has_failed(table):
        return f"CUDA failed to start earlier in this process, which {_ENDS}"
    if all(device.visible is False for device in table):
        mask = table.environment.get("CUDA_VISIBLE_DEVICES")
        by = "" if mask is None else f" by CUDA_VISIBLE_DEVICES={mask}"
        # If CUDA is not initialised, it has just failed to start.
        state = "failed to start" if table.cuda_initialized is False else "has started"
        return f"every GPU is hidden{by}; CUDA {state} so, which {_ENDS}"
    return "CUDA finds no device"


def _ordinal(_: str) -> str:
    seen = [device for device in devices.devices(processes=False) if device.ordinal is not None]
    listed = ", ".join(f"cuda:{d.ordinal} (GPU {d.index})" for d in seen)
    return (
        f"this kernel sees {listed or 'no device'}; visible devices are renumbered from 0. "
        "The table: %gpu"
    )


def _fatal(text: str) -> str:
    """Return the line on an error that has destroyed the context of another process, a worker."""
    return f"{failure.fatal_cause(text)}. {_LINE_OF_FAILURE}. Every later CUDA call fails too"


def _always(line: str) -> Callable[[str], str]:
    return lambda _: line


#: torch's messages when CUDA does not start.
_NO_DEVICE = (
    "no CUDA-capable device is detected|No CUDA GPUs are available"
    "|Found no NVIDIA driver on your system"
)
_UNKNOWN = (
    "CUDA unknown error|CUDA driver initialization failed|Unexpected error from cudaGetDevice"
)
_NO_START = f"{_NO_DEVICE}|{_UNKNOWN}"
#: Pattern and line; the first that matches is used. Meanings as in the CUDA runtime's
#: documentation (cudaError_t). `gpumagic.memory` explains out of memory.
_LINES: list[tuple[str, Callable[[str], str]]] = [
    ("Cannot re-initialize CUDA in forked subprocess", _forked),
    ("no kernel image is available", _no_kernel),
    ("driver version is insufficient|NVIDIA driver on your system is too old", _driver_too_old),
    ("Torch not compiled with CUDA enabled", _not_compiled),
    (_NO_DEVICE, _no_device),
    (_UNKNOWN, _always("CUDA failed to start, which lasts until the process ends")),
    ("CUDA error: invalid device ordinal", _ordinal),
    (
        "CUDA error: system has unsupported display driver",
        _always("the driver's components do not match; after an upgrade, reboot"),
    ),
    (
        "CUDA error: system not yet initialized",
        _always("NVIDIA's Fabric Manager is not running, which NVSwitch needs"),
    ),
    (
        "CUDA error: (all )?CUDA-capable device",
        _always("another process uses the GPU exclusively, or its compute mode prohibits use"),
    ),
    (rf"CUDA error: (an |the )?({'|'.join(failure.FATAL)})", _fatal),
    (
        "CUDA error: (?!out of memory)",
        _always("CUDA reports errors asynchronously, perhaps not at their line"),
    ),
]
