"""Check torch: its build, the driver that it needs, its kernels for each GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpumagic.cuda.probe import Build
from gpumagic.doctor.diagnosis import Finding
from gpumagic.doctor.facts import Facts
from gpumagic.results.devices import Device

_INSTALL = "install a torch built for {}: https://pytorch.org/get-started/locally"
#: The oldest driver of each CUDA generation (NVIDIA, CUDA Compatibility, "Minor Version
#: Compatibility", table 1).
_OLDEST_DRIVER = {11: "450", 12: "525", 13: "580"}


def torch(facts: Facts) -> Iterator[Finding]:
    """Check that there is a torch, built with CUDA."""
    build = facts.build
    version = f"{build.version} (in {facts.torch_in})"
    if build.error is not None and "not installed" in build.error:
        remedy = _INSTALL.format("CUDA")
        yield Finding("torch", "bad", build.error, remedy, "torch is not installed")
    elif build.error is not None:
        remedy = "import torch in a cell to see the whole error"
        yield Finding("torch", "bad", build.error, remedy, "torch cannot be imported")
    elif not build.compiled:
        remedy = f"{_INSTALL.format('CUDA')}, and restart the kernel"
        cause = f"this torch ({build.version}) is built without CUDA"
        yield Finding("torch", "bad", f"{version}, built without CUDA", remedy, cause)
    elif build.hip is not None:
        yield Finding("torch", "ok", f"{version}, for ROCm {build.hip}")
    else:
        cudnn = f"cuDNN {build.cudnn}" if build.cudnn else "no cuDNN"
        kernels = f"; kernels for {' '.join(build.architectures)}" if build.architectures else ""
        yield Finding("torch", "ok", f"{version}, for CUDA {build.cuda}, {cudnn}{kernels}")


def fits_driver(facts: Facts) -> Iterator[Finding]:
    """Check that the driver is new enough for the build."""
    found = fit(facts.build, facts.driver_cuda, starts=bool(facts.start.count))
    if found is not None:
        yield found


def fit(build: Build, supported: tuple[int, int] | None, *, starts: bool = False) -> Finding | None:
    """Return the finding on a driver that supports CUDA up to ``supported``; None if unknown.

    Any driver of the build's major version suffices, and any newer one (NVIDIA, CUDA
    Compatibility, "Minor Version Compatibility"). ``starts``: CUDA was observed to start anyway,
    through a compatibility package.
    """
    built = re.match(r"\d+", build.cuda or "")
    if built is None or supported is None or build.hip is not None:
        return None
    versions = f"torch is built for CUDA {build.cuda}, the driver supports up to "
    versions += f"{supported[0]}.{supported[1]}"
    if int(built[0]) <= supported[0] or starts:
        return Finding("driver and torch", "ok", f"compatible: {versions}")
    oldest = _OLDEST_DRIVER.get(int(built[0]))
    newer = "a newer NVIDIA driver" if oldest is None else f"NVIDIA driver {oldest} or newer"
    remedy = f"install {newer}; or {_INSTALL.format(f'CUDA {supported[0]}')}"
    cause = f"the driver is too old: {versions}"
    return Finding("driver and torch", "bad", versions, remedy, cause)


def kernels(facts: Facts) -> Iterator[Finding]:
    """Check that torch has kernels for each GPU; without them: "no kernel image is available"."""
    if facts.build.hip is None:
        found = (kernel(device, facts.build.architectures) for device in facts.table)
        yield from (each for each in found if each is not None)


def kernel(device: Device, architectures: Sequence[str]) -> Finding | None:
    """Return the finding on one GPU; None if its compute capability, or torch's, is unknown."""
    capability = device.compute_capability
    if capability is None or not architectures:
        return None
    subject = f"GPU {device.index} and torch"
    described = f"compute capability {capability[0]}.{capability[1]}"
    if runs_on(capability, architectures):
        evidence = f"{device.name}: {described}; torch has kernels for it"
        return Finding(subject, "ok", evidence)
    evidence = f"{device.name}: {described}; torch has no kernels for it"
    wanted = f"sm_{capability[0]}{capability[1]}"
    remedy = f"install a torch whose torch.cuda.get_arch_list() has {wanted}: a newer one for a "
    remedy += "newer GPU, an older one (or one for an older CUDA) for an older GPU"
    cause = f"this torch has no kernels for GPU {device.index} ({described}; it has "
    cause += f"{' '.join(architectures)})"
    return Finding(subject, "bad", evidence, remedy, cause)


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether a device can run code compiled for one of these architectures.

    Machine code (``sm_``) runs on the same major version with the same or a higher minor one; PTX
    (``compute_``) on any device of that version or newer (CUDA C++ Programming Guide, "Binary
    Compatibility", "PTX Compatibility"). The suffix ``a`` restricts both to that version, ``f``
    to its family.
    """
    for name in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if match is None:
            continue
        version = int(match[2]), int(match[3])
        if match[4] == "a":
            fits = capability == version
        elif match[1] == "sm" or match[4] == "f":
            fits = capability[0] == version[0] and capability[1] >= version[1]
        else:
            fits = capability >= version
        if fits:
            return True
    return False
