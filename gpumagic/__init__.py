"""GPU devices, GPU time and GPU memory for PyTorch users of Jupyter and IPython.

In a notebook, ``%load_ext gpumagic`` and then ``%gpu``, ``%%cudatime`` and ``%gpumem``. In a
script, the functions below; each magic is a thin wrapper of one of them.

Importing this package imports nothing but the standard library's ``importlib``: no torch, no
pynvml, no rich. Every public name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpumagic._version import __version__

if TYPE_CHECKING:
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
    from gpumagic.memory.attribution import holders
    from gpumagic.memory.measurement import gpumem
    from gpumagic.results import (
        Comparison,
        CudaTiming,
        Device,
        DeviceMemory,
        DeviceMemoryDelta,
        DeviceTable,
        Freed,
        Holder,
        Holders,
        MemoryDelta,
        MemoryReport,
        OutOfMemory,
        Process,
        Sample,
        Selection,
    )
    from gpumagic.results.stored import load
    from gpumagic.selection.apply import select
    from gpumagic.selection.device_table import devices
    from gpumagic.timing.api import cudatime
    from gpumagic.timing.comparison import compare

#: The modules of public names; all other names of `__all__` are in ``results``.
_MODULES = {
    "devices": "selection.device_table",
    "diagnose": "doctor",
    "Diagnosis": "doctor.diagnosis",
    "Finding": "doctor.diagnosis",
    "select": "selection.apply",
    "compare": "timing.comparison",
    "load": "results.stored",
    "cudatime": "timing.api",
    "gpumem": "memory.measurement",
    "holders": "memory.attribution",
    "device": "cuda.torch_cuda",
    **dict.fromkeys(
        ("GpuMagicError", "SpecError", "DeviceError", "RegressionError", "GpuMagicWarning"),
        "errors",
    ),
}

__all__ = [
    "Comparison",
    "CudaTiming",
    "Device",
    "DeviceError",
    "DeviceMemory",
    "DeviceMemoryDelta",
    "DeviceTable",
    "Diagnosis",
    "Finding",
    "Freed",
    "GpuMagicError",
    "GpuMagicWarning",
    "Holder",
    "Holders",
    "MemoryDelta",
    "MemoryReport",
    "OutOfMemory",
    "Process",
    "RegressionError",
    "Sample",
    "Selection",
    "SpecError",
    "__version__",
    "compare",
    "cudatime",
    "device",
    "devices",
    "diagnose",
    "gpumem",
    "holders",
    "load",
    "select",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "results")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Register the magics (``%load_ext gpumagic``)."""
    from gpumagic.magics.loading import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Undo all changes by loading and by the magics (``%unload_ext gpumagic``)."""
    from gpumagic.magics.loading import unload

    unload(shell)
