"""What torch was built for: its versions and architectures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.system import forked_copy


@dataclass(frozen=True)
class Build:
    """The versions and architectures that torch was built for."""

    version: str | None = None
    #: Whether it has CUDA (or ROCm) support at all.
    compiled: bool = False
    #: The CUDA or ROCm version that it was built with.
    cuda: str | None = None
    hip: str | None = None
    cudnn: str | None = None
    #: ``sm_90`` for machine code, ``compute_90`` for PTX.
    architectures: Sequence[str] = ()
    #: Why there is no build: torch is not installed, or its import fails.
    error: str | None = None
    #: Whether torch is not installed.
    missing: bool = False


def versions(torch: ModuleType) -> dict[str, Any]:
    """Return the versions of a torch, as plain data. Initialises nothing.

    Does not call ``torch.backends.cudnn.version()``, which initialises the driver.
    """
    functions = torch._C
    compiled = hasattr(functions, "_cuda_getDeviceCount")
    cudnn = getattr(functions, "_cudnn", None)
    return {
        "version": str(torch.__version__),
        "compiled": compiled,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cudnn": None if cudnn is None else ".".join(map(str, cudnn.getCompileVersion())),
    }


def architectures(torch: ModuleType) -> list[str]:
    """Return the architectures that a torch has code for. Initialises nothing.

    But from then on torch refuses CUDA in every forked child of the process: ``_cuda_getArchFlags``
    registers its fork handler, as do ``_cuda_getDeviceCount`` and ``_cuda_init``.
    """
    return (torch._C._cuda_getArchFlags() or "").split()


def here() -> Build | None:
    """Return the build of this process's torch; None where none is loaded.

    Its architectures are read in a forked copy of this process, whose own children can use CUDA
    as before.
    """
    torch = torch_cuda.loaded()
    if torch is None:
        return None
    found: Any = ()
    if torch_cuda.built_with_cuda():
        with suppress(OSError, ValueError):
            read = partial(architectures, torch)
            found = forked_copy.call(read) if hasattr(os, "fork") else read()
    return Build(**versions(torch), architectures=found)
