"""Check torch: its build, the driver that it needs, its kernels for each GPU."""

from __future__ import annotations

import re

from gpumagic.cuda.pytorch.build import Build
from gpumagic.doctor.diagnosis import Finding
from gpumagic.doctor.facts import Facts
from gpumagic.render.units import spans
from gpumagic.results.devices import Device

#: Xavier and Orin, which run machine code of other GPUs of their major version since CUDA 13.2
#: (``DEVICE_REQUIREMENT`` of torch.cuda).
_APART = {(7, 2), (8, 7)}
_INSTALL = "install a torch built for {}: https://pytorch.org/get-started/locally"
#: The oldest driver of each CUDA generation (NVIDIA, CUDA Compatibility, "Minor Version
#: Compatibility", table 1).
_OLDEST_DRIVER = {11: "450", 12: "525", 13: "580"}


def torch(facts: Facts) -> Finding:
    """Check that there is a torch, built with CUDA."""
    build = facts.build
    evidence = f"{build.version} (in {facts.torch_in})"
    install = _INSTALL.format("CUDA")
    if build.missing:
        return Finding("torch", "bad", str(build.error), install, build.error)
    if build.error is not None:
        remedy = "import torch in a cell to see the whole error"
        return Finding("torch", "bad", build.error, remedy, "torch cannot be imported")
    if not build.compiled:
        remedy = f"{install}, and restart the notebook process"
        cause = f"this torch ({build.version}) is built without CUDA"
        return Finding("torch", "bad", f"{evidence}, built without CUDA", remedy, cause)
    if build.hip is not None:
        return Finding("torch", "ok", f"{evidence}, for ROCm {build.hip}")
    cudnn = f"cuDNN {build.cudnn}" if build.cudnn else "no cuDNN"
    evidence += f", for CUDA {build.cuda}, {cudnn}; kernels for {' '.join(build.architectures)}"
    return Finding("torch", "ok", evidence)


def fits_driver(facts: Facts) -> Finding | None:
    """Check that the driver is new enough for the build.

    Any driver of the build's major version suffices, and any newer one (NVIDIA, CUDA
    Compatibility, "Minor Version Compatibility"); an older one with a compatibility package, if
    CUDA was observed to start.
    """
    build, supported = facts.build, facts.driver_cuda
    built = re.match(r"\d+", build.cuda or "")
    if built is None or supported is None:
        return None
    newest = f"{supported[0]}.{supported[1]}"
    versions = f"torch is built for CUDA {build.cuda}, the driver supports up to {newest}"
    if int(built[0]) <= supported[0] or facts.start.count:
        return Finding("driver and torch", "ok", f"compatible: {versions}")
    oldest = _OLDEST_DRIVER.get(int(built[0]))
    newer = "a newer NVIDIA driver" if oldest is None else f"NVIDIA driver {oldest} or newer"
    remedy = f"install {newer}; or {_INSTALL.format(f'CUDA {supported[0]}')}"
    cause = f"the driver is too old: {versions}"
    return Finding("driver and torch", "bad", versions, remedy, cause)


def kernels(facts: Facts) -> Finding | None:
    """Check that torch has kernels for each GPU; without them: "no kernel image is available"."""
    architectures = facts.build.architectures
    lacking = without_kernels(facts)
    if not lacking:
        known = [d.index for d in facts.table if d.compute_capability is not None]
        found = Finding("kernels", "ok", f"torch has kernels for GPU {spans(known)}")
        return found if known and architectures else None
    versions = sorted({device.compute_capability or (0, 0) for device in lacking})
    numbers = spans([device.index for device in lacking])
    evidence = f"GPU {numbers}: compute capability "
    evidence += ", ".join(f"{major}.{minor}" for major, minor in versions)
    wanted = " ".join(f"sm_{major}{minor}" for major, minor in versions)
    remedy = f"install a torch whose torch.cuda.get_arch_list() has {wanted}: a newer one for a "
    remedy += "newer GPU, an older one (or one for an older CUDA) for an older GPU"
    cause = f"this torch has no kernels for {evidence} (it has {' '.join(architectures)})"
    return Finding("kernels", "bad", f"{evidence}; torch has none for it", remedy, cause)


def without_kernels(facts: Facts) -> list[Device]:
    """Return the visible devices that torch has no kernels for, as far as that is known."""
    listed = facts.table if facts.build.architectures else ()
    return [
        device
        for device in listed
        if device.visible is not False
        and device.compute_capability is not None
        and not runs_on(device.compute_capability, facts.build)
    ]


def runs_on(capability: tuple[int, int], build: Build) -> bool:
    """Return whether a device can run code for one of the build's architectures.

    Machine code (``sm_``) runs on the same major version with the same or a higher minor one; PTX
    (``compute_``) on any device of that version or newer (CUDA C++ Programming Guide, "Binary
    Compatibility", "PTX Compatibility"). The suffix ``a`` restricts both to that version, ``f``
    to its family.
    """
    cuda = tuple(map(int, re.findall(r"\d+", build.cuda or "")))
    for name in build.architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if match is None:
            continue
        version = int(match[2]), int(match[3])
        if match[4] == "a":
            fits = capability == version
        elif {capability, version} == {(10, 1), (11, 0)}:  # renamed
            fits = True
        elif capability in _APART and match[1] == "sm" and cuda < (13, 2):
            fits = capability == version
        elif match[1] == "sm" or match[4] == "f":
            fits = capability[0] == version[0] and capability[1] >= version[1]
        else:
            fits = capability >= version
        if fits:
            return True
    return False
