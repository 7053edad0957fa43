"""``%%cudatime --on cpu,cuda:0``: the same code on one device after the other, compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpumagic.cells.coroutines import run_or_await
from gpumagic.cells.timeit_loop import Loop
from gpumagic.magics.cudatime import named_results
from gpumagic.magics.cudatime.delivery import Delivery, print_failure
from gpumagic.magics.output import Progress, hand_over
from gpumagic.results import Compared, Comparison, CudaTiming
from gpumagic.timing.benchmark import Benchmark
from gpumagic.timing.comparison import compare
from gpumagic.timing.default_device import default_device, parse
from gpumagic.timing.plan import Plan


def run(delivery: Delivery, loop: Loop, plan: Plan) -> Any:
    """Run ``loop`` on every device that ``--on`` names; return a coroutine if it awaits.

    Raises:
        SpecError: the option does not name devices of this kernel.
    """
    __tracebackhide__ = True
    options = delivery.options
    devices = parse(options.on)
    progress = Progress(delivery.shell, enabled=not options.quiet)
    timings: dict[str, CudaTiming] = {}

    async def run_on(device: str) -> None:
        __tracebackhide__ = True
        number, complete = devices.index(device), False
        benchmark = Benchmark(
            loop,
            plan,
            lambda part: progress.update((number + part) / len(devices), benchmark.median),
        )
        try:
            with default_device(device):
                await benchmark.run()
            complete = True
        finally:
            with print_failure():
                result = benchmark.result(loop.compile_time, partial=not complete)
                if result is not None:  # at least one repeat is complete
                    timings[device] = result
                    name = None if options.name is None else f"{options.name} {device}"
                    named_results.store(delivery.magics, name, result)

    async def run() -> Any:
        __tracebackhide__ = True
        returned = None
        try:
            for device in devices:
                await run_on(device)
        finally:
            with print_failure():
                progress.close()
                returned = _show(delivery, devices, timings)
        return returned

    return run_or_await(run, is_async=loop.is_async)


def _show(delivery: Delivery, devices: Sequence[str], timings: Mapping[str, CudaTiming]) -> Any:
    """Show the complete timings, and return what the magic returns."""
    if not timings:
        delivery.deliver_repeats(None)
        return None
    device, timing = next(iter(timings.items()))
    result: CudaTiming | Comparison = timing
    if len(timings) > 1:
        result = compare(timings)
    elif len(devices) > 1:
        entry = Compared(device, timing, 1.0)
        result = Comparison((entry,), "wall" if timing.gpu is None else "gpu")
    if len(devices) > 1:
        result = replace(result, notes=(*result.notes, *_missing(devices, timings)))
    return hand_over(delivery.shell, result, delivery.options)


def _missing(devices: Sequence[str], timings: Mapping[str, CudaTiming]) -> Iterator[str]:
    """Yield a note on each device whose runs are missing or incomplete."""
    for device in devices:
        timing = timings.get(device)
        if timing is None:
            yield f"stopped early: not one repeat is complete on {device}"
        elif timing.partial:
            asked = timing.quality and timing.quality.asked
            of = f" of {asked:,}" if asked else ""
            yield f"stopped early on {device}, after {timing.repeat:,}{of} repeats"
