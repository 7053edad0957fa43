"""torch's build against the driver, the toolkit and each GPU."""

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
    """What torch was built for."""
    build = facts.build
    if build.error is not None:
        missing = "not installed" in build.error
        return Finding(
            "torch",
            "bad",
            build.error,
            _INSTALL.format("CUDA") if missing else "import torch in a cell to see all of it",
            "torch is not installed" if missing else "torch cannot be imported",
        )
    where = "as loaded here" if facts.torch_loaded else "asked in a child process"
    if not build.compiled:
        return Finding(
            "torch",
            "bad",
            f"{build.version}, built without CUDA ({where})",
            f"{_INSTALL.format('CUDA')}, and restart the kernel",
            f"this torch ({build.version}) is built without CUDA",
        )
    if build.hip is not None:
        return Finding("torch", "ok", f"{build.version}, built for ROCm {build.hip} ({where})")
    cudnn = f", cuDNN {build.cudnn}" if build.cudnn else ", no cuDNN"
    return Finding("torch", "ok", f"{build.version}, built for CUDA {build.cuda}{cudnn} ({where})")


def fits_driver(facts: Facts) -> Iterator[Finding]:
    """Whether the driver is new enough for the build."""
    found = fit(facts.build, facts.driver_cuda, starts=bool(facts.start.count))
    if found is not None:
        yield found


def fit(build: Build, supported: tuple[int, int] | None, *, starts: bool = False) -> Finding | None:
    """Whether a driver that supports CUDA ``supported`` is new enough; None where not known.

    Within one major version any driver will do, and a newer driver always does (NVIDIA, CUDA
    Compatibility, "Minor Version Compatibility"). ``starts``: CUDA was seen to start all the same.
    """
    built = _version(build.cuda)
    if built is None or supported is None or build.hip is not None:
        return None
    subject = "driver and torch"
    said = f"torch is built for CUDA {_dotted(built)}, the driver supports up to "
    said += _dotted(supported)
    if built <= supported:
        return Finding(subject, "ok", f"they fit: {said}")
    if built[0] == supported[0]:
        return Finding(subject, "ok", f"they fit: {said}, and the same major version suffices")
    if starts:
        helps = "yet CUDA starts, so a compatibility package helps"
        return Finding(subject, "ok", f"{said}; {helps}")
    oldest = _OLDEST_DRIVER.get(built[0])
    newer = "a newer NVIDIA driver" if oldest is None else f"NVIDIA driver {oldest} or newer"
    return Finding(
        subject,
        "bad",
        said,
        f"install {newer}; or {_INSTALL.format(f'CUDA {supported[0]}')}",
        f"the driver is too old for it: {said}",
    )


def toolkit(facts: Facts) -> Iterator[Finding]:
    """The CUDA toolkit, which only building extensions needs."""
    found = facts.toolkit
    if found is None:
        yield Finding("toolkit", "ok", "no nvcc; torch brings what it needs, only builds need one")
        return
    if found.version is None:
        yield Finding("toolkit", "unknown", f"{found.path} does not tell its version")
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
    """Whether torch brings kernels that each GPU can run; else "no kernel image is available"."""
    architectures = facts.build.architectures
    if not architectures or facts.build.hip is not None:
        return
    for device in facts.table:
        found = kernel(device, architectures)
        if found is not None:
            yield found


def kernel(device: Device, architectures: Sequence[str]) -> Finding | None:
    """The finding on one GPU; None where its compute capability is not known."""
    capability = device.compute_capability
    if capability is None:
        return None
    subject = f"GPU {device.index} and torch"
    said = f"{device.name or 'its name is not known'}, compute capability {_dotted(capability)}"
    listed = " ".join(architectures)
    if runs_on(capability, architectures):
        return Finding(subject, "ok", f"{said}; torch has kernels for {listed}")
    older = capability < min(v for v, _, _ in map(_architecture, architectures))
    return Finding(
        subject,
        "bad",
        f"{said}; torch has kernels only for {listed}",
        "install an older torch, or one for an older CUDA, whose torch.cuda.get_arch_list() has "
        f"sm_{capability[0]}{capability[1]}"
        if older
        else "install a newer torch (see https://pytorch.org/get-started/locally)",
        f"this torch has no kernels for GPU {device.index} (compute capability "
        f"{_dotted(capability)}; it has {listed})",
    )


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether a device can run code for one of these architectures.

    Machine code (``sm_``) runs on the same major version with the same or a higher minor one; PTX
    (``compute_``) on any device as new (CUDA C++ Programming Guide, "Binary Compatibility", "PTX
    Compatibility"). A suffix ties it: ``a`` to that version alone, ``f`` to its family.
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
        return (10**6, 0), "sm", ""  # something new: runs on nothing that is known
    return (int(match[2]), int(match[3])), match[1], match[4]


# --- the proof ---------------------------------------------------------------------------------


def starts(facts: Facts) -> Iterator[Finding]:
    """Whether CUDA starts, tried where this process is left as it is."""
    if not facts.build.compiled or facts.bad_fork:
        return
    if facts.state.initialized and facts.torch_loaded:
        how = "in this process"
    else:
        how = f"in a {'copy of this' if facts.torch_loaded else 'child'} process"
    count, said = facts.start.count, facts.start.reason
    if count:
        yield Finding(
            "start of CUDA",
            "ok",
            f"torch's CUDA runtime starts and finds {plural(count, 'device')} ({how})",
        )
        return
    if count is None:
        yield Finding(
            "start of CUDA", "unknown", f"not tried: {said}" if said else "could not be tried"
        )
        return
    expected = [device for device in facts.table if device.visible]
    evidence = f"finds no device ({how}): {said}" if said else f"finds no device ({how})"
    cause, remedy = said, None
    if expected and not said and not facts.state.initialized:
        cause = "CUDA finds no device, although the variables show some"
        remedy = "restart the kernel: CUDA may have failed in it before, which it remembers"
    hidden = not expected and bool(facts.table)
    yield Finding("start of CUDA", "ok" if hidden else "bad", evidence, remedy, cause)


def _version(text: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return None if match is None else (int(match[1]), int(match[2]))


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
