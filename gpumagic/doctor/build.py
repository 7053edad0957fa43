"""Compare torch's build with the driver, the toolkit and each GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpumagic.cuda.probe import Build
from gpumagic.doctor.facts import Facts
from gpumagic.results import Device, Finding
from gpumagic.system.text import plural

_INSTALL = "install a torch built for {}: https://pytorch.org/get-started/locally"
#: The oldest driver of each CUDA generation (NVIDIA, CUDA Compatibility, "Minor Version
#: Compatibility", table 1).
_OLDEST_DRIVER = {11: "450", 12: "525", 13: "580"}


def torch(facts: Facts) -> Finding:
    """Return the finding on torch's build."""
    build = facts.build
    if build.error is not None:
        missing = "not installed" in build.error
        return Finding(
            "torch",
            "bad",
            build.error,
            _INSTALL.format("CUDA") if missing else "import torch in a cell to see the whole error",
            "torch is not installed" if missing else "torch cannot be imported",
        )
    where = "this process" if facts.torch_loaded else "a child process"
    if not build.compiled:
        return Finding(
            "torch",
            "bad",
            f"{build.version}, built without CUDA (in {where})",
            f"{_INSTALL.format('CUDA')}, and restart the kernel",
            f"this torch ({build.version}) is built without CUDA",
        )
    if build.hip is not None:
        return Finding("torch", "ok", f"{build.version}, for ROCm {build.hip} (in {where})")
    cudnn = f", cuDNN {build.cudnn}" if build.cudnn else ", no cuDNN"
    kernels = f"; kernels for {' '.join(build.architectures)}" if build.architectures else ""
    found = f"{build.version}, for CUDA {build.cuda}{cudnn} (in {where}){kernels}"
    return Finding("torch", "ok", found)


def fits_driver(facts: Facts) -> Iterator[Finding]:
    """Check that the driver is new enough for the build."""
    found = fit(facts.build, facts.driver_cuda, starts=bool(facts.start.count))
    if found is not None:
        yield found


def fit(build: Build, supported: tuple[int, int] | None, *, starts: bool = False) -> Finding | None:
    """Return the finding on a driver that supports CUDA up to ``supported``; None if unknown.

    Any driver of the build's major version suffices, and any newer one (NVIDIA, CUDA
    Compatibility, "Minor Version Compatibility"). ``starts``: CUDA was observed to start anyway.
    """
    built = _version(build.cuda)
    if built is None or supported is None or build.hip is not None:
        return None
    subject = "driver and torch"
    versions = f"torch is built for CUDA {_dotted(built)}, the driver supports up to "
    versions += _dotted(supported)
    if built <= supported:
        return Finding(subject, "ok", f"compatible: {versions}")
    if built[0] == supported[0]:
        return Finding(subject, "ok", f"compatible: {versions}; the same major version suffices")
    if starts:
        started = "CUDA starts anyway, through a compatibility package"
        return Finding(subject, "ok", f"{versions}; {started}")
    oldest = _OLDEST_DRIVER.get(built[0])
    newer = "a newer NVIDIA driver" if oldest is None else f"NVIDIA driver {oldest} or newer"
    return Finding(
        subject,
        "bad",
        f"built for CUDA {_dotted(built)}; supported up to {_dotted(supported)}",
        f"install {newer}; or {_INSTALL.format(f'CUDA {supported[0]}')}",
        f"the driver is too old: {versions}",
    )


def toolkit(facts: Facts) -> Iterator[Finding]:
    """Check the CUDA toolkit, which is needed only to build extensions."""
    found = facts.toolkit
    if found is None:
        yield Finding("toolkit", "ok", "no nvcc, which is needed only to build extensions")
        return
    if found.version is None:
        yield Finding("toolkit", "unknown", f"{found.path} does not report its version")
        return
    built, version = _version(facts.build.cuda), _dotted(found.version)
    if built is not None and built[0] != found.version[0]:
        # torch.utils.cpp_extension refuses another major version.
        yield Finding(
            "toolkit",
            "warn",
            f"nvcc {version} at {found.path}, while torch is built for CUDA {_dotted(built)}",
            f"to build extensions, install toolkit {built[0]}.x and set CUDA_HOME; torch itself "
            "does not need it",
        )
    else:
        yield Finding("toolkit", "ok", f"nvcc {version} at {found.path}")


# --- kernels for each GPU ----------------------------------------------------------------------


def kernels(facts: Facts) -> Iterator[Finding]:
    """Check that torch has kernels for each GPU; without them: "no kernel image is available"."""
    architectures = facts.build.architectures
    if not architectures or facts.build.hip is not None:
        return
    for device in facts.table:
        found = kernel(device, architectures)
        if found is not None:
            yield found


def kernel(device: Device, architectures: Sequence[str]) -> Finding | None:
    """Return the finding on one GPU; None if its compute capability is unknown."""
    capability = device.compute_capability
    if capability is None:
        return None
    subject = f"GPU {device.index} and torch"
    described = f"compute capability {_dotted(capability)}"
    if runs_on(capability, architectures):
        return Finding(subject, "ok", f"{described}; torch has kernels for it", name=device.name)
    older = capability < min(v for v, _, _ in map(_architecture, architectures))
    return Finding(
        subject,
        "bad",
        f"{described}; torch has no kernels for it",
        "install an older torch, or one for an older CUDA, whose torch.cuda.get_arch_list() has "
        f"sm_{capability[0]}{capability[1]}"
        if older
        else "install a newer torch (see https://pytorch.org/get-started/locally)",
        f"this torch has no kernels for GPU {device.index} (compute capability "
        f"{_dotted(capability)}; it has {' '.join(architectures)})",
        device.name,
    )


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether a device can run code compiled for one of these architectures.

    Machine code (``sm_``) runs on the same major version with the same or a higher minor one; PTX
    (``compute_``) on any device of that version or newer (CUDA C++ Programming Guide, "Binary
    Compatibility", "PTX Compatibility"). The suffix ``a`` restricts both to that version, ``f``
    to its family.
    """
    for version, kind, suffix in map(_architecture, architectures):
        if suffix == "a":
            fits = capability == version
        elif kind == "sm" or suffix == "f":
            fits = capability[0] == version[0] and capability[1] >= version[1]
        else:
            fits = capability >= version
        if fits:
            return True
    return False


def _architecture(name: str) -> tuple[tuple[int, int], str, str]:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
    if match is None:
        return (10**6, 0), "sm", ""  # an unknown format: no device runs it
    return (int(match[2]), int(match[3])), match[1], match[4]


# --- initialisation -------------------------------------------------------------------------------


def starts(facts: Facts) -> Iterator[Finding]:
    """Check that CUDA starts, without initialising it in this process."""
    if not facts.build.compiled or facts.bad_fork:
        return
    if facts.state.initialized and facts.torch_loaded:
        how = "in this process"
    else:
        how = f"in a {'copy of this' if facts.torch_loaded else 'child'} process"
    count, reason = facts.start.count, facts.start.reason
    if count:
        yield Finding(
            "start of CUDA",
            "ok",
            f"torch's CUDA runtime starts and finds {plural(count, 'device')} ({how})",
        )
        return
    if count is None:
        yield Finding(
            "start of CUDA", "unknown", f"not tried: {reason}" if reason else "could not be tried"
        )
        return
    expected = [device for device in facts.table if device.visible]
    evidence = f"finds no device ({how}): {reason}" if reason else f"finds no device ({how})"
    cause, remedy = reason, None
    if expected and not reason and not facts.state.initialized:
        cause = "CUDA finds no device, although the environment variables show some"
        remedy = "restart the kernel: a failed start of CUDA lasts until the process ends"
    hidden = not expected and bool(facts.table)
    yield Finding("start of CUDA", "ok" if hidden else "bad", evidence, remedy, cause)


def _version(text: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return None if match is None else (int(match[1]), int(match[2]))


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
