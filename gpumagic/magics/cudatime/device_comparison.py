"""``%%cudatime --on cpu,cuda:0``: the same code on one device after the other, compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from gpumagic.cells.coroutines import run_or_await
from gpumagic.cells.timeit_loop import Loop
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime import named_results
from gpumagic.magics.cudatime.delivery import Delivery, print_failure
from gpumagic.magics.output import hand_over
from gpumagic.magics.progress import Progress
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
    if options.kernels or options.trace is not None or options.nvtx is not None:
        raise SpecError("--kernels, --trace and --nvtx look at one device: leave --on out")
    if options.flops or options.energy or options.save or options.against:
        raise SpecError("--flops, --energy, --save, --against are for one result: leave --on out")
    devices = parse(options.on)
    scope = _DeviceComparison(delivery, devices, loop.compile_time)

    async def run() -> Any:
        __tracebackhide__ = True
        with scope:
            for device in devices:
                benchmark = Benchmark(loop, plan, scope.progress)
                with scope.on(device, benchmark):
                    await benchmark.run()
        return scope.returned

    return run_or_await(run, is_async=loop.is_async)


class _DeviceComparison(AbstractContextManager[None]):
    """Collects a timing for each device; shows the complete ones at its end."""

    def __init__(self, delivery: Delivery, devices: tuple[str, ...], compile_time: float) -> None:
        self._delivery = delivery
        self._devices = devices
        self._compile_time = compile_time
        self._progress = Progress(delivery.shell, enabled=not delivery.options.quiet)
        self._timings: dict[str, CudaTiming] = {}
        self._done = 0
        self.returned: Any = None

    def progress(self, part: float) -> None:
        """Show that this part of the current device's repeats is done."""
        self._progress.update((self._done + part) / len(self._devices))

    @contextmanager
    def on(self, device: str, benchmark: Benchmark) -> Iterator[None]:
        """Run the block on a device, and store the benchmark's result at its end."""
        complete = False
        try:
            with default_device(device):
                yield
            complete = True
        finally:
            self._done += 1
            with print_failure():
                self._store(device, benchmark.result(self._compile_time, partial=not complete))

    def _store(self, device: str, result: CudaTiming | None) -> None:
        if result is not None:  # at least one repeat is complete
            self._timings[device] = result
            name = self._delivery.options.name
            name = None if name is None else f"{name} {device}"
            named_results.store(self._delivery.magics, name, result)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with print_failure():
            self._progress.close()
            self._report()

    def _report(self) -> None:
        options = self._delivery.options
        if not self._timings:
            if not options.quiet:
                print("%cudatime: stopped before the first repeat was complete")
            return
        first, timing = next(iter(self._timings.items()))
        result: CudaTiming | Comparison = timing
        if len(self._devices) > 1:
            if len(self._timings) > 1:
                result = compare(self._timings)
            else:
                entry = Compared(first, timing, 1.0)
                result = Comparison((entry,), "wall" if timing.gpu is None else "gpu")
            result = replace(result, notes=(*result.notes, *self._missing()))
        self.returned = hand_over(self._delivery.shell, result, options)

    def _missing(self) -> Iterator[str]:
        """Say what is missing because the run was stopped."""
        for device in self._devices:
            timing = self._timings.get(device)
            if timing is None:
                yield f"stopped early: not one repeat is complete on {device}"
            elif timing.partial:
                asked = timing.quality and timing.quality.asked
                of = f" of {asked:,}" if asked else ""
                yield f"stopped early on {device}, after {timing.repeat:,}{of} repeats"
