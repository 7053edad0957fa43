"""Why a cell failed: from the text of its exception to one line that says what to do.

Cheap, unlike the whole of the doctor: a line rests on the finding that it names, looked up alone.
`EXPLAINERS` is open to others that know what an exception means.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

from gpumagic.cells import tracebacks
from gpumagic.cuda import devices, driver, init_failure, init_trace, nvml, probe
from gpumagic.doctor import build, process
from gpumagic.results import Explanation, Result
from gpumagic.system import introspection

_MORE = "%gpu doctor tells more"


def explain(error: BaseException) -> Result | None:
    """What there is to say on an exception, or None. The exception is not kept."""
    for explainer in EXPLAINERS:
        found = explainer(error)
        if found is not None:
            return found
    return None


def _cuda(error: BaseException) -> Explanation | None:
    """The line on a CUDA error, recognised by its text: a worker's arrives as text only."""
    some = itertools.islice(tracebacks.linked(error), _EXCEPTIONS)
    text = "\n".join(_excerpt(introspection.message(each)) for each in some)
    _note_failure(text)
    for pattern, line in _LINES:
        if re.search(pattern, text, re.IGNORECASE):
            return Explanation(line())
    return None


#: So many exceptions are read, of each so many characters: anybody may have made them.
_EXCEPTIONS, _CHARACTERS = 100, 20_000


def _excerpt(text: str) -> str:
    """A text, or, if it is long, its ends: a worker's error stands below its traceback."""
    half = _CHARACTERS // 2
    return text if len(text) <= _CHARACTERS else f"{text[:half]}\n{text[-half:]}"


#: What torch says when CUDA does not start.
_NO_START = (
    "No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device|CUDA unknown error|"
    "CUDA driver initialization failed|Unexpected error from cudaGetDevice"
)


def _note_failure(text: str) -> None:
    """Remember that a start of CUDA may have failed, which nothing else tells."""
    if re.search(_NO_START, text) and not driver.is_initialized():
        init_failure.suspect(hidden=False)


#: Asked in turn; the first that knows the exception answers.
EXPLAINERS: list[Callable[[BaseException], Result | None]] = [_cuda]


# --- what is looked up -------------------------------------------------------------------------


def _no_kernel() -> str:
    here = probe.build_here()
    if here is not None:
        table = devices.devices(processes=False)
        for device in (device for device in table if device.visible is not False):
            found = build.kernel(device, here.architectures)
            if found is not None and found.status == "bad":
                return f"gpumagic: {found.subject}: {found.evidence}. {found.remedy}. {_MORE}."
    return (
        "gpumagic: the code that failed was not built for this GPU's compute capability; torch's "
        f"own kernels fit, as far as is known, so look at extensions. {_MORE}."
    )


def _driver_too_old() -> str:
    if devices.devices(processes=False).error == nvml.NOT_LOADED:
        return _no_device()  # a driver of any age would not do
    here = probe.build_here()
    found = None if here is None else build.fit(here, driver.cuda_version())
    if found is None or found.status != "bad":
        return f"gpumagic: the NVIDIA driver is older than what was built for. {_MORE}."
    return f"gpumagic: {found.subject}: {found.evidence}. {found.remedy}. {_MORE}."


def _forked() -> str:
    culprit = init_trace.culprit()
    who = "" if culprit is None else f" ({culprit})"
    return (
        "gpumagic: the worker was forked from this process, in which CUDA was initialised"
        f"{who}; {process.FORK_REMEDY}. {_MORE}."
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
    if init_failure.found(table):
        return (
            "gpumagic: CUDA was asked for earlier, when it could not start, and this process "
            f"remembers that, for good: %gpu on --restart. {_MORE}."
        )
    if all(device.visible is False for device in table):
        late = table.cuda_initialized is not False
        # Where it has not started, it has just failed to, and remembers that.
        so = "CUDA has started so" if late else "CUDA remembers it once it was asked for"
        mask = table.environment.get("CUDA_VISIBLE_DEVICES")
        by = "" if mask is None else f", CUDA_VISIBLE_DEVICES={mask}"
        return f"gpumagic: every GPU is hidden{by}; {so}, for good: %gpu on --restart. {_MORE}."
    return f"gpumagic: CUDA finds no device. {_MORE}, and why."


def _ordinal() -> str:
    seen = [device for device in devices.devices(processes=False) if device.ordinal is not None]
    listed = ", ".join(f"cuda:{d.ordinal} (GPU {d.index})" for d in seen)
    return (
        f"gpumagic: this kernel sees {listed or 'no device'}; visible devices are renumbered from "
        "0. The table: %gpu"
    )


class _Cause(NamedTuple):
    """What a CUDA error means."""

    means: str
    #: Whether every later call fails too, until the process ends.
    sticky: bool


def _says(cause: _Cause) -> Callable[[], str]:
    def line() -> str:
        late = (
            "CUDA reports it late: CUDA_LAUNCH_BLOCKING=1, set before CUDA starts, shows the line "
            "that failed. Every later CUDA call fails too, so restart the kernel"
        )
        return f"gpumagic: {cause.means}. {f'{late}. ' if cause.sticky else ''}{_MORE}."

    return line


#: Pattern and line; the first that matches. Meanings as in the CUDA runtime's documentation
#: (cudaError_t).
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
        _says(_Cause("CUDA failed to start, and this process remembers that", False)),
    ),
    (r"CUDA error: invalid device ordinal", _ordinal),
    (
        r"CUDA error: device-side assert triggered",
        _says(_Cause("a kernel found a bad value, mostly an index out of range", True)),
    ),
    (
        r"CUDA error: (an illegal memory access|misaligned address|unspecified launch failure"
        r"|an illegal instruction)",
        _says(_Cause("a kernel went wrong on the device", True)),
    ),
    (
        r"CUDA error: system has unsupported display driver",
        _says(_Cause("the driver's parts do not match; after an upgrade, reboot", False)),
    ),
    (
        r"CUDA error: system not yet initialized",
        _says(_Cause("NVIDIA's fabric manager does not run, which NVSwitch machines need", False)),
    ),
    (
        r"CUDA error: all CUDA-capable devices are busy or unavailable",
        _says(_Cause("another process holds the GPU alone, or its mode forbids sharing", False)),
    ),
    (
        # Out of memory is not the doctor's.
        r"CUDA error: (?!out of memory)(.+)",
        _says(_Cause("CUDA reports errors late, perhaps not at the line that caused them", False)),
    ),
]
