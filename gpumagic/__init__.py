"""GPU devices, GPU time and GPU memory for PyTorch users of Jupyter and IPython.

In a notebook, ``%load_ext gpumagic`` and then ``%gpu``, ``%%cudatime`` and ``%gpumem``. In a
script, the functions below; each magic is a thin wrapper of one of them.

Importing this package imports nothing but the standard library's ``importlib``: no torch, no
pynvml, no rich. Every public name is imported when it is first used.
"""

# For type checkers, these names are the package's own.
# mypy: implicit-reexport
# ruff: noqa: F401

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpumagic._version import __version__

if TYPE_CHECKING:
    from gpumagic import cluster
    from gpumagic.cuda.torch_cuda import device
    from gpumagic.doctor import diagnose
    from gpumagic.doctor.diagnosis import Diagnosis, Finding
    from gpumagic.errors import (
        DeviceError,
        GpuMagicError,
        GpuMagicWarning,
        RegressionError,
        SpecError,
    )
    from gpumagic.memory.holders import holders
    from gpumagic.memory.measurement import gpumem
    from gpumagic.results.allocator import Freed
    from gpumagic.results.comparison import Comparison, load
    from gpumagic.results.devices import Device, DeviceTable, Process
    from gpumagic.results.holders import Holder, Holders
    from gpumagic.results.memory import DeviceMemory, DeviceMemoryDelta, MemoryDelta, MemoryReport
    from gpumagic.results.out_of_memory import OutOfMemory
    from gpumagic.results.selection import Selection
    from gpumagic.results.timing import CudaTiming, Sample
    from gpumagic.selection.apply import select
    from gpumagic.selection.claims import devices
    from gpumagic.system.shell import Shell
    from gpumagic.timing.api import cudatime
    from gpumagic.timing.comparison import compare

#: The module of each public name.
_MODULES = {
    name: module
    for module, names in {
        "cuda.torch_cuda": "device",
        "doctor": "diagnose",
        "doctor.diagnosis": "Diagnosis Finding",
        "errors": "DeviceError GpuMagicError GpuMagicWarning RegressionError SpecError",
        "memory.holders": "holders",
        "memory.measurement": "gpumem",
        "results.allocator": "Freed",
        "results.comparison": "Comparison load",
        "results.devices": "Device DeviceTable Process",
        "results.holders": "Holder Holders",
        "results.memory": "DeviceMemory DeviceMemoryDelta MemoryDelta MemoryReport",
        "results.out_of_memory": "OutOfMemory",
        "results.selection": "Selection",
        "results.timing": "CudaTiming Sample",
        "selection.apply": "select",
        "selection.claims": "devices",
        "timing.api": "cudatime",
        "timing.comparison": "compare",
    }.items()
    for name in names.split()
}

__all__ = ["__version__", "cluster", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name == "cluster":
        return import_module(f"{__name__}.cluster")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Shell) -> None:
    """Register the magics (``%load_ext gpumagic``)."""
    from gpumagic.magics.loading import load

    load(shell)


def unload_ipython_extension(shell: Shell) -> None:
    """Undo all changes by loading and by the magics (``%unload_ext gpumagic``)."""
    from gpumagic.magics.loading import unload

    unload(shell)
