"""Explain why a cell failed, in one line with cause and command, by the exception's text.

Cheap, unlike `diagnose`: each line looks up only the facts that it states.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from gpumagic.cuda import (
    dead_context,
    device_table,
    driver,
    init_failure,
    start_errors,
)
from gpumagic.cuda.probe import Start
from gpumagic.cuda.pytorch import build
from gpumagic.cuda.pytorch.build import Build
from gpumagic.cuda.this_process import STATE
from gpumagic.doctor import process
from gpumagic.doctor.checks import CHECKS
from gpumagic.doctor.facts import Facts
from gpumagic.render.units import bytes_
from gpumagic.results.base import Explanation
from gpumagic.system import introspection

#: The most exceptions that are searched: one, its causes and contexts.
_EXCEPTIONS = 100
#: The most characters of each that are searched, its last: a worker's error is below its traceback.
_CHARACTERS = 50_000
#: Bytes of a device that its context and the libraries of torch need at least.
_ROOM = 2**30
_LINE_OF_FAILURE = (
    "CUDA reports it asynchronously: CUDA_LAUNCH_BLOCKING=1, set before CUDA starts, shows the "
    "line that failed"
)
_FORKED = f"the worker was forked from this process ({{place}}); {process.FORK_REMEDY}"
_TOO_EARLY = "{place}. To do: %gpu restart; what it keeps on a GPU would initialise CUDA again"


def explain(error: BaseException) -> Explanation | None:
    """Return the explanation of an exception, or None; holds no reference to the exception.

    A CUDA error is recognised by its text: a worker's error arrives as text only.
    """
    text = full_text(error)
    if dead_context.is_cuda_error(text) and (dead := dead_context.check()) is not None:
        return Explanation(
            f"gpumagic: {dead}. It works again after %gpu restart, with the variables on the host, "
            f"or after a restart of the kernel. {_LINE_OF_FAILURE}."
        )
    if re.search(_NO_START, text) and not driver.is_initialized():
        init_failure.suspect()  # no function of torch or CUDA reports it
    line = next((line for pattern, line in _LINES if re.search(pattern, text)), None)
    if line is None:
        return None
    said = line if isinstance(line, str) else line(text)
    return Explanation(f"gpumagic: {said}. More: %gpu doctor.")


def full_text(error: BaseException) -> str:
    """Return the messages of an exception, its causes and contexts, within limits."""
    some = itertools.islice(introspection.linked(error), _EXCEPTIONS)
    return "\n".join(introspection.message(each)[-_CHARACTERS:] for each in some)


# --- the lines, of which each gets the exception's text ------------------------------------------


def _diagnosed(otherwise: str) -> Callable[[str], str]:
    """Return cause and remedy of the first of the doctor's checks that finds one."""

    def line(_: str) -> str:
        facts = Facts(build=build.here() or Build(compiled=True), start=Start(count=0))
        for check in CHECKS:
            found = None if check is process.start else check(facts)  # that it fails is known
            if found is not None and found.status == "bad" and found.cause and found.remedy:
                return f"{found.cause}. To do: {found.remedy}"
        return otherwise

    return line


def _with_place(line: str) -> Callable[[str], str]:
    """Return a line with the place where CUDA was initialised in this process."""
    unknown = "CUDA is initialised in this process"
    return lambda _: line.format(place=STATE.init_location() or unknown)


def _ordinal(_: str) -> str:
    table = device_table.read()
    listed = ", ".join(f"cuda:{d.ordinal} (GPU {d.index})" for d in table if d.ordinal is not None)
    return (
        f"this process sees {listed or 'no device'}; visible devices are renumbered from 0. "
        "The table: %gpu"
    )


def _full(_: str) -> str:
    """Return who uses the memory of a visible device that has too little for a context."""
    for device in device_table.read():
        free, own, others = device.memory_free, device.memory_own, device.memory_others
        if device.visible is False or free is None or free >= _ROOM:
            continue
        remedy = "%gpumem vars shows what this process holds"
        if (own or 0) <= (others or 0):
            restart = " --restart" if driver.is_initialized() else ""
            remedy = f"choose another one: %gpu auto{restart}"
        used = f"this process has {bytes_(own)}, others have {bytes_(others)} (%gpu -p)"
        return f"GPU {device.index} has only {bytes_(free)} free: {used}. To do: {remedy}"
    return "the driver has too little memory left: of the GPU, or of the host for pinned memory"


#: torch's messages when CUDA does not start.
_NO_START = (
    "no CUDA-capable device is detected|No CUDA GPUs are available"
    "|Found no NVIDIA driver on your system|CUDA unknown error|CUDA driver initialization failed"
    "|Unexpected error from cudaGetDevice"
)
#: Pattern and line, or what returns it; the first that matches is used. Meanings as in the CUDA
#: runtime's documentation (cudaError_t). `gpumagic.memory` explains out of memory.
_LINES: list[tuple[str, str | Callable[[str], str]]] = [
    ("Cannot re-initialize CUDA in forked subprocess", _with_place(_FORKED)),
    ("CUDA has been initialized before the `notebook_launcher`", _with_place(_TOO_EARLY)),
    (
        "no kernel image is available",
        _diagnosed("torch has kernels for this GPU, as far as known, so check extensions"),
    ),
    (
        "driver version is insufficient|NVIDIA driver on your system is too old",
        _diagnosed("the NVIDIA driver is too old for a library in use"),
    ),
    (
        "|".join(re.escape(each.text) for each in start_errors.KNOWN),
        lambda text: str(start_errors.known(text)),
    ),
    (_NO_START, _diagnosed("CUDA finds no device")),
    ("Torch not compiled with CUDA enabled", "this torch is built without CUDA"),
    ("CUDA error: invalid device ordinal", _ordinal),
    (
        "CUDA error: (all )?CUDA-capable device",
        "another process uses the GPU exclusively, or its compute mode prohibits use. To do: "
        "choose another one: %gpu auto --restart",
    ),
    ("CUDA error: out of memory|CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)", _full),
    (
        "PTX was compiled with an unsupported toolchain",
        "a kernel was compiled by a newer CUDA than the driver supports: install a newer driver",
    ),
    # It has destroyed the context of another process, a worker.
    (
        rf"CUDA error: (an |the )?({'|'.join(dead_context.FATAL)})",
        lambda text: (
            f"{dead_context.fatal_cause(text)}. {_LINE_OF_FAILURE}. Later CUDA calls fail too"
        ),
    ),
    ("CUDA error: ", "CUDA reports errors asynchronously, perhaps not at their line"),
]
