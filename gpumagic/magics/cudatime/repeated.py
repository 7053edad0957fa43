"""Repeated runs for ``%cudatime``: of a loop, or of a loop on one device after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

from gpumagic.cells.timeit_loop import Loop, compile_loop
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.pytorch.any_device import chosen
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime.cudatime_options import RunOptions
from gpumagic.magics.cudatime.timing_outcome import TimingOutcome
from gpumagic.magics.delivery import hand_over, saying_failures, value_of
from gpumagic.magics.live_display import LiveDisplay
from gpumagic.magics.magic_state import MagicState
from gpumagic.render.units import seconds, share
from gpumagic.results.timing.comparison import Compared, Comparison
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.timing.comparison import compare
from gpumagic.timing.profiler import nvtx_range
from gpumagic.timing.repeated.benchmark import Runs, benchmark
from gpumagic.timing.repeated.repeat_plan import Plan

#: Seconds before the progress is shown, and between two updates.
_SILENT, _PERIOD = 1.0, 0.2
#: Why a cell that runs once may fail when it is repeated.
_OWN_VARIABLES = "; in repeated runs the variables that a cell assigns are its own, as in %%timeit"


def run(
    magics: MagicState,
    options: RunOptions,
    source: str,
    header: str | None,
    local_ns: dict[str, Any] | None,
) -> Any:
    """Run and time code repeatedly, and return what the magic returns.

    Raises:
        SpecError: a file cannot be read or written, or this process has no device of ``--on``.
        DeviceError: torch, which ``--on`` needs, cannot be imported.
    """
    loop = compile_loop(
        magics.shell, source, header=header, local_ns=local_ns, setup=options.setup or ""
    )
    plan = Plan(options.loops, options.repeats, options.warmup, options.max_time, options.cold)
    if options.on:
        return _run_on_devices(magics, options, loop, plan)
    outcome = TimingOutcome(magics, options, None if plan.open_end else plan.repeats)

    def keep(timing: CudaTiming | None) -> None:
        outcome.result = timing

    try:
        with nvtx_range(options.nvtx):
            _benchmark(magics, options, loop, plan, keep)
        outcome.run_again(lambda scope: loop.run(1, scope))
        outcome.measure_energy(loop)
    finally:
        if outcome.result is None:
            why = _OWN_VARIABLES if sys.exc_info()[0] is UnboundLocalError else ""
            outcome.say(f"%cudatime: stopped before the first repeat was complete{why}")
        outcome.deliver()
    return outcome.finish(None)


def _benchmark(
    magics: MagicState,
    options: RunOptions,
    loop: Loop,
    plan: Plan,
    keep: Callable[[CudaTiming | None], None],
) -> None:
    """Run a loop and ``keep`` its timing: also a partial one, if one repeat is complete."""
    began, done = perf_counter(), None
    shown_at = began + _SILENT - _PERIOD
    # In a terminal apart from the output of the timed code.
    with LiveDisplay(magics.shell, quiet=options.quiet, stream=sys.stderr) as live:

        def note(runs: Runs) -> None:
            nonlocal done, shown_at
            done = runs
            if (now := perf_counter()) >= shown_at + _PERIOD:
                shown_at = now
                live.text(f"%cudatime: {share(min(runs.part, 1.0))}, {seconds(now - began)}")

        try:
            done = benchmark(loop, plan, note)
        finally:
            with saying_failures(magics.shell):
                keep(None if done is None else done.result())


# --- one device after the other -------------------------------------------------------------------


def _run_on_devices(magics: MagicState, options: RunOptions, loop: Loop, plan: Plan) -> Any:
    """Run ``loop`` on every device that ``--on`` names."""
    torch: Any = torch_cuda.require()
    for name in options.on:
        if name != "cpu" and torch.device(name).index >= torch.cuda.device_count():
            raise SpecError(f"there is no {name} in this process; %gpu shows its GPUs")
    timings: dict[str, CudaTiming] = {}

    def keep(timing: CudaTiming | None) -> None:
        if timing is not None:
            timings[device] = timing
            name = None if options.name is None else f"{options.name} {device}"
            magics.note_timing(name, timing)

    found: CudaTiming | Comparison | None = None
    try:
        for device in options.on:
            with _default_device(device):
                _benchmark(magics, options, loop, plan, keep)
    finally:
        with saying_failures(magics.shell):
            if timings:
                found = _compared(options.on, timings)
                hand_over(magics.shell, found, options)
    return value_of(None, found, options)


def _compared(devices: Sequence[str], timings: dict[str, CudaTiming]) -> CudaTiming | Comparison:
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
    with current, chosen(device), device:
        yield
