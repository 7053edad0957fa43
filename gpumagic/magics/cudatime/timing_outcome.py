"""The outcome of timed code: its times, and further runs for kernels, FLOPs and energy.

Not every code can run twice, and the timed run has succeeded: an exception of a further run becomes
a note of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import no_gpu
from gpumagic.cuda.pytorch import profiling
from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics.cudatime.cudatime_options import RunOptions
from gpumagic.magics.magic_state import MagicState
from gpumagic.magics.outcome import Outcome
from gpumagic.results.timing.comparison import Comparison
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.system import text
from gpumagic.system.writing import output_path
from gpumagic.timing import comparison
from gpumagic.timing.energy import ENERGY_SECONDS, EnergyMeter
from gpumagic.timing.precision import LEAST_REPEATS
from gpumagic.timing.profiler import Profiled

_Scope = TypeVar("_Scope", bound=AbstractContextManager[Any])


class TimingOutcome(Outcome):
    """The outcome of timed code, a `CudaTiming`, with the figures of further runs.

    ``repeats`` is the number of its repeats, None where not known before.

    Raises:
        SpecError: a file cannot be read or written, or too few repeats for ``--fail-above``.
    """

    options: RunOptions
    result: CudaTiming | None

    def __init__(self, magics: MagicState, options: RunOptions, repeats: int | None) -> None:
        super().__init__(magics, options, CudaTiming, _compare, _check)
        counts = (repeats, None if self.stored is None else self.stored.repeat)
        few = any(count is not None and count < LEAST_REPEATS for count in counts)
        if few and options.fail_above is not None:
            raise SpecError(
                "--fail-above: fewer repeats cannot tell a slowdown from noise; save and compare "
                f"with -r {LEAST_REPEATS} or more, or --repeat"
            )
        self._trace = None if options.trace is None else output_path(options.trace)

    def deliver(self, *, silent: bool = False) -> None:
        name = self.options.name
        is_named = self.result is None or self.magics.note_timing(name, self.result)
        super().deliver(silent=silent)
        if not is_named:
            kept = f"{name!r} keeps its earlier, complete result"
            self.say(f"--name: this run stopped early; {kept}")

    # --- further runs -----------------------------------------------------------------------------

    def run_again(
        self, code: Callable[[AbstractContextManager[Any]], Any], value: object = None
    ) -> Any:
        """Run ``code`` in a scope for each option that needs that, and return its last value.

        ``value`` where it is not run again.
        """
        if self.options.kernels or self._trace is not None:
            option = "--kernels" if self.options.kernels else "--trace"
            value, profiled = self._attempt(option, lambda: Profiled(self._trace), code, value)
            if profiled is not None and profiled.report is not None:
                self._add(f"the code ran once more for {option}", kernels=profiled.report)
            elif profiled is not None:
                self._add(f"{option}: the code uses torch's profiler itself")
        if self.options.flops:
            value, counter = self._attempt("--flops", profiling.flop_counter, code, value)
            if counter is not None:
                count = int(counter.get_total_flops())
                self._add("the code ran once more for --flops", flops=count)
        return value

    def measure_energy(self, loop: Loop) -> None:
        """Run ``loop`` for long enough to read its energy, if that is asked for."""
        result = self.result
        if not self.options.energy or result is None:
            return
        if not result.per_device:
            unseen = no_gpu.reason() if result.gpu is None else "no GPU work was seen"
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

    def _add(self, *notes: str, **fields: Any) -> None:
        """Add notes to the result, and set fields."""
        assert self.result is not None
        self.result = replace(self.result, notes=(*self.result.notes, *notes), **fields)

    def _attempt(
        self,
        option: str,
        make: Callable[[], _Scope],
        code: Callable[[_Scope], Any],
        value: object = None,
    ) -> tuple[Any, _Scope | None]:
        """Run ``code`` in a scope; return its value and the scope, if both have succeeded."""
        if not self.is_complete:
            return value, None
        try:
            scope = make()
            return code(scope), scope
        except KeyboardInterrupt:
            note = "the further run was interrupted; the timed run is complete"
            self._add(f"{option}: {note}")
            raise
        except (DeviceError, SpecError) as error:
            self._add(f"{option}: {error}")
        except Exception as error:
            self._add(
                f"{option}: the further run raised {text.named(error)}; leave {option} out, or "
                "write code that can run again"
            )
        return value, None


def _compare(now: CudaTiming, before: CudaTiming) -> Comparison:
    return comparison.compare({"stored": before, "now": now})


def _check(compared: Comparison, allowed: float) -> str | None:
    return comparison.check(compared, compared[1], allowed)
