"""``%%gpumem --fit NAME=LOW:HIGH``: the largest value with which the cell fits into memory.

It is found in few runs. The value is doubled until the peaks of two runs lie on a line; the line
says where memory ends, and a run there confirms it. Where it was too much, the next values are a
little smaller; what is left between the largest value that ran and the smallest that did not is
halved.
"""

from __future__ import annotations

import argparse
import gc
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpumagic.cells.compile import CompiledCell
from gpumagic.cells.coroutines import run_or_await
from gpumagic.cuda import torch_cuda
from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics.output import hand_over
from gpumagic.memory.limit import LIMIT, memory_limit
from gpumagic.memory.measurement import Measurement
from gpumagic.memory.report import memory_report
from gpumagic.results.allocator import Fit, FitRun
from gpumagic.results.memory import DeviceMemoryDelta
from gpumagic.system.text import plural

_Deltas = Mapping[int, DeviceMemoryDelta]


def run(magics: Any, options: argparse.Namespace, cell: CompiledCell) -> Any:
    """Run the cell with several values and hand over the `Fit`.

    Raises:
        SpecError: the cell sets the variable itself.
        DeviceError: the cell uses no GPU memory.
    """
    __tracebackhide__ = True
    fit = options.fit
    search = FitSearch(fit.low, fit.high)
    namespace = magics.shell.user_ns
    absent = object()
    before = namespace.get(fit.name, absent)

    async def search_largest() -> Any:
        __tracebackhide__ = True
        found = None
        try:
            while (value := search.next()) is not None:
                namespace[fit.name] = value
                fits, devices = await _run_once(cell, fit.name, value)
                if not torch_cuda.contexts():
                    raise DeviceError(
                        "--fit: the cell uses no GPU: CUDA is not in use in this process"
                    )
                used = max(devices, key=lambda i: devices[i].peak, default=None)
                peak = devices[used].peak if used is not None else 0
                search.runs.append(FitRun(value, peak if fits else None))
                if used is not None:
                    # Less where the first run has created what stays: an optimizer's state.
                    search.available = _available(used)
                LIMIT.apply()
            found = search.largest
        finally:
            if found is not None:
                namespace[fit.name] = found
            elif before is absent:
                namespace.pop(fit.name, None)
            else:
                namespace[fit.name] = before
        return hand_over(magics.shell, _result(fit.name, search), options)

    return run_or_await(search_largest, is_async=cell.is_async)


def _available(ordinal: int) -> int | None:
    """Return the bytes that the code may still allocate on a device; None where not known."""
    memory = memory_report().devices[ordinal]
    bounds = []
    if memory.free is not None and memory.reserved is not None and memory.allocated is not None:
        bounds.append(memory.free + memory.reserved - memory.allocated)
    limit = memory_limit(ordinal)
    if limit is not None and memory.allocated is not None:
        bounds.append(limit - memory.allocated)
    return min(bounds, default=None)


async def _run_once(cell: CompiledCell, name: str, value: int) -> tuple[bool, _Deltas]:
    """Run the cell with a value; return whether it fits, and its changes. Leaves nothing.

    Raises:
        SpecError: the cell sets the variable itself.
    """
    __tracebackhide__ = True
    # In a copy of the namespace, so that what a run makes ends with it.
    namespace = {**cell.globals, name: value}
    separate = cell.locals is not cell.globals
    local = {**cell.locals, name: value} if separate else namespace
    once = replace(cell, globals=namespace, locals=local)
    measurement = Measurement()
    failed = False
    try:
        await once.run(measurement)
        if local.get(name) is not value:
            raise SpecError(f"--fit {name}: the cell sets {name} itself; leave that out")
    except RuntimeError as error:
        torch: Any = torch_cuda.loaded()
        if torch is None or not isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        failed = True
        _forget(error)
    finally:
        # Not cleared: functions that the cell made may live on in objects of the user's.
        del namespace, local, once
        gc.collect()
        torch_cuda.empty_cache()
    devices = measurement.result.devices
    # Also where the cell has caught the error itself.
    return not (failed or any(delta.ooms for delta in devices.values())), devices


def _forget(error: BaseException) -> None:
    """Clear the frames of an exception, which hold what the failed run had allocated."""
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None
    if sys.exc_info()[1] is error:
        error.__context__ = None


def _result(name: str, search: FitSearch) -> Fit:
    times = plural(len(search.runs), "time")
    notes = [
        f"the cell ran {times}; its new variables are gone, but it changed your own objects "
        "each time (a training step updates the model)"
    ]
    if len({run.peak for run in search.runs}) == 1 < len(search.runs):
        notes.insert(0, f"the peak is the same for all: does the cell use {name}?")
    if search.largest is not None:
        notes.insert(0, f"{name} is left at {search.largest:,}")
    return Fit(name, search.largest, tuple(search.runs), search.is_exact, tuple(notes))


# --- the search -----------------------------------------------------------------------------------


#: Runs at most.
RUNS = 24
#: Far above the largest value that ran, the next one is smaller by this part of what failed.
_STEPS_DOWN = (256, 32, 4)


@dataclass
class FitSearch:
    """Chooses the next value to run, from what the runs so far have shown."""

    low: int
    high: int
    #: The bytes that the code may allocate above its start; None where not known.
    available: int | None = None
    runs: list[FitRun] = field(default_factory=list)

    @property
    def largest(self) -> int | None:
        """The largest value that ran; None where none has."""
        return max((run.value for run in self.runs if run.fits), default=None)

    @property
    def _failed(self) -> int | None:
        return min((run.value for run in self.runs if not run.fits), default=None)

    @property
    def is_exact(self) -> bool:
        """Whether the next larger value is known not to fit, or is out of range."""
        best = self.largest
        return best is not None and (best == self.high or self._failed == best + 1)

    def next(self) -> int | None:
        """Return the value to run next; None when the search is over."""
        best, failed = self.largest, self._failed
        if not self.runs:
            return self.low
        if best is None or self.is_exact or len(self.runs) >= RUNS:
            return None
        predicted = self._predicted()
        if failed is None:
            wanted = 2 * max(best, 1) if predicted is None else max(predicted, best + 1)
            return min(wanted, self.high)
        failures = sum(not run.fits for run in self.runs)
        if predicted is not None and failures <= len(_STEPS_DOWN) and 2 * best < failed:
            return max(failed - max(failed // _STEPS_DOWN[failures - 1], 1), best + 1)
        return (best + failed) // 2

    def _predicted(self) -> int | None:
        """Return the largest value that the line through the last two peaks allows, or None."""
        ran = sorted((run.value, run.peak) for run in self.runs if run.peak is not None)
        if self.available is None or len(ran) < 2:
            return None
        (x1, y1), (x2, y2) = ran[-2:]
        if y2 <= y1:
            return None
        return int(x2 + (self.available - y2) * (x2 - x1) / (y2 - y1))
