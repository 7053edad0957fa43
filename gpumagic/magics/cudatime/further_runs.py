"""Further runs of code that was timed: for its kernels, its FLOPs and its energy.

Not every code can run twice, and the timed run has succeeded: an exception of a further run becomes
a note of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import failure
from gpumagic.errors import DeviceError
from gpumagic.magics.argument_types import expanded
from gpumagic.magics.delivery import Delivery
from gpumagic.system import text
from gpumagic.system.paths import output_path
from gpumagic.timing.profiler import EnergyMeter, Profiled, flop_counter
from gpumagic.timing.repeat_plan import ENERGY_SECONDS

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
            self._trace = output_path(expanded(delivery.shell, self._options.trace))

    def run(self, code: Callable[[AbstractContextManager[Any]], Any], value: object) -> Any:
        """Run ``code`` in a scope for each option that needs that, and return its last value.

        ``value`` where it is not run again.
        """
        if self._options.kernels or self._trace is not None:
            option = "--kernels" if self._options.kernels else "--trace"
            value, profiled = self._attempt(option, lambda: Profiled(self._trace), code, value)
            if profiled is not None and profiled.report is not None:
                self._add(f"the code ran once more for {option}", kernels=profiled.report)
            elif profiled is not None:
                self._add(f"{option}: the code uses torch's profiler itself")
        if self._options.flops:
            value, counter = self._attempt("--flops", flop_counter, code, value)
            if counter is not None:
                count = int(counter.get_total_flops())
                self._add("the code ran once more for --flops", flops=count)
        return value

    def measure_energy(self, loop: Loop) -> None:
        """Run ``loop`` for long enough to read its energy, if that is asked for."""
        result = self._delivery.result
        if not self._options.energy or result is None:
            return
        if not result.per_device:
            unseen = failure.why_no_gpu() if result.gpu is None else "no GPU work was seen"
            self._add(f"no energy: {result.gpu_note or unseen}")
            return
        devices = sorted(result.per_device)
        count = max(math.ceil(ENERGY_SECONDS / max(result.wall.median, 1e-9)), 1)
        _, meter = self._attempt(
            "--energy", lambda: EnergyMeter(devices), lambda scope: loop.run(count, scope)
        )
        if meter is not None:
            joules = None if meter.joules is None else meter.joules / count
            self._add(meter.note, energy=joules, power=meter.watts)

    def _add(self, *notes: str, **fields: object) -> None:
        """Add notes to the result, and set fields."""
        result = self._delivery.result
        self._delivery.keep(replace(result, notes=(*result.notes, *notes), **fields))

    def _attempt(
        self,
        option: str,
        make: Callable[[], _Scope],
        code: Callable[[_Scope], Any],
        value: object = None,
    ) -> tuple[Any, _Scope | None]:
        """Run ``code`` in a scope; return its value and the scope, if both have succeeded."""
        if self._delivery.result is None or self._delivery.result.partial:
            return value, None
        try:
            scope = make()
            return code(scope), scope
        except KeyboardInterrupt:
            note = "the further run was interrupted; the timed run is complete"
            self._add(f"{option}: {note}")
            raise
        except DeviceError as error:
            self._add(f"{option}: {error}")
        except Exception as error:
            self._add(
                f"{option}: the further run raised {text.named(error)}; leave {option} out, or "
                "write code that can run again"
            )
        return value, None
