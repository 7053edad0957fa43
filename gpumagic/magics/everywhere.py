"""``%%cudatime --on cpu,cuda:0``: the same code on one device after the other, compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gpumagic.awaited import awaited
from gpumagic.errors import SpecError
from gpumagic.loop import Loop
from gpumagic.magics import repeating
from gpumagic.magics.delivery import Delivery
from gpumagic.magics.kept import keep
from gpumagic.magics.progress import Progress
from gpumagic.magics.show import hand_over
from gpumagic.results import Comparison, CudaTiming
from gpumagic.timing import placement
from gpumagic.timing.comparing import compare
from gpumagic.timing.repetition import Repetition, run_async
from gpumagic.timing.repetition import run as run_loop


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
        self._names = placement.parse(delivery.options.on)
        self._progress = Progress(delivery.shell, enabled=not delivery.options.quiet)
        self._timings: dict[str, CudaTiming] = {}
        self.returned: Any = None

    def __iter__(self) -> Iterator[tuple[AbstractContextManager[None], Repetition]]:
        for done, name in enumerate(self._names):

            def progress(part: float, done: int = done) -> None:
                self._progress.update((done + part) / len(self._names))

            repetition = repeating.repetition(self._delivery.options, progress)
            yield self._timed(name, repetition), repetition

    @contextmanager
    def _timed(self, name: str, repetition: Repetition) -> Iterator[None]:
        with placement.on(name):
            yield
        result = repetition.result(self._compile_time)
        assert result is not None  # every repeat is complete
        self._timings[name] = result
        kept = self._delivery.options.name
        keep(self._magics, None if kept is None else f"{kept} {name}", result)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._progress.close()
        if not self._timings:
            return
        result: CudaTiming | Comparison = next(iter(self._timings.values()))
        if len(self._timings) > 1:
            result = compare(self._timings)
        self.returned = hand_over(self._delivery.shell, result, self._delivery.options)
