"""Results side by side: those of ``--name`` by ``--compare``, those of devices by ``--on``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import torch_cuda
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime.execution import benchmark, nothing_has_run
from gpumagic.magics.delivery import Delivery, saying_failures
from gpumagic.magics.output import hand_over
from gpumagic.magics.shell_state import Magics
from gpumagic.results.comparison import Compared, Comparison
from gpumagic.results.timing import CudaTiming
from gpumagic.timing.comparison import compare
from gpumagic.timing.event_timer import wait_for_earlier_work
from gpumagic.timing.repeat_plan import Plan

# --- named results -------------------------------------------------------------------------------


def show(magics: Magics, options: argparse.Namespace) -> Any:
    """Show the named results, or those that the line names, side by side.

    Raises:
        SpecError: there is nothing to compare, or no result of a name.
    """
    named: dict[str, CudaTiming] = magics.state.named_timings
    names = [name for word in options.names for name in word.split(",") if name] or list(named)
    there = ", ".join(map(shlex.quote, named)) or "none; %%cudatime --name NAME names one"
    for name in names:
        if name not in named:
            raise SpecError(f"%cudatime --compare: no result is named {name!r}; there is {there}")
    if len({*names}) < 2:
        raise SpecError(f"%cudatime --compare: it takes two named results; there is {there}")
    compared = compare({name: named[name] for name in names})
    return hand_over(magics.shell, compared, options)


# --- one device after the other -------------------------------------------------------------------


def run_on_devices(magics: Magics, options: argparse.Namespace, loop: Loop, plan: Plan) -> Any:
    """Run ``loop`` on every device that ``--on`` names.

    Raises:
        SpecError: this process has no such device.
        DeviceError: torch cannot be imported.
    """
    torch: Any = torch_cuda.require()
    for name in options.on:
        if name != "cpu" and torch.device(name).index >= torch.cuda.device_count():
            raise SpecError(f"there is no {name} in this process; %gpu shows its GPUs")
    delivery, timings = Delivery(magics, options, CudaTiming), dict[str, CudaTiming]()

    def keep(device: str, timing: CudaTiming | None) -> None:
        if timing is not None:
            timings[device] = timing
            name = None if options.name is None else f"{options.name} {device}"
            magics.state.note_timing(name, timing)

    with nothing_has_run(delivery):
        wait_for_earlier_work()
    try:
        for device in options.on:
            with _default_device(device):
                benchmark(delivery, loop, plan, partial(keep, device))
    finally:
        with saying_failures(magics.shell):
            if timings:
                delivery.keep(_compared(options.on, timings))
                delivery.deliver()
    return delivery.finish(None)


def _compared(devices: list[str], timings: dict[str, CudaTiming]) -> CudaTiming | Comparison:
    notes = tuple(
        f"stopped early on {device}" if device in timings else f"no result on {device}"
        for device in devices
        if device not in timings or timings[device].partial
    )
    if len(timings) == 1:
        ((device, timing),) = timings.items()
        if len(devices) > 1:
            notes = (f"these are the times on {device}", *notes)
        return replace(timing, notes=(*timing.notes, *notes))
    compared = compare(timings)
    elsewhere = [_elsewhere(device, timing) for device, timing in timings.items()]
    if wrong := [*filter(None, elsewhere)]:
        entries = tuple(Compared(each.name, each.timing) for each in compared)
        compared = replace(compared, entries=entries)
        notes = (*notes, *wrong)
    return replace(compared, notes=(*compared.notes, *notes))


def _elsewhere(device: str, timing: CudaTiming) -> str | None:
    """Return a note on the other devices that the code used."""
    others = [name for name in (f"cuda:{i}" for i in timing.per_device) if name != device]
    if not others or not timing.gpu_seen:  # a bound alone is no evidence of use
        return None
    used = " and ".join(others)
    return (
        f"not compared: with --on {device} the code used {used}. --on sets torch's default device; "
        "code that names another one, or uses tensors on it, does not follow"
    )


@contextmanager
def _default_device(name: str) -> Iterator[None]:
    """Make a device torch's default one, and ``gpumagic.device()``, inside the scope."""
    torch: Any = torch_cuda.require()
    device = torch.device(name)
    current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with current, torch_cuda.chosen(device), device:
        yield
