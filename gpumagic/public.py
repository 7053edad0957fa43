"""Every public name, from the module that has it: what ``import gpumagic`` gives to a script.

`gpumagic` imports this module when the first of them is used.
"""

# mypy: implicit-reexport
# ruff: noqa: F401

from gpumagic import cluster
from gpumagic.cuda.pytorch.any_device import device
from gpumagic.doctor import diagnose
from gpumagic.doctor.diagnosis import Diagnosis, Finding
from gpumagic.errors import (
    DependencyError,
    DeviceError,
    GpuMagicError,
    GpuMagicWarning,
    RegressionError,
    RestartError,
    SpecError,
)
from gpumagic.memory.holders import holders
from gpumagic.memory.measurement import gpumem
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.results.memory.freed import Freed
from gpumagic.results.memory.holders import Holder, Holders
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta, MemoryDelta
from gpumagic.results.memory.memory_report import DeviceMemory, MemoryReport
from gpumagic.results.memory.out_of_memory import OutOfMemory
from gpumagic.results.processes import Process
from gpumagic.results.selection import Selection
from gpumagic.results.stored import load
from gpumagic.results.timing.comparison import Comparison
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.sample import Sample
from gpumagic.selection.apply import select
from gpumagic.selection.table import devices
from gpumagic.timing.api import cudatime
from gpumagic.timing.comparison import compare
