"""Every public name, from the module that has it: what ``import gpumagic`` gives to a script.

`gpumagic` imports this module when the first of them is used.
"""

# mypy: implicit-reexport
# ruff: noqa: F401

from gpumagic import cluster
from gpumagic.cuda.pytorch.device import device
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
from gpumagic.selection.table import devices
from gpumagic.timing.api import cudatime
from gpumagic.timing.comparison import compare
