"""``%%cudatime --on cpu,cuda:0``: the same code on one device after the other, compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from gpumagic.cells.cancellation import awaited
from gpumagic.cells.timeit_loop import Loop
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime import repeat_options
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.magics.cudatime.named_results import keep
from gpumagic.magics.output import hand_over
from gpumagic.magics.progress import Progress
from gpumagic.results import Compared, Comparison, CudaTiming
from gpumagic.system import text
from gpumagic.timing import default_device
from gpumagic.timing.benchmark import Repetition, run_async
from gpumagic.timing.benchmark import run as run_loop
from gpumagic.timing.comparison import compare


def run(delivery: Delivery, loop: Loop, magics: Any) -> Any:
    """Run ``loop`` on every device that ``--on`` names; a coroutine if it awaits.

    Raises:
        SpecError: the option does not name devices of this kernel.
    """
    __tracebackhide__ = True
    options = delivery.options
    if options.kernels or options.trace is not None or options.nvtx is not None:
        raise SpecError("--kernels, --trace and --nvtx look at one device: leave --on out")
    places = _Places(delivery, loop, magics)
    if loop.is_async:

        async def go() -> Any:
            __tracebackhide__ = True
            with awaited(), places:
                for scope, repetition in places:
                    with scope:
                        await run_async(loop, repetition)
            return places.returned

        return go()
    with places:
        for scope, repetition in places:
            with scope:
                run_loop(loop, repetition)
    return places.returned


class _Places(AbstractContextManager["_Places"]):
    """One repetition a device; shows what is complete when it ends, also by an exception."""

    def __init__(self, delivery: Delivery, loop: Loop, magics: Any) -> None:
        self._delivery = delivery
        self._magics = magics
        self._compile_time = loop.compile_time
        self._names = default_device.parse(delivery.options.on)
        self._progress = Progress(delivery.shell, enabled=not delivery.options.quiet)
        self._timings: dict[str, CudaTiming] = {}
        self.returned: Any = None

    def __iter__(self) -> Iterator[tuple[AbstractContextManager[None], Repetition]]:
        for done, name in enumerate(self._names):

            def progress(part: float, done: int = done) -> None:
                self._progress.update((done + part) / len(self._names))

            repetition = repeat_options.repetition(self._delivery.options, progress)
            yield self._timed(name, repetition), repetition

    @contextmanager
    def _timed(self, name: str, repetition: Repetition) -> Iterator[None]:
        complete = False
        try:
            with default_device.on(name):
                yield
            complete = True
        finally:
            with _told():
                self._add(name, repetition.result(self._compile_time, partial=not complete))

    def _add(self, name: str, result: CudaTiming | None) -> None:
        if result is not None:  # at least one repeat is complete
            self._timings[name] = result
            kept = self._delivery.options.name
            keep(self._magics, None if kept is None else f"{kept} {name}", result)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with _told():
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
        if len(self._names) > 1:
            if len(self._timings) > 1:
                result = compare(self._timings)
            else:
                entry = Compared(first, timing, 1.0)
                result = Comparison((entry,), "wall" if timing.gpu is None else "gpu")
            result = replace(result, notes=(*result.notes, *self._missing()))
        self.returned = hand_over(self._delivery.shell, result, options)

    def _missing(self) -> Iterator[str]:
        """What the comparison is not of, because the run was stopped."""
        for name in self._names:
            timing = self._timings.get(name)
            if timing is None:
                yield f"stopped early: not one repeat is complete on {name}"
            elif timing.partial:
                asked = timing.quality and timing.quality.asked
                of = f" of {asked:,}" if asked else ""
                yield f"stopped early on {name}, after {timing.repeat:,}{of} repeats"


@contextmanager
def _told() -> Iterator[None]:
    """A failure of ours is one line: the code's exception must pass."""
    try:
        yield
    except Exception as failure:
        print(f"%cudatime: cannot show the times ({text.named(failure)})")
