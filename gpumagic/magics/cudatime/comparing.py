"""Results side by side: those of ``--name`` by ``--compare``, those of devices by ``--on``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import torch_cuda
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime.delivery import Delivery, store
from gpumagic.magics.output import Progress, hand_over
from gpumagic.results.comparison import Compared, Comparison
from gpumagic.results.timing import CudaTiming
from gpumagic.timing.comparison import compare
from gpumagic.timing.plan import Plan

# --- named results -------------------------------------------------------------------------------


def show(magics: Any, options: argparse.Namespace) -> Any:
    """Show the named results, or those that the line names, side by side.

    Raises:
        SpecError: there is nothing to compare, or no result of a name.
    """
    named: dict[str, CudaTiming] = magics.extension.named_timings
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


def run_on_devices(delivery: Delivery, loop: Loop, plan: Plan) -> Any:
    """Run ``loop`` on every device that ``--on`` names.

    Raises:
        SpecError: this process has no such device.
        DeviceError: torch cannot be imported.
    """
    options = delivery.options
    torch: Any = torch_cuda.require()
    for name in options.on:
        if name != "cpu" and torch.device(name).index >= torch.cuda.device_count():
            raise SpecError(f"there is no {name} in this process; %gpu shows its GPUs")
    timings: dict[str, CudaTiming] = {}
    returned = None
    try:
        with closing(Progress(delivery.shell, enabled=not options.quiet)) as progress:

            def show_part(number: int, done: float) -> None:
                progress.update((number + done) / len(options.on))

            for number, device in enumerate(options.on):
                with _default_device(device):
                    try:
                        delivery.benchmark(loop, plan, partial(show_part, number))
                    finally:
                        if delivery.result is not None:
                            timings[device] = delivery.result
                            name = options.name and f"{options.name} {device}"
                            store(delivery.magics, name, delivery.result)
    finally:
        with delivery.saying_failures():
            if timings:
                returned = hand_over(delivery.shell, _compared(options.on, timings), options)
    return returned


def _compared(devices: list[str], timings: dict[str, CudaTiming]) -> CudaTiming | Comparison:
    first, timing = next(iter(timings.items()))
    if len(devices) == 1:
        return timing
    if len(timings) > 1:
        compared = compare(timings)
    else:
        compared = Comparison((Compared(first, timing, 1.0),), "gpu" if timing.gpu else "wall")
    notes = tuple(
        f"stopped early on {device}"
        for device in devices
        if device not in timings or timings[device].partial
    )
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
