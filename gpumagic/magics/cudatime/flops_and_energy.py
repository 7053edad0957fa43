"""``%%cudatime --flops`` and ``--energy``: operations and energy, each measured in further runs."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import failure, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.magics.cudatime import further_run, repeat_options
from gpumagic.magics.cudatime.delivery import Delivery, print_failure
from gpumagic.magics.output import show
from gpumagic.results.work import Work, work_lines
from gpumagic.system.text import plural
from gpumagic.timing.energy import EnergyMeter
from gpumagic.timing.flops import FlopCounter, Flops, share_of_peak, why_no_share
from gpumagic.timing.plan import ENERGY_SECONDS

_T = TypeVar("_T")


async def count_flops(
    delivery: Delivery, code: Callable[[AbstractContextManager[Any]], Awaitable[_T]], value: _T
) -> _T:
    """Run ``code`` under the FLOP counter, if asked for, and return its value; else ``value``."""
    __tracebackhide__ = True
    result = delivery.result
    if not delivery.options.flops or result is None:
        return value
    try:
        counter = FlopCounter()
    except DeviceError as error:
        _add(delivery, [], f"no FLOPs: {error}")
        return value
    value, problem = await further_run.attempt(delivery, "--flops", lambda: code(counter), value)
    with print_failure("the FLOPs"):
        if problem is not None:
            _add(delivery, [], f"no FLOPs: {problem}")
        elif counter.found is not None:
            _add_flops(delivery, counter.found)
    return value


def _add_flops(delivery: Delivery, found: Flops) -> None:
    result = delivery.result
    assert result is not None
    gpu = None if result.gpu is None else result.gpu.median
    devices = {} if result.conditions is None else result.conditions.devices
    share = None
    if gpu and len(devices) == 1:
        share = share_of_peak(found, gpu, *devices.values())
    notes = []
    if found.unseen:
        notes.append(f"FLOPs of these are not counted: {', '.join(found.unseen)}")
    if found.threads:
        began = plural(found.threads, "thread")
        notes.append(f"FLOPs of other threads are not counted: {began} began in this run")
    if found.replays:
        replays = plural(found.replays, "replay")
        notes.append(f"FLOPs of CUDA graphs are not counted: {replays} in this run")
    why = why_no_share(found, [*devices.values()])
    if share is None and why is not None and (gpu or found.on_cpu):
        notes.append(f"no share of the peak: {why}")
    if found.on_cpu:
        gpu = None  # the rate would be one of both
    lines = work_lines(found.count, gpu, share, None, None, at_most=result.gpu_at_most)
    _add(delivery, lines, *notes, flops=found.count, peak_share=share)


async def measure_energy(delivery: Delivery, loop: Loop) -> None:
    """Run ``loop`` for long enough to read its energy, if asked for."""
    __tracebackhide__ = True
    result = delivery.result
    if not delivery.options.energy or result is None:
        return
    if repeat_options.only_for_energy(delivery.options):
        _add(delivery, [], "repeated for its energy, as by --repeat: the code assigns no variables")
    if not result.per_device:
        why = failure.why_no_gpu()
        if torch_cuda.contexts():
            why = "no sign of GPU work was seen"
        _add(delivery, [], f"no energy: {why}")
        return
    count = max(math.ceil(ENERGY_SECONDS / max(result.wall.median, 1e-9)), 1)
    meter = EnergyMeter(sorted(result.per_device))
    _, problem = await further_run.attempt(
        delivery, "--energy", lambda: loop.run(count, meter), None
    )
    with print_failure("the energy"):
        found = meter.found
        if problem is not None:
            _add(delivery, [], f"no energy: {problem}")
        elif found is not None:
            joules = None if found.joules is None else found.joules / count
            lines = work_lines(None, None, None, joules, found.watts)
            notes = [found.note]
            if delivery.options.cold:  # nothing comes between its loops
                notes.append("the loops of the energy ran without flushing the L2 cache")
            _add(delivery, lines, *notes, energy=joules, power=found.watts)


def _add(delivery: Delivery, lines: list[str], *notes: str, **fields: Any) -> None:
    """Add notes and fields to the result; show the lines of them below it."""
    delivery.add(*notes, **fields)
    if not delivery.options.quiet:
        show(delivery.shell, Work(lines, notes))
