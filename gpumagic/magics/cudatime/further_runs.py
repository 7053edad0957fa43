"""Further runs of code that was timed: for its kernels, its FLOPs and its energy.

Not every code can run twice, and the timed run has succeeded: an exception of a further run becomes
a note of the result.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from gpumagic.cells.coroutines import stop_iteration
from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import failure
from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics.argument_types import expanded
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.system import text
from gpumagic.system.paths import output_path
from gpumagic.timing.plan import ENERGY_SECONDS
from gpumagic.timing.profiler import EnergyMeter, Profiled, flop_counter

_T = TypeVar("_T")
_Scope = TypeVar("_Scope", bound=AbstractContextManager[Any])


class FurtherRuns:
    """The further runs that the options of a line ask for.

    Raises:
        SpecError: the trace cannot be written to its file.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._options = delivery.options
        self._trace: Path | None = None
        if self._options.trace is not None:
            try:
                self._trace = output_path(expanded(delivery.shell, self._options.trace))
            except SpecError as error:
                raise SpecError(f"--trace: {error}; name a file, as trace.json") from None

    async def run(
        self, code: Callable[[AbstractContextManager[Any]], Awaitable[_T]], value: _T
    ) -> _T:
        """Run ``code`` in a scope for each option that needs that, and return its last value.

        ``value`` where it is not run again.
        """
        if self._options.kernels or self._trace is not None:
            option = "--kernels" if self._options.kernels else "--trace"
            value, profiled = await self._attempt(
                option, lambda: Profiled(self._trace), code, value
            )
            if profiled is not None and profiled.report is not None:
                self._delivery.add(f"the code ran once more for {option}", kernels=profiled.report)
            elif profiled is not None:
                self._delivery.add(f"{option}: the code uses torch's profiler itself")
        if self._options.flops:
            value, counter = await self._attempt("--flops", flop_counter, code, value)
            if counter is not None:
                count = int(counter.get_total_flops())
                self._delivery.add("the code ran once more for --flops", flops=count)
        return value

    async def measure_energy(self, loop: Loop) -> None:
        """Run ``loop`` for long enough to read its energy, if that is asked for."""
        result = self._delivery.result
        if not self._options.energy or result is None:
            return
        if not result.per_device:
            self._delivery.add(f"no energy: {result.gpu_note or failure.why_no_gpu()}")
            return
        devices = sorted(result.per_device)
        count = max(math.ceil(ENERGY_SECONDS / max(result.wall.median, 1e-9)), 1)

        async def again(scope: AbstractContextManager[Any]) -> None:
            loop.run(count, scope)

        _, meter = await self._attempt("--energy", lambda: EnergyMeter(devices), again, None)
        if meter is not None:
            joules = None if meter.joules is None else meter.joules / count
            self._delivery.add(meter.note, energy=joules, power=meter.watts)

    async def _attempt(
        self,
        option: str,
        make: Callable[[], _Scope],
        code: Callable[[_Scope], Awaitable[_T]],
        value: _T,
    ) -> tuple[_T, _Scope | None]:
        """Run ``code`` in a scope; return its value and the scope, if both have succeeded."""
        if self._delivery.result is None or self._delivery.result.partial:
            return value, None
        try:
            scope = make()
            return await code(scope), scope
        except KeyboardInterrupt:
            note = "the further run was interrupted; the timed run is complete"
            self._delivery.add(f"{option}: {note}")
            raise
        except DeviceError as error:
            self._delivery.add(f"{option}: {error}")
        except Exception as error:
            raised = stop_iteration(error) or error
            self._delivery.add(
                f"{option}: the further run raised {text.named(raised)}; leave {option} out, or "
                "write code that can run again"
            )
        return value, None
