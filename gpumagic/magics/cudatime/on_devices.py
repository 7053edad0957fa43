"""Repeated runs of a loop on one device after the other, compared: ``%cudatime --on``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.pytorch.any_device import chosen
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime.cudatime_options import RunOptions
from gpumagic.magics.cudatime.repeated import benchmark_shown
from gpumagic.magics.delivery import hand_over, saying_failures, value_of
from gpumagic.magics.magic_state import MagicState
from gpumagic.results.timing.comparison import Compared, Comparison
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.timing.comparison import compare
from gpumagic.timing.repeated.repeat_plan import Plan


def run(magics: MagicState, options: RunOptions, loop: Loop, plan: Plan) -> Any:
    """Run ``loop`` on every device that ``--on`` names, and return what the magic returns.

    Raises:
        SpecError: this process has no device of a name.
        DeviceError: torch cannot be imported.
    """
    torch: Any = torch_cuda.require()
    for name in options.on:
        if name != "cpu" and torch.device(name).index >= torch.cuda.device_count():
            raise SpecError(f"there is no {name} in this process; %gpu shows its GPUs")
    timings: dict[str, CudaTiming] = {}

    def keep(timing: CudaTiming) -> None:
        timings[device] = timing
        name = None if options.name is None else f"{options.name} {device}"
        magics.note_timing(name, timing)

    found: CudaTiming | Comparison | None = None
    try:
        for device in options.on:
            with _default_device(device):
                benchmark_shown(magics, options, loop, plan, keep)
    finally:
        with saying_failures(magics.shell):
            if timings:
                found = _compared(options.on, timings)
                hand_over(magics.shell, found, options)
    return value_of(None, found, options)


def _compared(devices: Sequence[str], timings: dict[str, CudaTiming]) -> CudaTiming | Comparison:
    notes = tuple(f"no result on {device}" for device in devices if device not in timings)
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
    with current, chosen(device), device:
        yield
